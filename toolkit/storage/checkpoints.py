"""Uploads a checkpoint folder while the script runs, so that storage always has whole checkpoints.

The unit is an entry at the top of the folder: a file, or a folder with all below it. An entry is uploaded once it has
settled: nothing in it has changed for SETTLE_S, and no process has a file of it open for writing. Until then storage
keeps the entry's last version. Entries change together if they can: while any is unsettled, the others wait up to
PATIENCE_S. The manifest is written last, and only if the files did not change meanwhile; then parts that neither it nor
the manifest before it names are deleted. A host uploads the files that it wrote itself, not those that it restored from
another host.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from toolkit.storage import manifest as manifests
from toolkit.storage.download import Note
from toolkit.storage.manifest import File, Manifest
from toolkit.storage.restore import all_of
from toolkit.storage.scan import Entry, Found, being_written, look, scan
from toolkit.storage.store import PIECE_BYTES, Store
from toolkit.storage.uri import Uri
from toolkit.storage.work import ordered

SETTLE_S = 5.0
PATIENCE_S = 60.0


class Checkpoints:
    """The checkpoint folder of the host *rank*, called *host*, and its place below *root*.

    *open_file*: where the names of entries that are being written are kept, for `finish` in another process.

    Raises (each method too):
        PlatformError: the storage cannot be reached.
        ContractError: a manifest is damaged.
    """

    def __init__(
        self, store: Store, root: Uri, folder: Path, *, rank: int, host: str, open_file: Path, note: Note
    ) -> None:
        self._store, self._root, self._folder, self._host, self._note = store, root, folder, host, note
        self._place = manifests.folder(root, rank)
        self._rank = rank
        self._open_file = open_file
        of_hosts = all_of(store, root)
        self._last = of_hosts.pop(rank, Manifest(host=host, written_s=0.0))
        self._before: set[str] = set()
        self._others = {path: file for manifest in of_hosts.values() for path, file in manifest.files.items()}
        prefix = self._place.below("parts").key
        self._known = {each.key.rpartition("/")[2] for each in store.list(prefix)}
        self._waits_since_s: float | None = None
        self._written: frozenset[str] = frozenset()

    def look(self, now_s: float) -> bool:
        """Upload what has changed and settled; return True if a manifest was written. *now_s*: since the epoch."""
        found = scan(self._folder)
        if self._files(found) == self._uploaded():
            self._waits_since_s = None
            return False
        written = being_written(self._folder)
        if written != self._written:
            self._written = written
            self._open_file.write_bytes(msgspec.json.encode(sorted(written)))
        unsettled = written | {name for name, entry in found.items() if entry.changed_s > now_s - SETTLE_S}
        if unsettled:
            self._waits_since_s = self._waits_since_s or now_s
            if now_s - self._waits_since_s < PATIENCE_S:
                return False
        self._waits_since_s = None
        return self._upload(found, unsettled)

    def finish(self, *, clean: bool, ended_s: float) -> bool:
        """Upload what has changed when the script has ended, at *ended_s*; return True if a manifest was written.

        Unless it ended *clean*, entries that it may have been writing at its end keep their last version.
        """
        found = scan(self._folder)
        unsettled: set[str] = set()
        if not clean:
            unsettled = {name for name, entry in found.items() if entry.changed_s > ended_s - SETTLE_S}
            try:
                unsettled |= set(msgspec.json.decode(self._open_file.read_bytes(), type=list[str]))
            except (OSError, msgspec.DecodeError):
                pass  # None was open.
        return self._upload(found, unsettled)

    def left_out(self) -> tuple[str, ...]:
        """Return the names of entries whose newest content is not in storage."""
        uploaded = self._uploaded()
        return tuple(
            name
            for name, entry in scan(self._folder).items()
            if any(uploaded.get(path) != found for path, found in self._files({name: entry}).items())
        )

    def _uploaded(self) -> dict[str, Found]:
        return {path: _as_found(file) for path, file in self._last.files.items()}

    def _files(self, entries: dict[str, Entry]) -> dict[str, Found]:
        """Return the files of *entries* that are this host's own."""
        return {
            path: found
            for entry in entries.values()
            for path, found in entry.files.items()
            if path in self._last.files or path not in self._others or _as_found(self._others[path]) != found
        }

    def _upload(self, entries: dict[str, Entry], unsettled: Iterable[str]) -> bool:
        """Make storage's version that of *entries*; those that are *unsettled*, or change meanwhile, keep theirs."""
        kept = set(unsettled)
        wanted = self._files({name: entry for name, entry in entries.items() if name not in kept})
        uploaded = self._uploaded()
        files = {path: self._last.files[path] for path, found in wanted.items() if uploaded.get(path) == found}
        files |= {path: File(link=found.link) for path, found in wanted.items() if found.link}
        files |= self._sent({path: found for path, found in wanted.items() if path not in files})
        kept |= {top_of(path) for path, found in wanted.items() if look(self._folder / path) != found}
        files = {path: file for path, file in files.items() if top_of(path) not in kept}
        files |= {path: file for path, file in self._last.files.items() if top_of(path) in kept}
        if files == self._last.files:
            return False
        new = Manifest(host=self._host, written_s=time.time(), files=dict(sorted(files.items())))
        self._store.write(self._place.below(manifests.NAME).key, msgspec.json.encode(new))
        self._before, self._last = self._last.parts, new
        self._collect()
        return True

    def _sent(self, new: dict[str, Found]) -> dict[str, File]:
        """Upload the files *new*, and return them."""
        parts: dict[str, list[str]] = {path: [] for path in new}
        for path, part, size_bytes in ordered(self._pieces(new)):
            parts[path].append(part)
            self._note(size_bytes)
        return {
            path: File(size_bytes=found.size_bytes, mtime_ns=found.mtime_ns, mode=found.mode, parts=tuple(parts[path]))
            for path, found in new.items()
        }

    def _pieces(self, new: dict[str, Found]) -> Iterator[Callable[[], tuple[str, str, int]]]:
        for path, found in new.items():
            for at in range(0, found.size_bytes, PIECE_BYTES):
                yield partial(self._send, path, at)

    def _send(self, path: str, at: int) -> tuple[str, str, int]:
        """Upload the part of *path* that begins at byte *at*, unless it is there; return its path, name and bytes."""
        try:
            with (self._folder / path).open("rb", buffering=0) as file:
                content = os.pread(file.fileno(), PIECE_BYTES, at)
        except OSError:
            content = b""  # It is removed: `_upload` sees that the file has changed.
        part = hashlib.sha256(content).hexdigest()
        if part not in self._known:
            self._store.write(self._place.below(f"parts/{part}").key, content)
            self._known.add(part)
        return path, part, len(content)

    def _collect(self) -> None:
        """Delete the parts that neither this manifest nor the one before it names: a host may be reading that."""
        unused = self._known - self._last.parts - self._before
        self._store.delete(self._place.below(f"parts/{part}").key for part in sorted(unused))
        self._known -= unused


def top_of(path: str) -> str:
    """Return the entry that holds *path*."""
    return path.partition("/")[0]


def _as_found(file: File) -> Found:
    if file.link:
        return Found(size_bytes=0, mtime_ns=0, mode=0o777, link=file.link)
    return Found(size_bytes=file.size_bytes, mtime_ns=file.mtime_ns, mode=file.mode)
