"""The list of a host's checkpoint files in storage: written last, so that it names only what is there, whole.

URI/hosts/RANK/manifest.json        which files, and which parts each consists of
URI/hosts/RANK/parts/SHA256         parts, named by their content: one that is there is never sent twice
"""

from typing import Literal

from toolkit.errors import ContractError
from toolkit.records import Record, decode
from toolkit.storage.store import PIECE_BYTES, Store
from toolkit.storage.uri import Uri

NAME = "manifest.json"


class File(Record, frozen=True, kw_only=True):
    """A file: the SHA-256 of each part of `Manifest.part_bytes`, in hex, or the target of a link."""

    size_bytes: int = 0
    mtime_ns: int = 0
    mode: int = 0o644
    parts: tuple[str, ...] = ()
    link: str = ""


class Manifest(Record, frozen=True, kw_only=True):
    """All files of one host's checkpoint folder, by path. `host`: its name. `written_s`: seconds since the epoch."""

    version: Literal[1] = 1
    host: str
    written_s: float
    part_bytes: int = PIECE_BYTES
    files: dict[str, File] = {}

    @property
    def parts(self) -> set[str]:
        """The names of all parts."""
        return {part for file in self.files.values() for part in file.parts}


def folder(root: Uri, rank: int) -> Uri:
    """Return the place of the files of the host with *rank* in the job."""
    return root.below(f"hosts/{rank}")


def read(store: Store, root: Uri, rank: int) -> Manifest | None:
    """Return the manifest of the host *rank*, None if there is none.

    Raises:
        ContractError: it is damaged, or names a path outside the folder.
        PlatformError: the storage cannot be reached.
    """
    place = folder(root, rank).below(NAME)
    found = store.find(place.key)
    if found is None:
        return None
    manifest = decode(store.read(found), Manifest, str(place))
    for path in manifest.files:
        if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
            raise ContractError(f"expected paths within a folder, found {path!r}", where=str(place))
    return manifest


def ranks(store: Store, root: Uri) -> tuple[int, ...]:
    """Return the ranks of the hosts that have a manifest.

    Raises:
        UserError: there is no such bucket.
        PlatformError: the storage cannot be reached.
    """
    prefix = f"{root.key}/hosts" if root.key else "hosts"
    names = (each.key[len(prefix) + 1 :].split("/") for each in store.list(prefix))
    return tuple(sorted(int(rank) for rank, *rest in names if rest == [NAME] and rank.isdecimal()))
