"""The list of a host's checkpoint files in storage: written last, so that it names only what is there, whole.

URI/hosts/RANK/manifest.json        which files, and which parts each consists of
URI/hosts/RANK/parts/SHA256         parts, named by their content: one that is there is never sent twice
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from toolkit import paths
from toolkit.errors import ContractError
from toolkit.records import Record, decode, encode
from toolkit.storage.store import PIECE_BYTES, StorageClient
from toolkit.storage.uri import Uri

NAME = "manifest.json"
DAMAGED_HINT = "Remove the manifest that names it to start without checkpoints."


class StoredFile(Record, frozen=True, kw_only=True):
    """A file of a checkpoint folder in storage."""

    size_bytes: int = 0  # 0 for a link.
    mtime_ns: int = 0  # Of its last change, since the epoch.
    mode: int = 0o644  # Its permissions.
    parts: tuple[str, ...] = ()  # The SHA-256 of each part of `Manifest.part_bytes`, in hex.
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
    def parts(self) -> set[str]:
        """The names of all parts."""
        return {part for file in self.files.values() for part in file.parts}


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
        if not file.link and len(file.parts) != -(-file.size_bytes // manifest.part_bytes):
            message = f"{paths.shown(path)}: expected the parts of {file.size_bytes:,} bytes, found {len(file.parts)}"
            raise ContractError(message, where=str(place), hint=DAMAGED_HINT)
    return manifest


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
