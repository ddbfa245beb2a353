"""Finds what is stored below a URI: the files of a job's checkpoints, by their manifests, or ordinary objects."""

import re

from toolkit.errors import UserError
from toolkit.records import Record
from toolkit.storage import manifest as manifests
from toolkit.storage.download import tree_of
from toolkit.storage.manifest import Manifest, StoredFile
from toolkit.storage.restore import choose_files
from toolkit.storage.store import StorageClient, StorageRefusedError, StoredObject
from toolkit.storage.uri import Uri

_NUMBER = re.compile("[0-9]+")


class Stored(Record, frozen=True, kw_only=True):
    """The files that a URI names, by their paths below `root`."""

    root: Uri
    """The job's checkpoint URI; of ordinary objects, what holds the object or prefix that the URI names."""
    path: str
    """What of `root` the URI names; "" for all of it."""
    of_hosts: dict[int, Manifest]
    """The manifest of each host by its rank, whole."""
    is_job: bool
    """True if hosts of a job have written manifests below `root`."""

    @property
    def files(self) -> dict[str, tuple[StoredFile, int, int]]:
        """(file, rank of its host, bytes of a part) of each named file, by its path; of several hosts' the first's."""
        chosen = choose_files(self.of_hosts, 0)
        return {path: chosen[path] for path in sorted(chosen) if is_below(path, self.path)}


class Entry(Record, frozen=True, kw_only=True):
    """A file or folder, as a line of a list."""

    name: str
    """Its path below the listed place; a folder's ends with a slash."""
    step: int | None
    """The last number in its name, None without one."""
    mtime_s: float
    """When its newest file was written, seconds since the epoch; 0 if that is not known."""
    size_bytes: int
    files: int
    hosts: tuple[int, ...]
    """The ranks of the hosts that have stored files of it."""


def find(store: StorageClient, uri: Uri) -> Stored:
    """Return what *uri* names: a job's checkpoints, one of them or a file of it, an object, or all below a prefix.

    Raises:
        UserError: there is nothing.
        ContractError: a manifest is damaged.
        PlatformError: the storage cannot be reached.
    """
    single = store.find(uri.key) if uri.key else None
    root, path = find_job(store, uri)
    if root is not None:
        stored = Stored(root=root, path=path, of_hosts=manifests.read_all(store, root), is_job=True)
        if stored.files or not path:
            return stored
    above, _, name = uri.key.rpartition("/")
    parent = Uri(scheme=uri.scheme, bucket=uri.bucket, key=above)
    objects = [(single, name)] if single else [(stored, _joined(name, below)) for stored, below in _below(store, uri)]
    if not objects:
        raise UserError("expected objects, found none", where=str(uri), hint="Correct the URI.")
    files = {
        path: StoredFile(size_bytes=stored.size_bytes, mtime_ns=stored.changed_ns, object=path)
        for stored, path in objects
    }
    ordinary = Manifest(host="", written_s=0.0, files=files)
    return Stored(root=parent, path=name, of_hosts={0: ordinary}, is_job=False)


def is_below(path: str, top: str) -> bool:
    """True if *path* is *top* or below it; all is below ""."""
    return not top or path == top or path.startswith(f"{top}/")


def list_entries(stored: Stored) -> list[Entry]:
    """Return what is directly below the place that *stored* names, by step, then time."""
    files_by_name: dict[str, list[StoredFile]] = {}
    for path, (file, *_) in stored.files.items():
        files_by_name.setdefault(_name_below(path, stored.path), []).append(file)
    hosts_by_name: dict[str, set[int]] = {}
    for rank, manifest in stored.of_hosts.items():
        for path in manifest.files:
            if is_below(path, stored.path):
                hosts_by_name.setdefault(_name_below(path, stored.path), set()).add(rank)
    entries = [
        Entry(
            name=name,
            step=int(numbers[-1]) if (numbers := _NUMBER.findall(name)) else None,
            mtime_s=max(file.mtime_ns for file in files) / 1e9,
            size_bytes=sum(file.size_bytes for file in files),
            files=len(files),
            hosts=tuple(sorted(hosts_by_name[name])),
        )
        for name, files in files_by_name.items()
    ]
    return sorted(entries, key=lambda entry: (-1 if entry.step is None else entry.step, entry.mtime_s, entry.name))


def _name_below(path: str, top: str) -> str:
    """Return the part of *path* directly below *top*, with a slash if it is a folder; a file itself is its own."""
    if path == top:
        return path.rpartition("/")[2]
    name, slash, _ = path[len(top) + 1 if top else 0 :].partition("/")
    return name + slash


def find_job(store: StorageClient, uri: Uri) -> tuple[Uri | None, str]:
    """Return (the checkpoint URI at or above *uri*, what of it *uri* names), (None, "") if no job has written there.

    Raises:
        UserError: there is no such bucket.
        PlatformError: the storage cannot be reached.
    """
    parts = uri.key.split("/") if uri.key else []
    is_object = bool(uri.key) and store.find(uri.key) is not None
    for count in range(len(parts) - is_object, -1, -1):
        root = Uri(scheme=uri.scheme, bucket=uri.bucket, key="/".join(parts[:count]))
        if uri.scheme == "file" and not count:
            break  # The root of the disk.
        try:
            if manifests.ranks(store, root):
                return root, "/".join(parts[count:])
        except StorageRefusedError:
            if count == len(parts):
                raise
            break  # These keys may be read, and those above them may not.
    return None, ""


def _below(store: StorageClient, uri: Uri) -> list[tuple[StoredObject, str]]:
    return tree_of(store.list(uri.key), uri)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
