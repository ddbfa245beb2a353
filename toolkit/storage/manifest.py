"""The list of a host's checkpoint files in storage: written last, so that it names only what is there, whole.

URI/hosts/RANK/manifest.json        which files, and which parts each consists of
URI/hosts/RANK/parts/SHA256         parts, named by their content: one that is there is never sent twice
URI/hosts/RANK/files/PATH           files as ordinary objects, in the layout "plain"

Below a URI whose first host has no manifest, all else counts as that host's files: somebody has copied a folder there.
What other jobs keep there, deeper down, does not.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from toolkit import paths
from toolkit.errors import ContractError
from toolkit.patterns import lazy
from toolkit.records import Record, decode, encode
from toolkit.storage.download import PathConflictError, tree_of
from toolkit.storage.scan import NOT_CONTENT, entry_of
from toolkit.storage.store import PIECE_BYTES, StorageClient, StoredObject
from toolkit.storage.uri import Uri

NAME = "manifest.json"
_MANIFEST = lazy(rf"(.+)/hosts/\d+/{re.escape(NAME)}")
_NO_CONTENT = ("hosts", *NOT_CONTENT)
DAMAGED_HINT = "Remove the manifest that names it to start without checkpoints."


class StoredFile(Record, frozen=True, kw_only=True):
    """A file of a checkpoint folder in storage."""

    size_bytes: int = 0  # 0 for a link.
    mtime_ns: int = 0  # Of its last change, since the epoch.
    mode: int = 0o644  # Its permissions.
    parts: tuple[str, ...] = ()  # The SHA-256 of each part of `Manifest.part_bytes`, in hex.
    object: str = ""  # The key below the URI, of a file that is one ordinary object and has no parts.
    link: str = ""  # The target of a link, "" for a file.
    since: int = 0  # The number of the manifest with which this version came.
    left: bool = False  # An earlier run had left it in the folder.
    points_to: tuple[str, ...] = ()  # The names in the link's target or in the small file, if they can be a path.


class Manifest(Record, frozen=True, kw_only=True):
    """All files of one host's checkpoint folder."""

    version: Literal[1] = 1  # Of this format.
    number: int = 0  # How many manifests this host has written, with this one.
    host: str  # The host's name.
    written_s: float  # When it was written, seconds since the epoch.
    part_bytes: int = PIECE_BYTES  # The size of each part of a file but the last.
    files: dict[str, StoredFile] = {}  # By path.

    @property
    def contents(self) -> set[str]:
        """The names of all parts, and the keys below the URI of all files that are one object."""
        return {name for file in self.files.values() for name in (*file.parts, file.object) if name}


def folder(root: Uri, rank: int) -> Uri:
    """Return the place of the files of the host with *rank* in the job."""
    return root.below(f"hosts/{rank}")


def read(store: StorageClient, root: Uri, rank: int) -> Manifest | None:
    """Return the manifest of the host *rank*, None if there is none.

    Raises:
        ContractError: it is damaged, or names a path outside the folder.
        PlatformError: the storage cannot be reached.
    """
    place = folder(root, rank).below(NAME)
    stored = store.find(place.key)
    if stored is None:
        return None
    try:
        manifest = _with_paths(decode(store.read(stored), Manifest, str(place)), paths.from_text)
    except ContractError as error:
        error.hint = error.hint or DAMAGED_HINT
        raise
    if manifest.part_bytes < 1:
        message = f"expected a positive part_bytes, found {manifest.part_bytes}"
        raise ContractError(message, where=str(place), hint=DAMAGED_HINT)
    for path, file in manifest.files.items():
        if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
            raise ContractError(f"expected paths within a folder, found {path!r}", where=str(place), hint=DAMAGED_HINT)
        if file.object and (file.parts or file.link or {"", ".", ".."} & set(file.object.split("/"))):
            message = f"{paths.shown(path)}: expected one object below the URI, found {file.object!r}"
            raise ContractError(message, where=str(place), hint=DAMAGED_HINT)
        if not (file.link or file.object) and len(file.parts) != -(-file.size_bytes // manifest.part_bytes):
            message = f"{paths.shown(path)}: expected the parts of {file.size_bytes:,} bytes, found {len(file.parts)}"
            raise ContractError(message, where=str(place), hint=DAMAGED_HINT)
    return manifest


def read_all(store: StorageClient, root: Uri, checkpoints: Path | None = None) -> dict[int, Manifest]:
    """Return the manifest of each host by its rank; without one of the first host, the ordinary objects below *root*
    are its files. *checkpoints*: the job's checkpoint folder, which may be below *root*, too.

    Raises:
        ContractError: a manifest is damaged, or two of the objects cannot be files of one folder.
        UserError: there is no such bucket.
        PlatformError: the storage cannot be reached.
    """
    by_rank = {rank: manifest for rank in ranks(store, root) if (manifest := read(store, root, rank)) is not None}
    if 0 not in by_rank and (ordinary := read_objects(store, root, checkpoints)):
        by_rank[0] = ordinary
    return by_rank


def read_objects(store: StorageClient, root: Uri, checkpoints: Path | None = None) -> Manifest | None:
    """Return the objects below *root* as the files of a host; None without any. Those under hosts/, of other jobs, in
    the folder *checkpoints* and in `NOT_CONTENT` are left out. A bucket as a whole is no checkpoint folder.

    Raises:
        ContractError: two of the objects cannot be files of one folder.
        UserError: there is no such bucket.
        PlatformError: the storage cannot be reached.
    """
    try:
        listed = tree_of(_list_content(store, root), root) if root.key else []
    except PathConflictError as error:
        raise ContractError(error.message, where=error.where, hint="Move one of them away.") from None
    others = [place[1] for _, name in listed if (place := _MANIFEST.fullmatch(name))]
    if checkpoints is not None and root.scheme == "file":
        others.append(os.path.relpath(os.path.realpath(checkpoints), os.path.realpath(f"/{root.key}")))
    found = {
        name: StoredFile(size_bytes=stored.size_bytes, mtime_ns=stored.changed_ns, object=name, left=True)
        for stored, name in listed
        if not name.startswith(tuple(f"{place}/" for place in others))
    }
    return Manifest(host="", written_s=0.0, files=found) if found else None


def _list_content(store: StorageClient, root: Uri) -> Iterator[StoredObject]:
    """Yield the objects below *root*, without what is no content at its top."""
    skip = len(root.key) + 1
    if root.scheme != "file":
        yield from (stored for stored in store.list(root.key) if entry_of(stored.key[skip:]) not in _NO_CONTENT)
        return
    objects, prefixes = store.list_level(root.key)  # What nobody but root may list must not end it.
    yield from (stored for stored in objects if stored.key[skip:] not in _NO_CONTENT)
    for prefix in prefixes:
        if prefix[skip:] not in _NO_CONTENT:
            yield from store.list(prefix)


def document(manifest: Manifest) -> bytes:
    """Return *manifest* as `read` reads it."""
    return encode(_with_paths(manifest, paths.to_text))


def _with_paths(manifest: Manifest, convert: Callable[[str], str]) -> Manifest:
    replace = msgspec.structs.replace
    files = {
        convert(path): replace(file, link=convert(file.link), points_to=tuple(map(convert, file.points_to)))
        if file.link or file.points_to
        else file
        for path, file in manifest.files.items()
    }
    return replace(manifest, files=files)


def ranks(store: StorageClient, root: Uri) -> tuple[int, ...]:
    """Return the ranks of the hosts that have a manifest.

    Raises:
        UserError: there is no such bucket.
        PlatformError: the storage cannot be reached.
    """
    prefix = f"{root.key}/hosts" if root.key else "hosts"
    names = (stored.key[len(prefix) + 1 :].split("/") for stored in store.list(prefix))
    return tuple(sorted(int(rank) for rank, *rest in names if rest == [NAME] and rank.isdecimal()))
