"""Uploads a checkpoint folder while the script runs, so that storage always has whole checkpoints.

The unit is an entry at the top of the folder: a file, or a folder with all below it. An entry is uploaded once it has
settled: nothing in it has changed for SETTLE_S, by its times or by what was seen of it, and no process has a file of it
open for writing. Until then storage keeps the entry's last version. Entries change together if they can: while any is
unsettled, the others wait up to PATIENCE_S. `retention` decides what storage gets. An entry that cannot be read, or
changes while it is read, keeps storage's version and is tried again: no failure of reading removes anything from
storage. The manifest is written last; then parts that neither it nor the manifest before it names are deleted. A part
that storage has lost is sent again while the folder has its file. In the layout "plain" each file is one object, which
replaces the one before it before the manifest is written; a file whose path cannot be a key is sent in parts. A
host uploads the files that it wrote itself, not those that it restored from another host.
"""

import errno
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolkit import paths
from toolkit.errors import PlatformError
from toolkit.records import Record
from toolkit.storage import manifest as manifests
from toolkit.storage import retention
from toolkit.storage.config import CheckpointLayout
from toolkit.storage.download import Note
from toolkit.storage.manifest import Manifest, StoredFile
from toolkit.storage.open_entries import OpenEntries
from toolkit.storage.retention import End, RetentionDecision
from toolkit.storage.scan import (
    FileState,
    FolderEntry,
    FolderScan,
    describe,
    entry_of,
    file_state,
    pointer_names,
    read,
    scan,
)
from toolkit.storage.still import StableSince
from toolkit.storage.store import PIECE_BYTES, StorageClient, StoredObject, UnreadableError, may_be_object
from toolkit.storage.uri import Uri
from toolkit.storage.work import run_ordered

SETTLE_S = 5.0
# Of a version that lacks files which storage's version has: it may be half removed, or half written anew.
LESSER_SETTLE_S = 60.0
PATIENCE_S = 60.0
# A part that no manifest names is left alone for so long: another job may be about to name it.
FRESH_S = 3600.0
FOLDER = "."
_SHA256 = re.compile("[0-9a-f]{64}")
CHANGED = "it changed while it was uploaded"


class _SentPart(Record, frozen=True, kw_only=True):
    """A part of `path` that was uploaded, or why it was not. `part`: its SHA-256, or the key of the whole file's
    object."""

    path: str
    part: str = ""
    fault: str = ""


class OvertakenError(PlatformError):
    """Another job has written or removed the manifest since this one read or wrote it; one made anew goes on from
    that."""


class Checkpoints:
    """The checkpoint folder of the host *rank*, called *host*, and its place below *root*.

    *open_file*: where `OpenEntries` keeps the names of entries that are being written, for `finish` in another process.
    *began_s*: when the script began, since the epoch. *steady_s*: a clock that only goes on.

    `unreadable`: why entries could not be read at the last look, by name; FOLDER stands for the folder itself.

    Raises (each method too):
        PlatformError: the storage cannot be reached.
        ContractError: a manifest is damaged.
        OvertakenError: another job writes there, too; then make another one.
    """

    def __init__(
        self,
        store: StorageClient,
        root: Uri,
        folder: Path,
        *,
        rank: int,
        host: str,
        open_file: Path,
        note: Note,
        began_s: float = 0.0,
        layout: CheckpointLayout = "parts",
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._root, self._folder, self._host, self._note = store, root, folder, host, note
        self._place = manifests.folder(root, rank)
        self._layout = layout
        self._objects_key = f"hosts/{rank}/files"  # Below the URI.
        self._began_s = began_s
        self._open_entries = OpenEntries(folder, open_file)
        self._manifest = self._find_manifest()
        of_hosts = manifests.read_all(store, root, folder)
        self._last = of_hosts.pop(rank, Manifest(host=host, written_s=0.0))
        self._before: set[str] = set()
        self._others = {path: file for manifest in of_hosts.values() for path, file in manifest.files.items()}
        prefix = self._place.below("parts").key
        parts = {part.key.rpartition("/")[2]: part for part in store.list(prefix)}
        skip = len(root.key) + 1 if root.key else 0
        objects = {stored.key[skip:]: stored for stored in store.list(root.below(self._objects_key).key)}
        contents = parts | objects | self._find_elsewhere(objects)
        self._known = {name: stored.size_bytes for name, stored in contents.items()}
        self._foreign = {
            name: stored.changed_ns / 1e9 for name, stored in contents.items() if name not in self._last.contents
        }
        self._broken = frozenset(path for path, file in self._last.files.items() if not self._is_whole(file))
        self._still = StableSince(steady_s)
        self._waits_since_s: float | None = None
        self._unreadable_since_s: dict[str, float] = {}
        self._left_out: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}

    def _find_elsewhere(self, objects: Mapping[str, StoredObject]) -> dict[str, StoredObject]:
        """Return the objects that the manifest names besides *objects*: somebody else has put them below the URI."""
        keys = {file.object for file in self._last.files.values() if file.object} - objects.keys()
        skip = len(self._root.key) + 1 if self._root.key else 0
        listed = self._store.list(self._root.key) if keys else ()
        return {stored.key[skip:]: stored for stored in listed if stored.key[skip:] in keys}

    def upload_settled(self, now_s: float) -> bool:
        """Upload what has changed and settled; return True if a manifest was written. *now_s*: since the epoch."""
        scan = self._scan()
        self._unreadable_since_s = {
            name: min(self._unreadable_since_s.get(name, now_s), now_s) for name in self.unreadable
        }
        if self._is_all_stored(scan) or not self._changes(scan, self._decide(scan, frozenset(), "open")):
            self._waits_since_s = None
            return False
        try:
            written = self._open_entries.update()
        except OSError as error:
            self.unreadable = {FOLDER: f"{describe(error)}; so it is not known which files are being written"}
            return False
        self._still.update(scan.entries)
        unsettled = written | self._changed_since(scan, now_s)
        if unsettled or any(now_s - since_s < PATIENCE_S for since_s in self._unreadable_since_s.values()):
            self._waits_since_s = min(self._waits_since_s or now_s, now_s)  # The clock may be set back.
            if now_s - self._waits_since_s < PATIENCE_S:
                return False
        self._waits_since_s = None
        return self._upload(scan, unsettled, "open")

    def finish(self, *, clean: bool, ended_s: float) -> bool:
        """Upload what has changed when the script has ended, at *ended_s*; return True if a manifest was written.

        Unless it ended *clean*, entries that it may have been writing at its end keep their last version.
        """
        scan = self._scan()
        unsettled: Set[str] = frozenset()
        if not clean:
            unsettled = self._changed_since(scan, ended_s) | self._open_entries.at_the_end(scan.entries.keys())
        return self._upload(scan, unsettled, "clean" if clean else "broken")

    def left_out(self) -> dict[str, str]:
        """Return the entries whose newest content `finish` did not bring into storage, and why: "" where they may be
        half written."""
        return dict(self._left_out)

    def _scan(self) -> FolderScan:
        """Return the entries of the folder with the files that are this host's own."""
        folder_scan = scan(self._folder)
        self.unreadable = folder_scan.unreadable | ({FOLDER: folder_scan.fault} if folder_scan.fault else {})
        entries = {
            name: FolderEntry(files=files, changed_s=entry.changed_s)
            for name, entry in folder_scan.entries.items()
            if (files := {path: state for path, state in entry.files.items() if self._is_own(path, state)})
        }
        return msgspec.structs.replace(folder_scan, entries=entries)

    def _is_own(self, path: str, state: FileState) -> bool:
        if path in self._last.files or path not in self._others:
            return True
        return retention.file_state_of(self._others[path]) != state

    def _changed_since(self, scan: FolderScan, now_s: float) -> frozenset[str]:
        """Return the entries that have not been quiet for long enough at *now_s*."""
        stored = retention.by_entry(self._last.files)

        def is_settled(name: str, entry: FolderEntry) -> bool:
            settle_s = LESSER_SETTLE_S if retention.is_lesser(entry, stored.get(name, {})) else SETTLE_S
            return entry.changed_s <= now_s - settle_s or self._still.is_unchanged(name, settle_s)

        return frozenset(name for name, entry in scan.entries.items() if not is_settled(name, entry))

    def _decide(self, scan: FolderScan, unsettled: Set[str], end: End) -> RetentionDecision:
        pointers, scan = self._pointers(scan)
        return retention.decide(self._last, scan, unsettled, pointers=pointers, end=end, began_s=self._began_s)

    def _pointers(self, scan: FolderScan) -> tuple[dict[str, tuple[str, ...]], FolderScan]:
        """Return the names in what new links and small files at the top hold, and *scan* with those that cannot be
        read."""
        pointers: dict[str, tuple[str, ...]] = {}
        for name, entry in scan.entries.items():
            state = entry.files.get(name)
            if state is None or name in scan.unreadable or self._is_stored(name, state):
                continue
            try:
                pointers[name] = pointer_names(self._folder, name, state)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self._refuse(name, describe(error))
        return pointers, msgspec.structs.replace(scan, unreadable=scan.unreadable | self._without_folder())

    def _without_folder(self) -> dict[str, str]:
        return {name: reason for name, reason in self.unreadable.items() if name != FOLDER}

    def _refuse(self, name: str, reason: str) -> None:
        self.unreadable.setdefault(name, reason)

    def _is_stored(self, path: str, state: FileState) -> bool:
        return path not in self._broken and self._is_as_last(path, state)

    def _is_as_last(self, path: str, state: FileState) -> bool:
        file = self._last.files.get(path)
        return file is not None and retention.file_state_of(file) == state

    def _is_whole(self, file: StoredFile) -> bool:
        """True if storage has all parts of *file*, in their length."""
        if file.object:
            return self._known.get(file.object) == file.size_bytes
        part_bytes = self._last.part_bytes
        sizes = (min(part_bytes, file.size_bytes - start) for start in range(0, file.size_bytes, part_bytes))
        return all(self._known.get(part) == size for part, size in zip(file.parts, sizes, strict=True))

    def _is_all_stored(self, scan: FolderScan) -> bool:
        """True if storage has what the folder has, and nothing else: so it is most of the time."""
        count = sum(len(entry.files) for entry in scan.entries.values())
        return count == len(self._last.files) and all(
            self._is_stored(path, state) for entry in scan.entries.values() for path, state in entry.files.items()
        )

    def _changes(self, scan: FolderScan, decision: RetentionDecision) -> bool:
        """True if *decision* gives another manifest than the last."""
        chosen = {path: state for name in decision.taken for path, state in scan.entries[name].files.items()}
        stays = {path for path in self._last.files if entry_of(path) in decision.retained}
        return chosen.keys() | stays != self._last.files.keys() or not all(
            self._is_stored(path, state) for path, state in chosen.items()
        )

    def _upload(self, scan: FolderScan, unsettled: Set[str], end: End) -> bool:
        """Make storage's version that of *scan*, as `retention` decides; entries that cannot be read, or change
        meanwhile, keep theirs."""
        changing: set[str] = set()
        sent: dict[str, StoredFile] = {}
        while True:
            pointers, scan = self._pointers(scan)
            decision = retention.decide(
                self._last, scan, unsettled | changing, pointers=pointers, end=end, began_s=self._began_s
            )
            chosen = {
                path: state for name in sorted(decision.taken) for path, state in scan.entries[name].files.items()
            }
            new = {path: state for path, state in chosen.items() if not self._is_stored(path, state)}
            sent |= self._upload_files(
                {path: state for path, state in new.items() if path not in sent}, scan, pointers, changing
            )
            self._note_changed(chosen, changing)
            scan = msgspec.structs.replace(scan, unreadable=scan.unreadable | self._without_folder())
            if not decision.taken & (changing | scan.unreadable.keys()):
                break
        files = {path: sent[path] if path in new else self._last.files[path] for path in chosen}
        files |= {path: file for path, file in self._last.files.items() if entry_of(path) in decision.retained}
        self._left_out = self._reasons_left_out(scan, decision, changing)
        self._broken -= sent.keys()
        if files == self._last.files:
            return False
        number = self._last.number + 1
        manifest = Manifest(host=self._host, written_s=time.time(), number=number, files=dict(sorted(files.items())))
        place = self._place.below(manifests.NAME)
        current = self._find_manifest()
        if current != self._manifest:
            message = "another job has written this meanwhile" if current else "somebody has removed this meanwhile"
            hint = "Two jobs must not write to one URI at the same time: give each its own." if current else ""
            raise OvertakenError(message, where=str(place), hint=hint)
        self._store.write(place.key, manifests.document(manifest))
        self._before, self._last = self._last.contents, manifest
        self._manifest = self._find_manifest()
        self._delete_unused_parts()
        return True

    def _find_manifest(self) -> StoredObject | None:
        """Return the manifest as an object, None if there is none."""
        return self._store.find(self._place.below(manifests.NAME).key)

    def _note_changed(self, chosen: Mapping[str, FileState], changing: set[str]) -> None:
        """Note the entries of *chosen* that are not as they were."""
        for path, state in chosen.items():
            try:
                if file_state(self._folder / path) != state:
                    changing.add(entry_of(path))
            except OSError as error:
                self._refuse(entry_of(path), describe(error))

    def _reasons_left_out(self, scan: FolderScan, decision: RetentionDecision, changing: Set[str]) -> dict[str, str]:
        """Return why the entries that differ from storage's version and are not taken by *decision* are left out."""
        names = {
            name
            for name, entry in scan.entries.items()
            if name not in decision.taken and not all(self._is_stored(*file) for file in entry.files.items())
        }
        reasons = dict.fromkeys(sorted(names), "") | dict.fromkeys(sorted(names & changing), CHANGED)
        return reasons | self.unreadable

    def _upload_files(
        self, new: Mapping[str, FileState], scan: FolderScan, pointers: Mapping[str, Iterable[str]], changing: set[str]
    ) -> dict[str, StoredFile]:
        """Upload the files *new*, and return those that arrived whole. Entries that cannot be read are noted in
        `unreadable`, those that change in *changing*."""
        parts: dict[str, list[str]] = {path: [] for path in new}
        failed: set[str] = set()
        for sent in run_ordered(self._pieces(new, failed)):
            if sent.part:
                parts[sent.path].append(sent.part)
                continue
            failed.add(entry_of(sent.path))
            if sent.fault:
                self._refuse(entry_of(sent.path), sent.fault)
            else:
                changing.add(entry_of(sent.path))
        objects = {path: names[0] for path, names in parts.items() if names and "/" in names[0]}
        entry_names = scan.entries.keys() | scan.unreadable.keys() | {entry_of(path) for path in self._last.files}
        return {
            path: StoredFile(
                size_bytes=state.size_bytes,
                mtime_ns=state.mtime_ns,
                mode=state.mode,
                parts=() if path in objects else tuple(parts[path]),
                object=objects.get(path, ""),
                link=state.link,
                **self._origin(path, state, scan),
                points_to=tuple(sorted(entry_names.intersection(pointers.get(path, ())))),
            )
            for path, state in new.items()
            if entry_of(path) not in failed
        }

    def _origin(self, path: str, state: FileState, scan: FolderScan) -> dict[str, Any]:
        """Return `since` and `left` of the file *path*: those that it had, if only parts of it were missing."""
        if self._is_as_last(path, state):
            return {"since": self._last.files[path].since, "left": self._last.files[path].left}
        left = retention.is_left(scan.entries[entry_of(path)], self._began_s)
        return {"since": self._last.number + 1, "left": left}

    def _pieces(self, new: Mapping[str, FileState], failed: Set[str]) -> Iterator[Callable[[], _SentPart]]:
        for path, state in new.items():
            if self._layout == "plain" and not state.link and self._may_be_object(path):
                if entry_of(path) not in failed:
                    # A large file goes in parts, several at a time, so no other goes beside it: memory stays bounded.
                    is_large = state.size_bytes > PIECE_BYTES
                    sent = self._send_whole(path, state) if is_large else None
                    yield partial(self._send_whole, path, state) if sent is None else partial(_given, sent)
                continue
            for start in range(0, state.size_bytes, PIECE_BYTES):
                if entry_of(path) not in failed:
                    yield partial(self._send, path, start, min(PIECE_BYTES, state.size_bytes - start))

    def _send(self, path: str, start: int, size_bytes: int) -> _SentPart:
        """Upload the part of *path* from *start* on, unless it is there. A part of another size is never sent."""
        try:
            content = read(self._folder / path, start, size_bytes)
        except FileNotFoundError:
            return _SentPart(path=path)
        except OSError as error:
            return _SentPart(path=path, fault=describe(error))
        if len(content) != size_bytes:
            return _SentPart(path=path)
        part = hashlib.sha256(content).hexdigest()
        if self._known.get(part) != size_bytes:  # A disk that lost its power may have kept less of it.
            self._store.write(self._place.below(f"parts/{part}").key, content)
            self._known[part] = size_bytes
        self._note(size_bytes)
        return _SentPart(path=path, part=part)

    def _may_be_object(self, path: str) -> bool:
        return paths.is_utf8(path) and may_be_object(self._root.below(f"{self._objects_key}/{path}"))

    def _send_whole(self, path: str, state: FileState) -> _SentPart:
        """Upload *path* as one object."""
        key = f"{self._objects_key}/{path}"
        try:
            self._store.upload(self._root.below(key).key, self._folder / path, state, self._note)
        except UnreadableError as error:
            is_changed = error.has_changed or error.is_gone
            return _SentPart(path=path) if is_changed else _SentPart(path=path, fault=error.message)
        self._known[key] = state.size_bytes
        return _SentPart(path=path, part=key)

    def _delete_unused_parts(self) -> None:
        """Delete the parts and objects that neither this manifest nor the one before it names: a host may be reading
        that. Objects that somebody else has put there stay."""
        fresh = {part for part, changed_s in self._foreign.items() if time.time() - changed_s < FRESH_S}
        named = self._last.contents | self._before | fresh
        unused = {name for name in self._known.keys() - named if self._is_ours(name)}
        objects = {name for name in unused if "/" in name}
        self._store.delete(self._root.below(key).key for key in sorted(objects))
        self._store.delete(self._place.below(f"parts/{part}").key for part in sorted(unused - objects))
        for name in unused:
            del self._known[name]

    def _is_ours(self, name: str) -> bool:
        """True for a part, and for an object that a host of this rank has uploaded."""
        return name.startswith(f"{self._objects_key}/") or _SHA256.fullmatch(name) is not None


def _given(sent: _SentPart) -> _SentPart:
    return sent
