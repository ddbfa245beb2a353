"""Fetches objects into files. A download that was cut off continues: a hidden file beside the object's own holds the
bytes from the start on, and another one says of which version of the object they are.

A file gets the object's time. So a later fetch into the same folder knows which objects are others by now, and removes
the files of those that storage no longer has: `.NAME.fetched` beside the folder names what came. Files that a script
put there stay.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from toolkit import files, paths
from toolkit.errors import PlatformError, UserError
from toolkit.folders import as_absent, exists, is_file
from toolkit.records import encode
from toolkit.storage.store import PIECE_BYTES, StorageClient, StoredObject
from toolkit.storage.uri import Uri
from toolkit.storage.work import run_ordered

Note = Callable[[int], None]
# The step of the times that some file systems store.
TIME_STEP_NS = 2 * 10**9
MOST_NAMES_BYTES = 1 << 30


class PathConflictError(UserError):
    """Two objects cannot be files of one folder."""


def fetch(store: StorageClient, uri: Uri, into: Path, note: Note) -> Path:
    """Fetch *uri* into the folder *into*: the object of this key as one file, else all objects below it as a tree.

    Return the file, or *into* itself for a tree. *note* is called with the bytes of each piece that came.

    Raises:
        UserError: there is nothing, or a key cannot be a path below a folder.
        PlatformError: the storage cannot be reached, or the disk is full.
    """
    stored = store.find(uri.key) if uri.key else None
    try:
        into.mkdir(parents=True, exist_ok=True)
        if stored is not None:
            check_room(into, stored.size_bytes)
            path = into / uri.key.rpartition("/")[2]
            _fetch_large(store, stored, path, note)
            return path
        fetch_tree(store, uri, into, note)
    except OSError as error:
        raise disk_error(error, into) from None
    return into


def fetch_tree(store: StorageClient, uri: Uri, into: Path, note: Note) -> None:
    """Fetch all objects below *uri* into the folder *into*; those already there are kept if size and time are the same.

    Raises:
        UserError: there are none, or a key cannot be a path.
        PlatformError: the storage cannot be reached, or the disk is full.
    """
    listed = list_tree(store, uri)
    _remove_others({name for _, name in listed}, into)
    downloads = [(stored, into / name) for stored, name in listed]
    check_room(into, sum(stored.size_bytes for stored, path in downloads if not _is_there(stored, path)))
    small = [pair for pair in downloads if pair[0].size_bytes <= PIECE_BYTES]
    large = [pair for pair in downloads if pair[0].size_bytes > PIECE_BYTES]
    for size_bytes in run_ordered(partial(_fetch_small, store, stored, path) for stored, path in small):
        note(size_bytes)
    for stored, path in large:
        if not _is_there(stored, path):
            _fetch_large(store, stored, path, note)


def list_names(store: StorageClient, uri: Uri) -> list[str]:
    """Return the paths of the files that `fetch` would make.

    Raises:
        UserError: there is nothing.
        PlatformError: the storage cannot be reached.
    """
    if uri.key and store.find(uri.key) is not None:
        return [uri.key.rpartition("/")[2]]
    return [name for _, name in list_tree(store, uri)]


def list_tree(store: StorageClient, uri: Uri) -> list[tuple[StoredObject, str]]:
    """Return the objects below *uri*, each with its path relative to it, sorted by path.

    Raises:
        UserError: there are none, or two of them cannot be files of one folder ("a" and "a/b").
    """
    objects = tree_of(store.list(uri.key), uri)
    if not objects:
        raise UserError("expected objects, found none", where=str(uri), hint="Correct the URI.")
    return objects


def tree_of(stored_objects: Iterable[StoredObject], uri: Uri) -> list[tuple[StoredObject, str]]:
    """Return *stored_objects*, which are below *uri*, each with its path relative to it, sorted by path.

    Raises:
        PathConflictError: two of them cannot be files of one folder ("a" and "a/b").
    """
    skip = len(uri.key) + 1 if uri.key else 0
    # A console makes an empty object whose key ends with "/" for a folder; obstore gives it without the slash.
    listed = sorted(((stored, stored.key[skip:]) for stored in stored_objects), key=lambda pair: pair[1])
    folders = {name[:index] for _, name in listed for index, letter in enumerate(name) if letter == "/"}
    objects = [(stored, name) for stored, name in listed if name and not (stored.size_bytes == 0 and name in folders)]
    both = next((name for _, name in objects if name in folders), "")
    if both:
        raise PathConflictError(
            f"{both!r} is an object, and a folder of others: it cannot be both on a disk", where=str(uri)
        )
    return objects


def _remove_others(names: set[str], into: Path) -> None:
    """Remove what earlier fetches brought to *into* and *names* lacks now, and record *names*."""
    list_ = into.with_name(f".{into.name}.fetched")
    try:
        fetched = set(msgspec.json.decode(files.read(list_, MOST_NAMES_BYTES), type=list[str]))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fetched = set()  # Nothing came yet.
    if names - fetched:  # Before any of it comes: this fetch may be killed.
        files.replace(list_, encode(sorted(names | fetched)))
    for name in fetched - names:
        path = into / name
        if is_file(path, as_absent):
            path.unlink()
            _remove_empty(path.parent, into)
    if fetched - names:
        files.replace(list_, encode(sorted(names)))


def _remove_empty(folder: Path, into: Path) -> None:
    """Remove *folder* below *into*, and those above it, while they are empty: storage has no empty folders."""
    while folder != into:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _is_there(stored: StoredObject, path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    later_ns = status.st_mtime_ns - stored.changed_ns
    is_of_then = not stored.changed_ns or not later_ns or (_is_coarse(status) and abs(later_ns) < TIME_STEP_NS)
    return status.st_size == stored.size_bytes and is_of_then


def _is_coarse(status: os.stat_result) -> bool:
    """True if the file system may have rounded the time in *status*."""
    return status.st_mtime_ns % 10**9 == 0


def _take_place(part: Path, stored: StoredObject, path: Path) -> None:
    if stored.changed_ns:
        os.utime(part, ns=(stored.changed_ns, stored.changed_ns))
    part.replace(path)


def _fetch_small(store: StorageClient, stored: StoredObject, path: Path) -> int:
    if _is_there(stored, path):
        return 0
    content = store.read(stored)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_file(path)
    part.write_bytes(content)
    _take_place(part, stored, path)
    return len(content)


def _fetch_large(store: StorageClient, stored: StoredObject, path: Path, note: Note) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_file(path)
    tag = part.with_name(f"{part.name}.tag")
    version = f"{stored.tag} {stored.size_bytes}"
    if not (stored.tag and exists(part) and exists(tag) and tag.read_text() == version):
        tag.unlink(missing_ok=True)
        part.write_bytes(b"")
        tag.write_text(version)
    with part.open("r+b") as file:
        start = min(os.fstat(file.fileno()).st_size, stored.size_bytes) // PIECE_BYTES * PIECE_BYTES
        file.truncate(start)
        file.seek(start)
        for content in run_ordered(_pieces(store, stored, start)):
            file.write(content)
            file.flush()
            note(len(content))
    _take_place(part, stored, path)
    tag.unlink(missing_ok=True)


def _pieces(store: StorageClient, stored: StoredObject, start: int) -> Iterator[Callable[[], memoryview]]:
    for start_byte in range(start, stored.size_bytes, PIECE_BYTES):
        yield partial(store.piece, stored, start_byte, min(start_byte + PIECE_BYTES, stored.size_bytes))


def partial_file(path: Path) -> Path:
    """Return the file that holds what has come of *path*: no other object's, and not longer than a name may be."""
    return path.with_name(f".toolkit-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.part")


def check_room(folder: Path, needed_bytes: int) -> None:
    """Check that *folder*'s disk has room for *needed_bytes*.

    Raises:
        PlatformError: it has not.
    """
    room = os.statvfs(folder)
    free_bytes = room.f_bavail * room.f_frsize
    if room.f_blocks and free_bytes < needed_bytes:  # Some file systems (NFS, FUSE) report 0 of 0 blocks.
        message = f"expected room for {needed_bytes:,} bytes, found {free_bytes:,}"
        raise PlatformError(message, where=str(folder), hint="Give the job a larger disk.")


def disk_error(error: OSError, folder: Path, verb: str = "written") -> PlatformError:
    """Return the error to raise for *error* of a file below *folder*. *verb*: what could not be done ("written")."""
    place = paths.shown(error.filename or folder)
    return PlatformError(f"cannot be {verb} ({error.strerror or error})", where=place, hint="Check the disk.")
