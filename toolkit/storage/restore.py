"""Restores a checkpoint folder from storage before the script starts.

Every host gets the files of all hosts, as on SageMaker: what rank 0 saved for all is then there for each rank.
If several hosts have a file of the same path, a host gets its own, else that of the lowest rank; a file or link of one
host and a folder of another are of the same path, too. So nothing is ever written through a link. Files come into
STAGING; they take their places once all are whole, so a stop in between leaves nothing half restored, and the next try
fetches only the parts that are missing (of files that are ordinary objects, all). Hosts may share the folder: one of
them restores it, and the others wait for it and find everything there.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from toolkit import folders, paths
from toolkit.errors import PlatformError, UserError
from toolkit.storage import manifest as manifests
from toolkit.storage.download import Note, check_room, disk_error
from toolkit.storage.manifest import Manifest, StoredFile
from toolkit.storage.scan import LOCK, STAGING, file_state
from toolkit.storage.store import PIECE_BYTES, ReplacedError, StorageClient, StoredObject
from toolkit.storage.uri import Uri
from toolkit.storage.work import run_ordered

TRIES = 3
LOOK_S = 0.5


class _Download:
    """A file to fetch, and its place in the staging folder."""

    def __init__(self, path: str, file: StoredFile, rank: int, staging: Path, part_bytes: int) -> None:
        self.path, self.file, self.rank, self.part_bytes = path, file, rank, part_bytes
        contents = (file.object.encode(), *(part.encode() for part in file.parts))
        digest = hashlib.sha256(b"\0".join((os.fsencode(path), *contents))).hexdigest()
        self.place = staging / digest[:40]
        self.is_begun = folders.status(self.place) is not None


def restore(store: StorageClient, root: Uri, rank: int, folder: Path, note: Note) -> tuple[int, int]:
    """Restore *folder* for the host *rank*; return (files, bytes) that were fetched, (0, 0) if storage has none.

    A file that is there with the same size and time is kept, and so is whatever is newer: a file, link or folder in
    the place of another kind, too.

    Raises:
        UserError: there is no such bucket.
        ContractError: a manifest is damaged.
        PlatformError: the storage cannot be reached, a part is damaged or missing, or the disk is full.
    """
    for tries_left in range(TRIES - 1, -1, -1):
        try:
            return _restore(store, root, rank, folder, note)
        except (UserError, ReplacedError) as error:
            # Another host replaced a manifest or an object meanwhile, or has removed the parts of the old manifest.
            if not tries_left or not manifests.ranks(store, root):
                is_there = isinstance(error, ReplacedError)
                message = f"a part of a checkpoint is {'replaced again and again' if is_there else 'missing'}: {error}"
                raise PlatformError(message, where=str(root), hint=manifests.DAMAGED_HINT) from None
        except OSError as error:
            raise disk_error(error, folder, "used") from None
    raise AssertionError("not reached")


def _restore(store: StorageClient, root: Uri, rank: int, folder: Path, note: Note) -> tuple[int, int]:
    folder.mkdir(parents=True, exist_ok=True)
    of_hosts = manifests.read_all(store, root, folder)
    if not _downloads_for(of_hosts, rank, folder) and not folders.may_exist(folder / STAGING, follow_links=False):
        return 0, 0
    with _hold_lock(folder, note) as note_for_all:
        downloads = _downloads_for(of_hosts, rank, folder)
        if downloads:
            _fetch_all(store, root, downloads, folder, note_for_all)
        shutil.rmtree(folder / STAGING, ignore_errors=True)
    return len(downloads), sum(download.file.size_bytes for download in downloads)


def fetch_files(
    store: StorageClient,
    root: Uri,
    files_by_path: Mapping[str, tuple[StoredFile, int, int]],
    folder: Path,
) -> int:
    """Bring files, as `choose_files` gives them, to their paths in *folder*; return how many were not there.

    Unlike `restore`, this replaces what is newer in the folder.

    Raises:
        UserError: an object or a part is missing.
        PlatformError: the storage cannot be reached, a part is damaged, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _hold_lock(folder, lambda _: None) as note:
            downloads = [
                _Download(path, file, owner, folder / STAGING, part_bytes)
                for path, (file, owner, part_bytes) in files_by_path.items()
                if not _is_there(folder / path, file)
            ]
            if downloads:
                _fetch_all(store, root, downloads, folder, note)
            shutil.rmtree(folder / STAGING, ignore_errors=True)
    except OSError as error:
        raise disk_error(error, folder) from None
    return len(downloads)


def _is_there(place: Path, file: StoredFile) -> bool:
    state = file_state(place)
    return state is not None and (state.size_bytes, state.mtime_ns, state.link) == (
        file.size_bytes,
        file.mtime_ns,
        file.link,
    )


def _downloads_for(of_hosts: dict[int, Manifest], rank: int, folder: Path) -> list[_Download]:
    """Return the files of *of_hosts* that the host *rank* gets and *folder* lacks."""
    folder_state = _FolderState(folder)
    return [
        _Download(path, file, owner, folder / STAGING, part_bytes)
        for path, (file, owner, part_bytes) in choose_files(of_hosts, rank).items()
        if not folder_state.keeps(path, file, of_hosts[owner].written_s)
    ]


def _fetch_all(store: StorageClient, root: Uri, downloads: list[_Download], folder: Path, note: Note) -> None:
    """Fetch *downloads*, then move all of them to their places in *folder*."""
    staging = folder / STAGING
    _clear(staging, {download.place for download in downloads})
    begun_bytes = sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in folders.entries(staging))
    check_room(folder, sum(download.file.size_bytes for download in downloads) - begun_bytes)
    for size_bytes in run_ordered(_pieces(store, root, downloads)):
        note(size_bytes)
    for download in downloads:
        _check_size(download)
    created: set[str] = set()
    for download in downloads:
        _clear_path(folder, download.path, created)
        _move_into_place(download, folder / download.path)


@contextmanager
def _hold_lock(folder: Path, note: Note) -> Iterator[Note]:
    """Hold the lock of *folder*, which hosts may share. What this gives instead of *note* changes the lock's time, too:
    so those who wait *note* the progress."""
    path = folder / LOCK
    seen_ns = 0
    while (fd := _locked(path)) < 0:
        lock = folders.status(path, follow_links=False)
        now_ns = lock.st_mtime_ns if lock else seen_ns
        if now_ns != seen_ns:
            note(0)
        seen_ns = now_ns
        threading.Event().wait(LOOK_S)

    def note_for_all(size_bytes: int) -> None:
        note(size_bytes)
        with suppress(OSError):
            os.utime(fd)

    try:
        yield note_for_all
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(fd)


def _locked(path: Path) -> int:
    """Return a file descriptor that holds the lock *path*, -1 if another process has it. Where the file system has no
    locks, nobody waits."""
    folder_state = folders.status(path, follow_links=False)
    if folder_state is not None and not stat.S_ISREG(folder_state.st_mode):
        folders.remove(path)  # Whatever a script has put there.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            return fd
        os.close(fd)
        return -1
    folder_state = folders.status(path, follow_links=False)
    if folder_state is not None and os.path.samestat(folder_state, os.fstat(fd)):
        return fd
    os.close(fd)  # The one that had it has removed it.
    return -1


def _clear(staging: Path, places: set[Path]) -> None:
    """Make *staging* a folder with nothing but files at *places*, whatever a script has put there."""
    if not folders.is_dir(staging, follow_links=False):
        folders.remove(staging)
    staging.mkdir(exist_ok=True)
    for entry in folders.entries(staging):
        if Path(entry.path) not in places or not entry.is_file(follow_symlinks=False):
            folders.remove(entry.path)


def choose_files(of_hosts: dict[int, Manifest], rank: int) -> dict[str, tuple[StoredFile, int, int]]:
    """Return (file, rank of its host, bytes of a part) by path, for the host *rank*."""
    chosen: dict[str, tuple[StoredFile, int, int]] = {}
    parents: set[str] = set()
    for owner in sorted(of_hosts, key=lambda host: (host != rank, host)):
        for path, file in of_hosts[owner].files.items():
            above = _above(path)
            if path not in chosen and path not in parents and not any(parent in chosen for parent in above):
                chosen[path] = (file, owner, of_hosts[owner].part_bytes)
                parents.update(above)
    return chosen


def _above(path: str) -> list[str]:
    """Return the folders above *path*, from the top: a and a/b for a/b/c."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


class _FolderState:
    """The content of *folder* before the restore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_parents: dict[str, os.stat_result | None] = {}

    def keeps(self, path: str, file: StoredFile, written_s: float) -> bool:
        """True if what the folder has at *path*, or in the place of a folder above it, is as new as *file*, of a
        manifest that was written at *written_s*.

        Raises:
            OSError: it cannot be read.
        """
        # A link in storage has no time. One that was made after the manifest is newer.
        stored_ns = int(written_s * 1e9) if file.link else file.mtime_ns
        for parent in _above(path):
            if parent not in self._of_parents:
                self._of_parents[parent] = folders.status(self._folder / parent, follow_links=False)
            status = self._of_parents[parent]
            if status is None:
                return False
            if not stat.S_ISDIR(status.st_mode):
                return status.st_mtime_ns > stored_ns
        place = self._folder / path
        status = folders.status(place, follow_links=False)
        if status is None:
            return False
        if stat.S_ISDIR(status.st_mode):
            below = folders.walk(place, folders.fail)
            times_ns = (e.stat(follow_symlinks=False).st_mtime_ns for e in below if not e.is_dir(follow_symlinks=False))
            return max(times_ns, default=0) > stored_ns
        state = file_state(place)
        if state is None:
            return False
        if file.link or state.link:
            return state.link == file.link or status.st_mtime_ns > stored_ns
        return state.mtime_ns > stored_ns or (state.mtime_ns, state.size_bytes) == (stored_ns, file.size_bytes)


def _clear_path(folder: Path, path: str, created: set[str]) -> None:
    """Create the folders above *path*, those in *created* aside. A file or link in the place of one is removed, and so
    is a folder at *path*."""
    for parent in _above(path):
        if parent in created:
            continue
        status = folders.status(folder / parent, follow_links=False)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            (folder / parent).unlink()
        (folder / parent).mkdir(exist_ok=True)
        created.add(parent)
    status = folders.status(folder / path, follow_links=False)
    if status is not None and stat.S_ISDIR(status.st_mode):
        folders.remove(folder / path)


def _pieces(store: StorageClient, root: Uri, downloads: list[_Download]) -> Iterator[Callable[[], int]]:
    for download in downloads:
        if download.file.link:
            continue
        if download.is_begun:
            # An earlier try may have ended just before it took its place, with its own mode.
            download.place.chmod(0o600)
        fd = os.open(download.place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, download.file.size_bytes)
        os.close(fd)
        if download.file.object:
            yield from _object_pieces(store, root.below(download.file.object), download)
        for number, part in enumerate(download.file.parts):
            yield partial(
                _fetch, store, manifests.folder(root, download.rank).below(f"parts/{part}"), download, number, part
            )


def _fetch(store: StorageClient, uri: Uri, download: _Download, number: int, part: str) -> int:
    """Fetch one part into its place, unless an earlier try has; return its bytes."""
    offset = number * download.part_bytes
    size_bytes = min(download.part_bytes, download.file.size_bytes - offset)
    with download.place.open("r+b", buffering=0) as file:
        if download.is_begun and hashlib.sha256(os.pread(file.fileno(), size_bytes, offset)).hexdigest() == part:
            return size_bytes
        stored = store.find(uri.key)
        if stored is None:
            raise UserError("expected a part, found none", where=str(uri))
        if stored.size_bytes != size_bytes:
            message = f"the part is damaged: expected {size_bytes:,} bytes, found {stored.size_bytes:,}"
            raise PlatformError(message, where=str(uri), hint=manifests.DAMAGED_HINT)
        content = store.piece(stored, 0, stored.size_bytes)
        if hashlib.sha256(content).hexdigest() != part:
            message = "the part is damaged: its SHA-256 is another"
            raise PlatformError(message, where=str(uri), hint=manifests.DAMAGED_HINT)
        _write_at(file.fileno(), content, offset)
    return size_bytes


def _object_pieces(store: StorageClient, uri: Uri, download: _Download) -> Iterator[Callable[[], int]]:
    """Yield what fetches the object *uri*: a small one at once, so that many of them come at a time."""
    if download.file.size_bytes <= PIECE_BYTES:
        yield partial(_fetch_object, store, uri, download)
        return
    stored = _find_object(store, uri, download)
    for start in range(0, stored.size_bytes, PIECE_BYTES):
        yield partial(_fetch_range, store, stored, download, start)


def _fetch_object(store: StorageClient, uri: Uri, download: _Download) -> int:
    stored = _find_object(store, uri, download)
    return sum(_fetch_range(store, stored, download, start) for start in range(0, stored.size_bytes, PIECE_BYTES))


def _find_object(store: StorageClient, uri: Uri, download: _Download) -> StoredObject:
    """Return the object *uri* as it is now, and prepare its place. One that was replaced after its manifest was written
    is a newer file, and whole."""
    stored = store.find(uri.key)
    if stored is None:
        raise UserError("expected an object, found none", where=str(uri))
    if stored.size_bytes != download.file.size_bytes:
        download.file = msgspec.structs.replace(
            download.file, size_bytes=stored.size_bytes, mtime_ns=stored.changed_ns or download.file.mtime_ns
        )
    os.truncate(download.place, stored.size_bytes)
    return stored


def _fetch_range(store: StorageClient, stored: StoredObject, download: _Download, start: int) -> int:
    content = store.piece(stored, start, min(start + PIECE_BYTES, stored.size_bytes))
    with download.place.open("r+b", buffering=0) as file:
        _write_at(file.fileno(), content, start)
    return len(content)


def _write_at(fd: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(fd, content[done:], offset + done)


def _check_size(download: _Download) -> None:
    """Check that what has come of *download* is as large as its manifest says.

    Raises:
        PlatformError: it is not.
    """
    size_bytes = 0 if download.file.link else download.place.stat().st_size
    if size_bytes != download.file.size_bytes:
        message = f"{paths.shown(download.path)}: expected {download.file.size_bytes:,} bytes, found {size_bytes:,}"
        raise PlatformError(message, where=str(download.place), hint="Check the disk.")


def _move_into_place(download: _Download, path: Path) -> None:
    if download.file.link:
        download.place.unlink(missing_ok=True)
        download.place.symlink_to(download.file.link)
    else:
        download.place.chmod(download.file.mode)
        os.utime(download.place, ns=(download.file.mtime_ns, download.file.mtime_ns))
    download.place.replace(path)
