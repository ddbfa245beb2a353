"""Snapshots of packages: the set that requirements.txt installed is stored as one object, and unpacked by later starts.

The object `KEY.packages.gz` is gzip of a line of JSON (`Snapshot`) and the files' bytes, in the order of that line, so
it can hold neither links nor devices, and only names that were checked. KEY is a hash of all that decides which set
fits: requirements and options (train/source/snapshot_key.py), the interpreter, the platform and the image's packages.
The object is written in one request, whole or not at all; of several writers the last one wins.

All files come into a folder beside site-packages, and are compared with their SHA-256. Then they take their places,
metadata last: a package that pip finds has all of its files, also if the process is killed in between.
"""

import errno
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from toolkit import files, folders
from toolkit.errors import ToolkitError, UserError
from toolkit.records import Record, decode, encode
from toolkit.storage import download, installed
from toolkit.storage.download import Note
from toolkit.storage.installed import Environment
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import Uri

SUFFIX = ".packages.gz"
STAGING = ".toolkit-packages-"
# Level 1 packs three times faster than gzip's default, into 10 % more bytes.
LEVEL = 1
CHUNK_BYTES = 1 << 20
HEADER_BYTES = 64 << 20
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


class SnapshotError(Exception):
    """The snapshot cannot be used, or the set cannot be stored; the text says why."""


class _File(Record, frozen=True, kw_only=True):
    """A file of the set, and the SHA-256 of its content."""

    file: installed.PackageFile
    sha256: str


class Snapshot(Record, frozen=True, kw_only=True):
    """The first line of the object."""

    version: Literal[1] = 1
    """Of this format."""
    key: str
    """The key under which it is stored."""
    written_s: float
    """When the set was installed, seconds since the epoch."""
    installer: str
    """"pip" or "uv"."""
    metadata: tuple[str, ...]
    """The .dist-info folders below the prefix, one for each package."""
    files: tuple[_File, ...]


class _State(Record, frozen=True, kw_only=True):
    """The knowledge that a start leaves for its own `store_new`."""

    key: str
    before: dict[str, tuple[int, int]]
    """The packages before the installation (installed.read_state)."""
    replaces: str | None
    """The tag of a stored object that could not be used; None: there was none."""


class StoredSet(Record, frozen=True, kw_only=True):
    """A set of packages in storage."""

    place: str
    """The URI of its object."""
    written_s: float
    """When it was installed, seconds since the epoch."""
    installer: str
    """"pip" or "uv"."""
    packages: int
    """How many packages it has."""
    size_bytes: int
    """The bytes of its files, unpacked."""


def restore(
    store: StorageClient, folder: Uri, requirements_key: str, environment: Environment, state: Path, note: Note
) -> StoredSet | None:
    """Unpack the snapshot below *folder* for *requirements_key* into *environment*; return None if there is none.

    *state*: a folder for what comes, and for what `store_new` needs later.

    Raises:
        SnapshotError: it is damaged, or does not fit. Nothing has been changed.
        PlatformError: the storage cannot be reached, or the disk is full. An installer can go on from there.
    """
    try:
        key = make_key(requirements_key, environment)
        before = installed.read_state(environment.folders)
    except OSError as error:
        raise download.disk_error(error, Path(environment.prefix), "listed") from None
    place = folder.below(f"{key}{SUFFIX}")
    work = state / "packages"
    folders.remove(work)
    _remember(state, _State(key=key, before=before, replaces=None))
    stored = store.find(place.key)
    if stored is None:
        return None
    _remember(state, _State(key=key, before=before, replaces=stored.tag))
    try:
        path = download.fetch(store, place, work, note)
    except UserError:
        raise SnapshotError("it was removed meanwhile") from None
    try:
        with gzip.open(path) as content:
            snapshot = _read_header(content, key)
            _unpack(snapshot, content, environment, note)
    except _DAMAGE as error:
        raise SnapshotError(f"it is damaged or cut short ({error})") from None
    except OSError as error:
        raise download.disk_error(error, Path(environment.prefix)) from None
    finally:
        folders.remove(work)
    return StoredSet(
        place=str(place),
        written_s=snapshot.written_s,
        installer=snapshot.installer,
        packages=len(snapshot.metadata),
        size_bytes=sum(entry.file.size_bytes for entry in snapshot.files),
    )


def store_new(
    store: StorageClient,
    folder: Uri,
    installer: str,
    environment: Environment,
    now_s: float,
    state: Path,
    note: Note,
) -> StoredSet | None:
    """Store what was installed since `restore`; return None if nothing was, or another job has stored it meanwhile.

    Raises:
        SnapshotError: the set cannot be kept apart from the image's.
        PlatformError: the storage or a file cannot be read or written.
    """
    kept = decode(files.read(state / "packages.json"), _State, "packages.json")
    place = folder.below(f"{kept.key}{SUFFIX}")
    if not _may_write(store, place, kept):
        return None
    path = state / "packages.new"
    try:
        metadata = installed.find_new(kept.before, installed.read_state(environment.folders))
        if not metadata:
            return None
        snapshot = _describe(kept.key, metadata, installer, environment.prefix, now_s, note)
        size_bytes = sum(entry.file.size_bytes for entry in snapshot.files)
        download.check_room(state, size_bytes)
        _pack(snapshot, environment.prefix, path, note)
        if not _may_write(store, place, kept):
            return None
        store.upload(place.key, path, note=note)
    except installed.UnfitSetError as error:
        raise SnapshotError(str(error)) from None
    except OSError as error:
        raise download.disk_error(error, path, "read or written") from None
    finally:
        folders.remove(path)
    return StoredSet(
        place=str(place), written_s=now_s, installer=installer, packages=len(metadata), size_bytes=size_bytes
    )


def make_key(requirements_key: str, environment: Environment) -> str:
    """Return the key of the set for *environment*.

    Raises:
        OSError: the packages of the image cannot be listed.
    """
    names = installed.list_names(environment.search_path)
    facts = (requirements_key, environment.prefix, *environment.folders, *environment.facts, *names)
    return hashlib.sha256(encode(facts)).hexdigest()[:40]


def _remember(state: Path, kept: _State) -> None:
    try:
        files.replace(state / "packages.json", encode(kept))
    except OSError as error:
        raise download.disk_error(error, state) from None


def _may_write(store: StorageClient, place: Uri, kept: _State) -> bool:
    """True if nothing is at *place*, or still the object that could not be used."""
    stored = store.find(place.key)
    return stored is None or stored.tag == kept.replaces


def _describe(key: str, metadata: list[str], installer: str, prefix: str, now_s: float, note: Note) -> Snapshot:
    by_path = {file.path: file for one in metadata for file in installed.list_files(one, prefix)}
    entries = tuple(
        _File(file=file, sha256=_hash(Path(prefix, path), file.size_bytes, note))
        for path, file in sorted(by_path.items())
    )
    below = tuple(os.path.relpath(one, prefix) for one in metadata)
    return Snapshot(key=key, written_s=now_s, installer=installer, metadata=below, files=entries)


def _hash(path: Path, size_bytes: int, note: Note) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path, size_bytes):
        digest.update(chunk)
        note(0)
    return digest.hexdigest()


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of *path*, which has *size_bytes*.

    Raises:
        SnapshotError: it has more or less.
    """
    with files.opened(path) as file:
        left = size_bytes
        while chunk := file.read(min(max(left, 1), CHUNK_BYTES)):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
    if left:
        raise SnapshotError(f"{path} changed while it was read")


def _pack(snapshot: Snapshot, prefix: str, path: Path, note: Note) -> None:
    with path.open("wb") as raw, gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
        packed.write(encode(snapshot) + b"\n")
        for entry in snapshot.files:
            for chunk in _chunks(Path(prefix, entry.file.path), entry.file.size_bytes):
                packed.write(chunk)
                note(0)


def _read_header(content: gzip.GzipFile, key: str) -> Snapshot:
    line = content.readline(HEADER_BYTES)
    try:
        snapshot = decode(line, Snapshot, "the snapshot's first line")
    except ToolkitError as error:
        raise SnapshotError(str(error)) from None
    if snapshot.key != key:
        raise SnapshotError(f"it is of another set, {snapshot.key[:80]!r}")
    for path in (*snapshot.metadata, *(entry.file.path for entry in snapshot.files)):
        if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
            raise SnapshotError(f"it has a file outside of the environment, {path[:80]!r}")
    names = {entry.file.path for entry in snapshot.files}
    for path in snapshot.metadata:
        if not path.endswith(".dist-info") or f"{path}/RECORD" not in names:
            raise SnapshotError(f"it has no list of files of {path[:80]!r}")
    return snapshot


def _unpack(snapshot: Snapshot, content: gzip.GzipFile, environment: Environment, note: Note) -> None:
    site = Path(environment.folders[0])
    folders.make(site)
    for left in folders.matching(site, f"{STAGING}*", folders.as_absent):
        shutil.rmtree(left, ignore_errors=True)
    staging = site / f"{STAGING}{os.getpid()}"
    try:
        staging.mkdir()
        download.check_room(staging, sum(entry.file.size_bytes for entry in snapshot.files))
        for number, entry in enumerate(snapshot.files):
            _write(content, f"{staging}/{number}", entry)
            note(entry.file.size_bytes)
        if content.read(1):
            raise SnapshotError("it has more than its files")
        _move(snapshot, staging, Path(environment.prefix))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(content: gzip.GzipFile, path: str, entry: _File) -> None:
    digest = hashlib.sha256()
    left = entry.file.size_bytes
    with open(path, "xb", buffering=0) as file:
        while left > 0 and (chunk := content.read(min(left, CHUNK_BYTES))):
            digest.update(chunk)
            file.write(chunk)
            left -= len(chunk)
    if left or digest.hexdigest() != entry.sha256:
        raise SnapshotError(f"{entry.file.path} is {'cut short' if left else 'damaged'}")
    os.chmod(path, entry.file.mode & 0o777 | 0o600)
    os.utime(path, (entry.file.mtime_s, entry.file.mtime_s))


def _move(snapshot: Snapshot, staging: Path, prefix: Path) -> None:
    """Move the files from *staging* below *prefix*, each package's metadata last and at once."""
    root = os.path.realpath(prefix)
    of_metadata = tuple(f"{path}/" for path in snapshot.metadata)
    parents = {os.path.dirname(entry.file.path) for entry in snapshot.files}
    for parent in sorted(parents):
        if os.path.commonpath((os.path.realpath(prefix / parent), root)) != root:
            raise SnapshotError(f"{parent} leads outside of {prefix}")
    for path in snapshot.metadata:
        if folders.exists(prefix / path):
            raise SnapshotError(f"{path} is there already")
    for entry in snapshot.files:
        if folders.is_dir(f"{prefix}/{entry.file.path}"):
            raise SnapshotError(f"{entry.file.path} is a folder here")
    for parent in sorted(parents):
        if not f"{parent}/".startswith(of_metadata):
            folders.make(prefix / parent)
    for number, entry in enumerate(snapshot.files):
        source = f"{staging}/{number}"
        if not entry.file.path.startswith(of_metadata):
            _rename(source, f"{prefix}/{entry.file.path}")
            continue
        target = f"{staging}/metadata/{entry.file.path}"
        folders.make(os.path.dirname(target))
        os.rename(source, target)
    for path in snapshot.metadata:
        folders.make((prefix / path).parent)
        _rename(f"{staging}/metadata/{path}", f"{prefix}/{path}")


def _rename(source: str, target: str) -> None:
    """Move *source* to *target*, which may be on another file system, at once."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = f"{os.path.dirname(target)}/{STAGING}{os.getpid()}-{os.path.basename(target)}"
        (shutil.copytree if folders.is_dir(source) else shutil.copy2)(source, beside)
        os.replace(beside, target)
