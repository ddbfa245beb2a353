"""Puts the submitted source into the code folder.

The rules:
- A submitted source replaces the files in the code folder and never mixes with them.
- Files that we did not put there are not deleted but moved aside, and a warning says so. Files that an earlier run in
  the same container put there (named in MARKER) are deleted: their source still exists.
- The new source is complete in a staging folder before the first old file is touched.
- The code folder itself is not replaced: it may be a mount. If it is, the files moved aside stay within the mount, so
  that its owner keeps them.
"""

import errno
import os
import stat
from pathlib import Path

import msgspec

from toolkit import files, folders, paths
from toolkit.errors import PlatformError, ToolkitError, UserError, name_place
from toolkit.folders import make, remove
from toolkit.job.job import Job
from toolkit.log import Log
from toolkit.records import Record, encode
from toolkit.storage.uri import REMOTE

ARCHIVE = "sourcedir.tar.gz"
MARKER = ".toolkit-source.json"
STAGING = ".toolkit-staging"
ASIDE = ".toolkit-replaced"
# The platform's paths begin with this, also if the base is another folder here (SAGEMAKER_BASE_DIR).
USUAL_BASE = Path("/opt/ml")
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
NAMES_SHOWN = 3
PIECE_BYTES = 1 << 20


class Placed(Record, frozen=True, kw_only=True):
    """MARKER's content: the source in the code folder, and the names of its top-level files and folders, as `paths`
    encodes them."""

    source: str
    names: tuple[str, ...]


def place(job: Job, log: Log) -> None:
    """Put the job's source into its code folder, unless it is already there.

    Raises:
        UserError: the source is missing, empty, of an unknown kind or a bad archive; the code folder is read-only.
        PlatformError: the code folder cannot be written for another reason, such as a full disk.
    """
    source = submitted(job, log)
    code = job.folders.code
    if source is None or source.resolve() == code.resolve():
        return
    staging = code / STAGING
    try:
        make(code)
        remove(staging)
        staging.mkdir()
        with name_place(job.spec.source_from):
            _stage(source, staging, job.folders.base, log)
            _swap(job, source, staging, log)
    except OSError as error:
        clear(code)
        raise _refused(error, job) from None
    except Exception:
        clear(code)
        raise
    clear(code)  # After a stop the caller calls clear() once the end is reported: a stop must not wait for it.


def is_placed(job: Job, log: Log) -> bool:
    """True if an earlier run put the job's source into the code folder.

    Raises:
        UserError: the source does not exist.
    """
    source = submitted(job, log)
    placed = _placed(job.folders.code)
    return source is not None and placed is not None and placed.source == paths.to_text(source)


def clear(code: Path) -> None:
    """Remove what an interrupted `place` left in the code folder."""
    _remove_quietly(code / STAGING)


def submitted(job: Job, log: Log) -> Path | None:
    """Return the folder, archive or file that was submitted; None if the code is in place.

    Raises:
        UserError: it does not exist, or is at a URL that we cannot read.
    """
    source = (job.spec.source or "").strip()
    if not source:
        return None
    with name_place(job.spec.source_from):
        return _found(source, job, log)


def _found(source: str, job: Job, log: Log) -> Path | None:
    scheme, separator, rest = source.partition("://")
    if not separator:
        return _existing(Path(source), source, job)
    if scheme == "file":
        return _existing(_unquoted(rest.removeprefix("localhost")), source, job)
    channel = channel_archive(job)
    if channel is not None:
        log.info(f"the source is taken from {channel}, not from {source}")
        return channel
    if scheme in REMOTE and job.spec.plugin is not None:
        log.info(f"the plug-in {job.spec.plugin} fetches {source} itself")
        return None
    if scheme in REMOTE:
        return None  # train/transfers.py fetches it, and names its place here as the source.
    raise UserError(
        f"expected an absolute path, file://, s3://, gs:// or az://, found {scheme}://",
        hint="Mount the source instead.",
    )


def channel_archive(job: Job) -> Path | None:
    """Return the source in the channel `code`, which wins over a URI; None if there is none."""
    path = job.folders.data / "code" / ARCHIVE
    return path if folders.is_file(path) else None


def _unquoted(path: str) -> Path:
    if "%" not in path or folders.exists(path):
        return Path(path)
    from urllib.parse import unquote

    return Path(unquote(path))


def _existing(path: Path, source: str, job: Job) -> Path:
    if not path.is_absolute():
        raise UserError(f"expected an absolute path, found {source!r}")
    base = job.folders.base
    if path.is_relative_to(USUAL_BASE) and base != USUAL_BASE:
        moved = base / path.relative_to(USUAL_BASE)
        if folders.exists(moved) or moved == job.folders.code:
            return moved
    if folders.exists(path) or path == job.folders.code:
        return path
    raise UserError(
        f"no such file or folder: {path}", hint="Mount it, or leave the key out if the code is in the image."
    )


def _stage(source: Path, staging: Path, base: Path, log: Log) -> None:
    """Copy or unpack the submitted source into *staging*."""
    from toolkit.train.source.unpack import is_tar, unpack

    try:
        if folders.is_dir(source):
            _copy_folder(source, staging, base, log)
        elif not folders.is_file(source):
            raise UserError(f"neither a folder nor a file: {source}")
        elif source.name.endswith(TAR_ENDINGS) or is_tar(source):
            unpack(source, staging)
        else:
            _copy_file(source, staging / source.name)
    except PermissionError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
    if not folders.names(staging):
        raise UserError(f"{source} holds no files", hint="Submit the folder that holds the entry point.")


def _swap(job: Job, source: Path, staging: Path, log: Log) -> None:
    """Replace the content of the code folder by the content of *staging*."""
    code = job.folders.code
    names = tuple(folders.names(staging))
    kept_names = _kept(code, source, names)
    aside = (code / ASIDE) if folders.is_mount(code) else (job.folders.scratch / "replaced-code")
    earlier = _earlier(code)
    strange = [name for name in _names(code) if name not in kept_names and name not in earlier]
    for name in earlier:
        if name not in kept_names:
            remove(code / name)
    if strange:
        aside = _move_aside(code, strange, aside)
        listed = ", ".join(strange[:NAMES_SHOWN]) + (", ..." if len(strange) > NAMES_SHOWN else "")
        count = sum(_count(aside / name) for name in strange)
        log.warning(
            f"{code} held {count} {'file' if count == 1 else 'files'} that were not submitted ({listed}): "
            f"moved to {aside}, {source} replaces them"
        )
    (code / MARKER).write_bytes(encode(Placed(source=paths.to_text(source), names=tuple(map(paths.to_text, names)))))
    for name in names:
        (staging / name).rename(code / name)
    log.info(f"{source} is in {code}")


def _kept(code: Path, source: Path, names: tuple[str, ...]) -> frozenset[str]:
    """Return the top-level names in *code* that must stay: the folder that holds the source, our own files, mounts.

    Raises:
        UserError: one of *names* has to replace one of them.
    """
    kept_names = {STAGING, MARKER, *(name for name in _names(code) if name.startswith(ASIDE))}
    if source.resolve().is_relative_to(code.resolve()):
        kept_names.add(source.resolve().relative_to(code.resolve()).parts[0])
    kept_names.update(name for name in _names(code) if folders.is_mount(code / name))
    for name in names:
        if name in kept_names:
            raise UserError(f"{source} holds {name!r}, which cannot replace {code / name}", hint="Rename one of them.")
    return frozenset(kept_names)


def _names(folder: Path) -> list[str]:
    return folders.names(folder)


def _earlier(code: Path) -> tuple[str, ...]:
    """Return the top-level names in *code* that an earlier run put there, and those that Python and pip created."""
    placed = _placed(code)
    if placed is None:
        return ()
    build_folders = [name for name in _names(code) if name in ("__pycache__", "build") or name.endswith(".egg-info")]
    # Only names without slashes: a wrong MARKER must not remove anything outside the code folder.
    placed_names = map(paths.from_text, placed.names)
    return (
        *(name for name in placed_names if not {"/", "\0"} & {*name} and name not in ("", ".", "..")),
        *build_folders,
    )


def _placed(code: Path) -> Placed | None:
    try:
        return msgspec.json.decode(files.read(code / MARKER), type=Placed)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _move_aside(code: Path, names: list[str], aside: Path) -> Path:
    import shutil

    number = 1
    place = aside
    while folders.exists(place, follow_links=False):
        number += 1
        place = aside.with_name(f"{aside.name}-{number}")
    place.mkdir(parents=True)
    for name in names:
        shutil.move(code / name, place / name)
    return place


def _count(path: Path) -> int:
    if not folders.is_dir(path, folders.as_absent, follow_links=False):
        return 1
    below = folders.walk(path, folders.named_elsewhere)
    return sum(not folders.is_dir(entry.path, folders.as_absent, follow_links=False) for entry in below)


def _copy_folder(source: Path, into: Path, base: Path, log: Log) -> None:
    """Copy *source*'s content. Links within it stay links; others are followed: they may be broken from *into*.

    The job's own folder is left out if it is below the source (`toolkit run` with a job directory there).
    """
    root = source.resolve()
    base = base.resolve()
    if root == base:
        raise UserError(f"{source} is the job's own folder", hint="Submit the folder of the script.")
    waiting: list[tuple[Path, Path, tuple[Path, ...]]] = [(root, into, (root,))]
    while waiting:
        folder, copy, above = waiting.pop()
        for entry in map(folder.joinpath, folders.names(folder)):
            target = Path(os.path.realpath(entry))
            kind = _kind(target)
            new = copy / entry.name
            if kind and target.is_relative_to(root) and folders.is_link(entry):
                inside = target.relative_to(root)
                new.symlink_to(os.path.relpath(into / inside, copy))
            elif target == base or entry.name in (STAGING, MARKER):
                continue
            elif kind == stat.S_IFDIR and any(parent.is_relative_to(target) for parent in above):
                raise UserError(f"{entry} links to a folder that holds it", hint="Remove the link.")
            elif kind == stat.S_IFDIR:
                new.mkdir()
                waiting.append((target, new, (*above, target)))
            elif kind == stat.S_IFREG:
                _copy_file(target, new)
            else:
                kind_text = "something else" if kind else "a link to nothing"
                log.warning(f"{entry}: expected a file or folder, found {kind_text}; it is left out")


def _kind(target: Path) -> int:
    """Return the kind of *target*, 0 if nothing is there or links lead round in a circle.

    Raises:
        OSError: it cannot be looked at: the script may need it.
    """
    try:
        status = folders.status(target)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return 0
        raise
    return stat.S_IFMT(status.st_mode) if status is not None else 0


def _copy_file(source: Path, copy: Path) -> None:
    """Copy content, permissions and times, in small pieces: shutil.copy2 copies a file in one system call, which no
    signal can interrupt."""
    import shutil

    with source.open("rb") as content, copy.open("wb") as file:
        shutil.copyfileobj(content, file, PIECE_BYTES)
    shutil.copystat(source, copy)


def _remove_quietly(path: Path) -> None:
    try:
        remove(path)
    except OSError:
        pass  # The next run removes it; this run's outcome is already decided.


def _refused(error: OSError, job: Job) -> ToolkitError:
    import errno

    message = f"cannot put the submitted source there: {error.strerror}"
    place = str(error.filename or job.folders.code)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = f"Mount {job.folders.code} writable, or submit no source ({job.spec.source_from}) to run what is in it."
        return UserError(message, where=place, hint=hint)
    return PlatformError(message, where=place)
