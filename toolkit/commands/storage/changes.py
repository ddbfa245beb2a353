"""Changes storage: uploads files as ordinary objects, and removes checkpoints or objects.

A job may run meanwhile, and write its manifest at any time. So a manifest is read right before it is written without
what is removed, parts go only after all manifests, and a file of a manifest that has named them again leaves it, too:
then the job notices that, and uploads them again.
"""

from collections.abc import Iterator, Set
from pathlib import Path

import msgspec

from toolkit import folders, paths
from toolkit.commands.storage.stored import Stored, find_job, is_below
from toolkit.errors import PlatformError, UserError
from toolkit.storage import manifest as manifests
from toolkit.storage.download import Note
from toolkit.storage.manifest import Manifest, StoredFile
from toolkit.storage.scan import describe
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import Uri

TRIES = 5


def put(store: StorageClient, path: Path, uri: Uri, note: Note) -> list[str]:
    """Upload the file *path*, or all files below the folder *path*, as ordinary objects below *uri*; return the names
    of links and other entries that lead to no file. *note* is called with the size of each file.

    Raises:
        UserError: *path* is not there or holds no file, or a job keeps its checkpoints at *uri*.
        PlatformError: a file cannot be read, or the storage cannot be reached.
    """
    job, below = find_job(store, uri)
    if job is not None and (not below or is_below(below, "hosts")):
        message = (
            "expected a place without the checkpoints of a job, found hosts/, beside which other files are ignored"
        )
        raise UserError(message, where=str(uri), hint="Put it elsewhere.")
    left_out: list[str] = []
    count = 0
    for place, name in _files_to_put(path, left_out):
        size_bytes = place.stat().st_size
        store.upload(uri.below(paths.to_key(name)).key, place)
        note(size_bytes)
        count += 1
    if not count:
        raise UserError("expected a file, or a folder with files, found none", where=paths.shown(path))
    return left_out


def _files_to_put(path: Path, left_out: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield (file, its name below *path*), of a link the file that it leads to. *left_out* gets what is neither a file
    nor a folder."""
    try:
        if folders.is_file(path):
            yield path.resolve(), path.name
            return
        for entry in folders.walk(path, folders.fail):
            name = Path(entry.path).relative_to(path).as_posix()
            if folders.is_file(entry.path):
                yield Path(entry.path).resolve(), name
            elif not folders.is_dir(entry.path, follow_links=False):
                left_out.append(name)
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        place = paths.shown(error.filename or path)
        raise PlatformError(message, where=place, hint="Check its permissions.") from None


def check_removable(store: StorageClient, uri: Uri, stored: Stored) -> None:
    """Check that what *stored* found at *uri* can be removed without harm to anything else.

    Raises:
        UserError: it is the inside of a job's storage, or lies behind a link.
        PlatformError: the storage cannot be reached, or the folder cannot be read.
    """
    job, below = find_job(store, uri)
    if job is not None and is_below(below, "hosts"):
        message = f"expected a checkpoint or file, found where the job at {job} keeps them, by its manifests"
        raise UserError(message, where=str(uri), hint=f"Name the checkpoint: {job.below('CHECKPOINT')}.")
    if uri.scheme != "file" or stored.is_job:
        return
    above = {path.rpartition("/")[0] for path in stored.files}
    parts = {
        "/".join(parts[:count]) for path in above for parts in [path.split("/")] for count in range(len(parts) + 1)
    }
    try:
        link = next((path for path in sorted(parts) if path and folders.is_link(f"/{stored.root.below(path).key}")), "")
    except OSError as error:
        raise PlatformError(f"cannot be read ({describe(error)})", where=str(uri), hint="Check the disk.") from None
    if link:
        place = paths.shown(f"/{stored.root.below(link).key}")
        message = f"expected files of its own, found the link {place}, behind which they are elsewhere, too"
        raise UserError(message, where=str(uri), hint="Remove the link first, or name where it leads to.")


def remove(store: StorageClient, stored: Stored, *, now_s: float) -> None:
    """Remove the files that *stored* names. Of a job's checkpoints, each host's manifest is written without them first.

    *now_s*: since the epoch.

    Raises:
        PlatformError: the storage cannot be reached, or a job that runs has named removed files again and again.
    """
    if not stored.is_job:
        keys = [stored.root.below(file.object).key for file, *_ in stored.files.values()]
        store.delete(sorted(keys, key=_manifests_first))
        return
    if stored.path:
        keys = [key for rank in stored.of_hosts for key in _take_out(store, stored, rank, now_s)]
    else:
        beside = (file for manifest in stored.of_hosts.values() for file in manifest.files.values() if file.object)
        hosts = stored.root.below("hosts")
        keys = [one.key for one in store.list(hosts.key)]
        keys += {key for file in beside if not (key := stored.root.below(file.object).key).startswith(f"{hosts.key}/")}
    store.delete(sorted(keys, key=_manifests_first))
    for _ in range(TRIES):
        broken = [rank for rank in stored.of_hosts if _drop_broken(store, stored.root, rank, set(keys), now_s)]
        if not broken:
            return
    hint = "Stop the job, then remove it again."
    raise PlatformError("a job has stored again what was removed", where=str(stored.root), hint=hint)


def _manifests_first(key: str) -> tuple[bool, str]:
    """Sort manifests before what they name: without them nothing refers to the rest."""
    return not key.endswith(f"/{manifests.NAME}"), key


def _take_out(store: StorageClient, stored: Stored, rank: int, now_s: float) -> list[str]:
    """Write the manifest of the host *rank* without the files that *stored* names; return the keys that it no longer
    needs."""
    manifest = manifests.read(store, stored.root, rank)
    if manifest is None and not rank:
        manifest = manifests.read_objects(store, stored.root)
    if manifest is None:
        return []
    kept = {path: file for path, file in manifest.files.items() if not is_below(path, stored.path)}
    if len(kept) == len(manifest.files):
        return []
    newer = _write_with(store, stored.root, rank, manifest, kept, now_s)
    return sorted(_keys(stored.root, rank, manifest) - _keys(stored.root, rank, newer))


def _drop_broken(store: StorageClient, root: Uri, rank: int, removed: Set[str], now_s: float) -> bool:
    """Write the manifest of the host *rank* without files of which something was *removed*; return True if there are
    any."""
    manifest = manifests.read(store, root, rank)
    named = _keys(root, rank, manifest) if manifest is not None else set()
    missing = {key for key in named & removed if store.find(key) is None}
    if manifest is None or not missing:
        return False
    kept = {path: file for path, file in manifest.files.items() if not _keys_of(root, rank, file) & missing}
    _write_with(store, root, rank, manifest, kept, now_s)
    return True


def _write_with(
    store: StorageClient, root: Uri, rank: int, manifest: Manifest, files: dict[str, StoredFile], now_s: float
) -> Manifest:
    newer = msgspec.structs.replace(manifest, files=files, number=manifest.number + 1, written_s=now_s)
    store.write(manifests.folder(root, rank).below(manifests.NAME).key, manifests.document(newer))
    return newer


def _keys(root: Uri, rank: int, manifest: Manifest) -> set[str]:
    return {key for file in manifest.files.values() for key in _keys_of(root, rank, file)}


def _keys_of(root: Uri, rank: int, file: StoredFile) -> set[str]:
    """Return the keys of the objects that *file* of the host *rank* consists of."""
    if file.object:
        return {root.below(file.object).key}
    return {manifests.folder(root, rank).below(f"parts/{part}").key for part in file.parts}
