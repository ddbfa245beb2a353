"""Uploads a checkpoint folder while the script runs, so that storage always has whole checkpoints.

The unit is an entry at the top of the folder: a file, or a folder with all below it. An entry is uploaded once it has
settled: nothing in it has changed for SETTLE_S, by its times or by what was seen of it, and no process has a file of it
open for writing. Until then storage keeps the entry's last version. Entries change together if they can: while any is
unsettled, the others wait up to PATIENCE_S. `retention` decides what storage gets. An entry that cannot be read, or
changes while it is read, keeps storage's version and is tried again: no failure of reading removes anything from
storage. The manifest is written last; then parts that neither it nor the manifest before it names are deleted. A part
that storage has lost is sent again while the folder has its file. A host uploads the files that it wrote itself, not
those that it restored from another host.
"""

import errno
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import PlatformError
from toolkit.records import Record
from toolkit.storage import manifest as manifests
from toolkit.storage import retention
from toolkit.storage.download import Note
from toolkit.storage.manifest import File, Manifest
from toolkit.storage.open_entries import OpenEntries
from toolkit.storage.restore import all_of
from toolkit.storage.retention import Decision, End
from toolkit.storage.scan import Entry, Found, Scan, look, pointed_to, read, reason, scan, top_of
from toolkit.storage.still import Still
from toolkit.storage.store import PIECE_BYTES, Object, Store
from toolkit.storage.uri import Uri
from toolkit.storage.work import ordered

SETTLE_S = 5.0
# Of a version that lacks files which storage's version has: it may be half removed, or half written anew.
LESSER_SETTLE_S = 60.0
PATIENCE_S = 60.0
# A part that no manifest names is left alone for so long: another job may be about to name it.
FRESH_S = 3600.0
FOLDER = "."
CHANGED = "it changed while it was uploaded"


class _Sent(Record, frozen=True, kw_only=True):
    """A part of `path` that was uploaded, or why it was not."""

    path: str
    part: str = ""
    size_bytes: int = 0
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
        store: Store,
        root: Uri,
        folder: Path,
        *,
        rank: int,
        host: str,
        open_file: Path,
        note: Note,
        began_s: float = 0.0,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._root, self._folder, self._host, self._note = store, root, folder, host, note
        self._place = manifests.folder(root, rank)
        self._began_s = began_s
        self._open_entries = OpenEntries(folder, open_file)
        self._manifest = self._found()
        of_hosts = all_of(store, root)
        self._last = of_hosts.pop(rank, Manifest(host=host, written_s=0.0))
        self._before: set[str] = set()
        self._others = {path: file for manifest in of_hosts.values() for path, file in manifest.files.items()}
        prefix = self._place.below("parts").key
        found = {each.key.rpartition("/")[2]: each for each in store.list(prefix)}
        self._known = {part: each.size_bytes for part, each in found.items()}
        self._foreign = {part: each.changed_ns / 1e9 for part, each in found.items() if part not in self._last.parts}
        self._broken = frozenset(path for path, file in self._last.files.items() if not self._is_whole(file))
        self._still = Still(steady_s)
        self._waits_since_s: float | None = None
        self._unreadable_since_s: dict[str, float] = {}
        self._left_out: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}

    def look(self, now_s: float) -> bool:
        """Upload what has changed and settled; return True if a manifest was written. *now_s*: since the epoch."""
        own = self._scan()
        self._unreadable_since_s = {
            name: min(self._unreadable_since_s.get(name, now_s), now_s) for name in self.unreadable
        }
        if self._is_all_stored(own) or not self._changes(own, self._decide(own, frozenset(), "open")):
            self._waits_since_s = None
            return False
        try:
            written = self._open_entries.look()
        except OSError as error:
            self.unreadable = {FOLDER: f"{reason(error)}; so it is not known which files are being written"}
            return False
        self._still.look(own.entries)
        unsettled = written | self._changed_since(own, now_s)
        if unsettled or any(now_s - since_s < PATIENCE_S for since_s in self._unreadable_since_s.values()):
            self._waits_since_s = min(self._waits_since_s or now_s, now_s)  # The clock may be set back.
            if now_s - self._waits_since_s < PATIENCE_S:
                return False
        self._waits_since_s = None
        return self._upload(own, unsettled, "open")

    def finish(self, *, clean: bool, ended_s: float) -> bool:
        """Upload what has changed when the script has ended, at *ended_s*; return True if a manifest was written.

        Unless it ended *clean*, entries that it may have been writing at its end keep their last version.
        """
        own = self._scan()
        unsettled: Set[str] = frozenset()
        if not clean:
            unsettled = self._changed_since(own, ended_s) | self._open_entries.at_the_end(own.entries.keys())
        return self._upload(own, unsettled, "clean" if clean else "broken")

    def left_out(self) -> dict[str, str]:
        """Return the entries whose newest content `finish` did not bring into storage, and why: "" where they may be
        half written."""
        return dict(self._left_out)

    def _scan(self) -> Scan:
        """Return the entries of the folder with the files that are this host's own."""
        seen = scan(self._folder)
        self.unreadable = seen.unreadable | ({FOLDER: seen.fault} if seen.fault else {})
        entries = {
            name: Entry(files=files, changed_s=entry.changed_s)
            for name, entry in seen.entries.items()
            if (files := {path: found for path, found in entry.files.items() if self._is_own(path, found)})
        }
        return msgspec.structs.replace(seen, entries=entries)

    def _is_own(self, path: str, found: Found) -> bool:
        if path in self._last.files or path not in self._others:
            return True
        return retention.as_found(self._others[path]) != found

    def _changed_since(self, own: Scan, now_s: float) -> frozenset[str]:
        """Return the entries that have not been quiet for long enough at *now_s*."""
        stored = retention.by_entry(self._last.files)

        def is_settled(name: str, entry: Entry) -> bool:
            settle_s = LESSER_SETTLE_S if retention.is_lesser(entry, stored.get(name, {})) else SETTLE_S
            return entry.changed_s <= now_s - settle_s or self._still.is_so(name, settle_s)

        return frozenset(name for name, entry in own.entries.items() if not is_settled(name, entry))

    def _decide(self, own: Scan, unsettled: Set[str], end: End) -> Decision:
        pointers, own = self._pointers(own)
        return retention.decide(self._last, own, unsettled, pointers=pointers, end=end, began_s=self._began_s)

    def _pointers(self, own: Scan) -> tuple[dict[str, tuple[str, ...]], Scan]:
        """Return the names in what new links and small files at the top hold, and *own* with those that cannot be
        read."""
        pointers: dict[str, tuple[str, ...]] = {}
        for name, entry in own.entries.items():
            found = entry.files.get(name)
            if found is None or name in own.unreadable or self._is_stored(name, found):
                continue
            try:
                pointers[name] = pointed_to(self._folder, name, found)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self._refuse(name, reason(error))
        return pointers, msgspec.structs.replace(own, unreadable=own.unreadable | self._without_folder())

    def _without_folder(self) -> dict[str, str]:
        return {name: why for name, why in self.unreadable.items() if name != FOLDER}

    def _refuse(self, name: str, why: str) -> None:
        self.unreadable.setdefault(name, why)

    def _is_stored(self, path: str, found: Found) -> bool:
        return path not in self._broken and self._is_as_last(path, found)

    def _is_as_last(self, path: str, found: Found) -> bool:
        file = self._last.files.get(path)
        return file is not None and retention.as_found(file) == found

    def _is_whole(self, file: File) -> bool:
        """True if storage has all parts of *file*, in their length."""
        part_bytes = self._last.part_bytes
        sizes = (min(part_bytes, file.size_bytes - start) for start in range(0, file.size_bytes, part_bytes))
        return all(self._known.get(part) == size for part, size in zip(file.parts, sizes, strict=True))

    def _is_all_stored(self, own: Scan) -> bool:
        """True if storage has what the folder has, and nothing else: so it is most of the time."""
        count = sum(len(entry.files) for entry in own.entries.values())
        return count == len(self._last.files) and all(
            self._is_stored(path, found) for entry in own.entries.values() for path, found in entry.files.items()
        )

    def _changes(self, own: Scan, decision: Decision) -> bool:
        """True if *decision* gives another manifest than the last."""
        wanted = {path: found for name in decision.taken for path, found in own.entries[name].files.items()}
        stays = {path for path in self._last.files if top_of(path) in decision.kept}
        return wanted.keys() | stays != self._last.files.keys() or not all(
            self._is_stored(path, found) for path, found in wanted.items()
        )

    def _upload(self, own: Scan, unsettled: Set[str], end: End) -> bool:
        """Make storage's version that of *own*, as `retention` decides; entries that cannot be read, or change
        meanwhile, keep theirs."""
        changing: set[str] = set()
        sent: dict[str, File] = {}
        while True:
            pointers, own = self._pointers(own)
            decision = retention.decide(
                self._last, own, unsettled | changing, pointers=pointers, end=end, began_s=self._began_s
            )
            wanted = {path: found for name in sorted(decision.taken) for path, found in own.entries[name].files.items()}
            new = {path: found for path, found in wanted.items() if not self._is_stored(path, found)}
            sent |= self._sent(
                {path: found for path, found in new.items() if path not in sent}, own, pointers, changing
            )
            self._check(wanted, changing)
            own = msgspec.structs.replace(own, unreadable=own.unreadable | self._without_folder())
            if not decision.taken & (changing | own.unreadable.keys()):
                break
        files = {path: sent[path] if path in new else self._last.files[path] for path in wanted}
        files |= {path: file for path, file in self._last.files.items() if top_of(path) in decision.kept}
        self._left_out = self._held_back(own, decision, changing)
        self._broken -= sent.keys()
        if files == self._last.files:
            return False
        number = self._last.number + 1
        manifest = Manifest(host=self._host, written_s=time.time(), number=number, files=dict(sorted(files.items())))
        place = self._place.below(manifests.NAME)
        found = self._found()
        if found != self._manifest:
            what = "another job has written this meanwhile" if found else "somebody has removed this meanwhile"
            hint = "Two jobs must not write to one URI at the same time: give each its own." if found else ""
            raise OvertakenError(what, where=str(place), hint=hint)
        self._store.write(place.key, manifests.document(manifest))
        self._before, self._last = self._last.parts, manifest
        self._manifest = self._found()
        self._collect()
        return True

    def _found(self) -> Object | None:
        """Return the manifest as an object, None if there is none."""
        return self._store.find(self._place.below(manifests.NAME).key)

    def _check(self, wanted: Mapping[str, Found], changing: set[str]) -> None:
        """Note the entries of *wanted* that are not as they were."""
        for path, found in wanted.items():
            try:
                if look(self._folder / path) != found:
                    changing.add(top_of(path))
            except OSError as error:
                self._refuse(top_of(path), reason(error))

    def _held_back(self, own: Scan, decision: Decision, changing: Set[str]) -> dict[str, str]:
        """Return why the entries that differ from storage's version and are not taken by *decision* are left out."""
        names = {
            name
            for name, entry in own.entries.items()
            if name not in decision.taken and not all(self._is_stored(*file) for file in entry.files.items())
        }
        why = dict.fromkeys(sorted(names), "") | dict.fromkeys(sorted(names & changing), CHANGED)
        return why | self.unreadable

    def _sent(
        self, new: Mapping[str, Found], own: Scan, pointers: Mapping[str, Iterable[str]], changing: set[str]
    ) -> dict[str, File]:
        """Upload the files *new*, and return those that arrived whole. Entries that cannot be read are noted in
        `unreadable`, those that change in *changing*."""
        parts: dict[str, list[str]] = {path: [] for path in new}
        failed: set[str] = set()
        for sent in ordered(self._pieces(new, failed)):
            if sent.part:
                parts[sent.path].append(sent.part)
                self._note(sent.size_bytes)
                continue
            failed.add(top_of(sent.path))
            if sent.fault:
                self._refuse(top_of(sent.path), sent.fault)
            else:
                changing.add(top_of(sent.path))
        known = own.entries.keys() | own.unreadable.keys() | {top_of(path) for path in self._last.files}
        return {
            path: File(
                size_bytes=found.size_bytes,
                mtime_ns=found.mtime_ns,
                mode=found.mode,
                parts=tuple(parts[path]),
                link=found.link,
                **self._origin(path, found, own),
                points_to=tuple(sorted(known.intersection(pointers.get(path, ())))),
            )
            for path, found in new.items()
            if top_of(path) not in failed
        }

    def _origin(self, path: str, found: Found, own: Scan) -> dict[str, Any]:
        """Return `since` and `left` of the file *path*: those that it had, if only parts of it were missing."""
        if self._is_as_last(path, found):
            return {"since": self._last.files[path].since, "left": self._last.files[path].left}
        left = retention.is_left(own.entries[top_of(path)], self._began_s)
        return {"since": self._last.number + 1, "left": left}

    def _pieces(self, new: Mapping[str, Found], failed: Set[str]) -> Iterator[Callable[[], _Sent]]:
        for path, found in new.items():
            for start in range(0, found.size_bytes, PIECE_BYTES):
                if top_of(path) not in failed:
                    yield partial(self._send, path, start, min(PIECE_BYTES, found.size_bytes - start))

    def _send(self, path: str, start: int, size_bytes: int) -> _Sent:
        """Upload the part of *path* from *start* on, unless it is there. A part of another size is never sent."""
        try:
            content = read(self._folder / path, start, size_bytes)
        except FileNotFoundError:
            return _Sent(path=path)
        except OSError as error:
            return _Sent(path=path, fault=reason(error))
        if len(content) != size_bytes:
            return _Sent(path=path)
        part = hashlib.sha256(content).hexdigest()
        if self._known.get(part) != size_bytes:  # A disk that lost its power may have kept less of it.
            self._store.write(self._place.below(f"parts/{part}").key, content)
            self._known[part] = size_bytes
        return _Sent(path=path, part=part, size_bytes=size_bytes)

    def _collect(self) -> None:
        """Delete the parts that neither this manifest nor the one before it names: a host may be reading that."""
        fresh = {part for part, changed_s in self._foreign.items() if time.time() - changed_s < FRESH_S}
        unused = self._known.keys() - self._last.parts - self._before - fresh
        self._store.delete(self._place.below(f"parts/{part}").key for part in sorted(unused))
        for part in unused:
            del self._known[part]
