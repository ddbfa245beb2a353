"""Restores a checkpoint folder from storage before the script starts.

Every host gets the files of all hosts, as on SageMaker: what rank 0 saved for all is then there for each rank.
If several hosts have a file of the same path, a host gets its own, else that of the lowest rank; a file or link of one
host and a folder of another are of the same path, too. So nothing is ever written through a link. Files come into
STAGING; they take their places once all are whole, so a stop in between leaves nothing half restored, and the next try
fetches only the parts that are missing. Hosts may share the folder: one of them restores it, and the others wait for it
and find everything there.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from toolkit import folders, paths
from toolkit.errors import PlatformError, UserError
from toolkit.storage import manifest as manifests
from toolkit.storage.download import Note, check_room, disk_error
from toolkit.storage.manifest import File, Manifest
from toolkit.storage.scan import LOCK, STAGING, look
from toolkit.storage.store import Store
from toolkit.storage.uri import Uri
from toolkit.storage.work import ordered

TRIES = 3
LOOK_S = 0.5


class _Wanted:
    """A file to fetch, and its place in the staging folder."""

    def __init__(self, path: str, file: File, rank: int, staging: Path, part_bytes: int) -> None:
        self.path, self.file, self.rank, self.part_bytes = path, file, rank, part_bytes
        digest = hashlib.sha256(b"\0".join((os.fsencode(path), *(part.encode() for part in file.parts)))).hexdigest()
        self.place = staging / digest[:40]
        self.is_begun = folders.status(self.place) is not None


def restore(store: Store, root: Uri, rank: int, folder: Path, note: Note) -> tuple[int, int]:
    """Restore *folder* for the host *rank*; return (files, bytes) that were fetched, (0, 0) if storage has none.

    A file that is there with the same size and time is kept, and so is whatever is newer: a file, link or folder in
    the place of another kind, too.

    Raises:
        UserError: there is no such bucket.
        ContractError: a manifest is damaged.
        PlatformError: the storage cannot be reached, a part is damaged or missing, or the disk is full.
    """
    for left in range(TRIES - 1, -1, -1):
        try:
            return _restore(store, root, rank, folder, note)
        except UserError as error:
            # Another job replaced a manifest meanwhile, and has removed the parts of the old one.
            if not left or not manifests.ranks(store, root):
                message = f"a part of a checkpoint is missing: {error}"
                raise PlatformError(message, where=str(root), hint=manifests.DAMAGED) from None
        except OSError as error:
            raise disk_error(error, folder, "used") from None
    raise AssertionError("not reached")


def _restore(store: Store, root: Uri, rank: int, folder: Path, note: Note) -> tuple[int, int]:
    folder.mkdir(parents=True, exist_ok=True)
    of_hosts = all_of(store, root)
    if not _wanted(of_hosts, rank, folder) and not folders.may_exist(folder / STAGING, follow_links=False):
        return 0, 0
    with _alone(folder, note) as note_for_all:
        wanted = _wanted(of_hosts, rank, folder)
        if wanted:
            _fetch_all(store, root, wanted, folder, note_for_all)
        shutil.rmtree(folder / STAGING, ignore_errors=True)
    return len(wanted), sum(each.file.size_bytes for each in wanted)


def _wanted(of_hosts: dict[int, Manifest], rank: int, folder: Path) -> list[_Wanted]:
    """Return what the host *rank* gets of *of_hosts* and *folder* does not have."""
    there = _There(folder)
    return [
        _Wanted(path, file, owner, folder / STAGING, part_bytes)
        for path, (file, owner, part_bytes) in chosen(of_hosts, rank).items()
        if not there.keeps(path, file, of_hosts[owner].written_s)
    ]


def _fetch_all(store: Store, root: Uri, wanted: list[_Wanted], folder: Path, note: Note) -> None:
    """Fetch *wanted*, and let all take their places in *folder*."""
    staging = folder / STAGING
    _clear(staging, {each.place for each in wanted})
    begun_bytes = sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in folders.entries(staging))
    check_room(folder, sum(each.file.size_bytes for each in wanted) - begun_bytes)
    for size_bytes in ordered(_pieces(store, root, wanted)):
        note(size_bytes)
    for each in wanted:
        _check_size(each)
    made: set[str] = set()
    for each in wanted:
        _make_way(folder, each.path, made)
        _place(each, folder / each.path)


@contextmanager
def _alone(folder: Path, note: Note) -> Iterator[Note]:
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
    there = folders.status(path, follow_links=False)
    if there is not None and not stat.S_ISREG(there.st_mode):
        folders.remove(path)  # Whatever a script has put there.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            return fd
        os.close(fd)
        return -1
    there = folders.status(path, follow_links=False)
    if there is not None and os.path.samestat(there, os.fstat(fd)):
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


def all_of(store: Store, root: Uri) -> dict[int, Manifest]:
    """Return the manifest of each host by its rank."""
    found = {rank: manifests.read(store, root, rank) for rank in manifests.ranks(store, root)}
    return {rank: manifest for rank, manifest in found.items() if manifest is not None}


def chosen(of_hosts: dict[int, Manifest], rank: int) -> dict[str, tuple[File, int, int]]:
    """Return (file, rank of its host, bytes of a part) by path, for the host *rank*."""
    found: dict[str, tuple[File, int, int]] = {}
    parents: set[str] = set()
    for owner in sorted(of_hosts, key=lambda each: (each != rank, each)):
        for path, file in of_hosts[owner].files.items():
            above = _above(path)
            if path not in found and path not in parents and not any(parent in found for parent in above):
                found[path] = (file, owner, of_hosts[owner].part_bytes)
                parents.update(above)
    return found


def _above(path: str) -> list[str]:
    """Return the folders above *path*, from the top: a and a/b for a/b/c."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


class _There:
    """What *folder* has before the restore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_parents: dict[str, os.stat_result | None] = {}

    def keeps(self, path: str, file: File, written_s: float) -> bool:
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
        found = look(place)
        if found is None:
            return False
        if file.link or found.link:
            return found.link == file.link or status.st_mtime_ns > stored_ns
        return found.mtime_ns > stored_ns or (found.mtime_ns, found.size_bytes) == (stored_ns, file.size_bytes)


def _make_way(folder: Path, path: str, made: set[str]) -> None:
    """Create the folders above *path*, those in *made* aside. A file or link in the place of one is removed, and so is
    a folder at *path*."""
    for parent in _above(path):
        if parent in made:
            continue
        status = folders.status(folder / parent, follow_links=False)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            (folder / parent).unlink()
        (folder / parent).mkdir(exist_ok=True)
        made.add(parent)
    status = folders.status(folder / path, follow_links=False)
    if status is not None and stat.S_ISDIR(status.st_mode):
        folders.remove(folder / path)


def _pieces(store: Store, root: Uri, wanted: list[_Wanted]) -> Iterator[Callable[[], int]]:
    for each in wanted:
        if each.file.link:
            continue
        if each.is_begun:
            each.place.chmod(0o600)  # An earlier try may have ended just before it took its place, with its own mode.
        fd = os.open(each.place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, each.file.size_bytes)
        os.close(fd)
        for number, part in enumerate(each.file.parts):
            yield partial(_fetch, store, manifests.folder(root, each.rank).below(f"parts/{part}"), each, number, part)


def _fetch(store: Store, uri: Uri, wanted: _Wanted, number: int, part: str) -> int:
    """Fetch one part into its place, unless an earlier try has; return its bytes."""
    at = number * wanted.part_bytes
    size_bytes = min(wanted.part_bytes, wanted.file.size_bytes - at)
    with wanted.place.open("r+b", buffering=0) as file:
        if wanted.is_begun and hashlib.sha256(os.pread(file.fileno(), size_bytes, at)).hexdigest() == part:
            return size_bytes
        found = store.find(uri.key)
        if found is None:
            raise UserError("expected a part, found none", where=str(uri))
        if found.size_bytes != size_bytes:
            message = f"the part is damaged: expected {size_bytes:,} bytes, found {found.size_bytes:,}"
            raise PlatformError(message, where=str(uri), hint=manifests.DAMAGED)
        content = store.piece(found, 0, found.size_bytes)
        if hashlib.sha256(content).hexdigest() != part:
            message = "the part is damaged: its SHA-256 is another"
            raise PlatformError(message, where=str(uri), hint=manifests.DAMAGED)
        done = 0
        while done < len(content):
            done += os.pwrite(file.fileno(), content[done:], at + done)
    return size_bytes


def _check_size(wanted: _Wanted) -> None:
    """Check that what has come of *wanted* is as large as its manifest says.

    Raises:
        PlatformError: it is not.
    """
    size_bytes = 0 if wanted.file.link else wanted.place.stat().st_size
    if size_bytes != wanted.file.size_bytes:
        message = f"{paths.shown(wanted.path)}: expected {wanted.file.size_bytes:,} bytes, found {size_bytes:,}"
        raise PlatformError(message, where=str(wanted.place), hint="Check the disk.")


def _place(wanted: _Wanted, path: Path) -> None:
    if wanted.file.link:
        wanted.place.unlink(missing_ok=True)
        wanted.place.symlink_to(wanted.file.link)
    else:
        wanted.place.chmod(wanted.file.mode)
        os.utime(wanted.place, ns=(wanted.file.mtime_ns, wanted.file.mtime_ns))
    wanted.place.replace(path)
