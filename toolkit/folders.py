"""Walks folders: the only place where the toolkit lists folders that others write.

`os.walk`, `Path.glob` and `Path.rglob` pass over a folder that cannot be listed as if it were empty, and `Path.exists`
differs from `os.path.exists` in which errors it takes for "no". Here only ENOENT means that nothing is there. Any other
error goes to the caller, once for each folder, and the rest of the walk goes on.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

# Gets the error of one folder or entry. `error.filename` is its path.
Unreadable = Callable[[OSError], None]
# Folders with longer paths are moved before they are removed. A name has at most 255 bytes, a path 4,095.
LONG_BYTES = 2048


# How often a walk enters one folder that links lead to. Links to one folder may stand in several places; but two in
# each of n folders, both to the next one, make 2^n paths without any loop.
MOST_TIMES = 100


class LoopError(OSError):
    """A link that the walk does not follow: it leads to a folder that the walk is in at that moment, or to one that it
    has entered MOST_TIMES. `filename` is the link."""


def entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of *folder*, sorted by name; [] if there is no such folder.

    Raises:
        OSError: the folder cannot be listed, or not to its end.
    """
    listed: list[os.DirEntry[str]] = []
    error = _list(os.fspath(folder), listed)
    if error is not None:
        raise error
    return listed


def names(folder: Path | str) -> list[str]:
    """Return the names in *folder*, sorted; [] if there is no such folder.

    Raises:
        OSError: the folder cannot be listed, or not to its end.
    """
    return [entry.name for entry in entries(folder)]


def matching(folder: Path | str, pattern: str, unreadable: Unreadable) -> list[Path]:
    """Return the paths in *folder* whose names match *pattern* ("*.json"), sorted; [] if there is no such folder.

    *unreadable* gets the error if the folder cannot be listed, or not to its end.
    """
    from fnmatch import fnmatchcase

    return [Path(entry.path) for entry in _listed(os.fspath(folder), unreadable) if fnmatchcase(entry.name, pattern)]


def fail(error: OSError) -> NoReturn:
    """Raise *error*: the handler of readers who cannot go on without the folder."""
    raise error


def named_elsewhere(_: OSError) -> None:
    """The handler of readers whose caller names what cannot be listed (commands/jobs/reading.py does so for a job's
    output), and of those who only look for a hint."""


def as_absent(_: OSError) -> None:
    """The handler of readers who do the same for what cannot be looked at as for what is absent."""


def walk(
    folder: Path | str,
    unreadable: Unreadable,
    *,
    enter: Callable[[os.DirEntry[str]], bool] = lambda _: True,
    follow_links: bool = False,
) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below *folder*, a folder before its content, sorted by name in each folder.

    A folder is entered where *enter* returns true. Links are not followed, unless *follow_links*: then a link to a
    folder above it (by device and inode), or to one that was entered MOST_TIMES, is a `LoopError` for *unreadable*,
    which also gets the error of each folder that cannot be listed. If a listing fails in the middle, the entries before
    it are yielded. What has vanished meanwhile (ENOENT) is left out without a word. There is no limit to the depth but
    the system's for the length of a path.
    """
    try:
        folder_status = os.stat(folder)
    except OSError as error:
        if error.errno != errno.ENOENT:
            unreadable(error)
        return
    above = [_identity(folder_status)]  # The folders that the walk is in, and what is left to yield of each.
    left = [iter(_listed(os.fspath(folder), unreadable))]
    times: Counter[tuple[int, int]] = Counter()
    while left:
        entry = next(left[-1], None)
        if entry is None:
            left.pop()
            above.pop()
            continue
        yield entry
        identity = _folder(entry, above, unreadable, follow_links=follow_links)
        if identity is None:
            continue
        if follow_links and times[identity] >= MOST_TIMES:
            unreadable(LoopError(errno.ELOOP, f"a link to a folder that {MOST_TIMES} others lead to", entry.path))
        elif enter(entry):
            times[identity] += follow_links
            above.append(identity)
            left.append(iter(_listed(entry.path, unreadable)))


def status(path: Path | str, *, follow_links: bool = True) -> os.stat_result | None:
    """Return the status of *path*, None if nothing is there (ENOENT, or a part of the path is no folder) or can be
    there (it holds a NUL, or characters that no file's name has).

    Raises:
        OSError: anything else, such as EACCES, EIO or ELOOP: then it is not known whether something is there.
    """
    try:
        return os.stat(path, follow_symlinks=follow_links)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    except ValueError:
        return None


def exists(path: Path | str, unreadable: Unreadable = fail, *, follow_links: bool = True) -> bool:
    """True if something is at *path*. With *unreadable*, which gets the error, also False where `status` raises.

    `os.path.exists` and its like return False for every error, and since Python 3.14 pathlib's do: here and below they
    are called nowhere (tests/project/test_paths_and_folders.py has the exceptions).

    Raises:
        OSError: as `status` does, without *unreadable*.
    """
    return _mode(path, unreadable, follow_links=follow_links) is not None


def may_exist(path: Path | str, *, follow_links: bool = True) -> bool:
    """True unless nothing is at *path*: what cannot be looked at counts as there, and the error of whoever reads or
    removes it says why."""
    try:
        return status(path, follow_links=follow_links) is not None
    except OSError:
        return True


def is_file(path: Path | str, unreadable: Unreadable = fail, *, follow_links: bool = True) -> bool:
    """True if a regular file is at *path*; errors as in `exists`."""
    return stat.S_ISREG(_mode(path, unreadable, follow_links=follow_links) or 0)


def is_dir(path: Path | str, unreadable: Unreadable = fail, *, follow_links: bool = True) -> bool:
    """True if a folder is at *path*; errors as in `exists`."""
    return stat.S_ISDIR(_mode(path, unreadable, follow_links=follow_links) or 0)


def is_link(path: Path | str, unreadable: Unreadable = fail) -> bool:
    """True if a symbolic link is at *path*; errors as in `exists`."""
    return stat.S_ISLNK(_mode(path, unreadable, follow_links=False) or 0)


def is_mount(path: Path | str) -> bool:
    """True if *path* is where something is mounted, as `os.path.ismount` sees it.

    Raises:
        OSError: as `status` does.
    """
    path_status = status(path, follow_links=False)
    if path_status is None or stat.S_ISLNK(path_status.st_mode):
        return False
    above = status(os.path.realpath(os.path.join(path, os.pardir)), follow_links=False)
    return above is not None and (path_status.st_dev != above.st_dev or path_status.st_ino == above.st_ino)


def nearest(path: Path) -> Path:
    """Return *path*, or the nearest above it that exists.

    Raises:
        OSError: as `status` does.
    """
    return next(place for place in (path, *path.absolute().parents) if exists(place))


def make(folder: Path | str) -> None:
    """Create *folder* and those above it that are absent, however many.

    `Path.mkdir` and `os.makedirs` call themselves for each level: Python gives up after some hundreds.

    Raises:
        OSError: a part of the path is a file, or cannot be created.
    """
    path = os.path.normpath(folder) if not os.path.isabs(folder) else os.fspath(folder).rstrip("/") or "/"
    absent, present = [path], set[str]()
    while absent:
        try:
            os.mkdir(absent[-1])
        except FileNotFoundError:
            above = os.path.dirname(absent[-1])
            if not above or above == absent[-1] or above in present:
                raise  # /proc says so of a folder that is there.
            absent.append(above)
            continue
        except OSError:  # FileExistsError; on a read-only file system and in others' folders other errors come first.
            if not is_dir(absent[-1], named_elsewhere):  # The error of mkdir says more.
                raise
        present.add(absent.pop())


def remove(path: Path | str) -> None:  # noqa: PLR0912 - one walk, and the errors of each of its steps.
    """Remove *path*, a file or a folder with all that is in it; nothing is there: do nothing.

    Folders of this user need no permissions for that, and may be of any depth: those with long paths are moved to the
    top before they are emptied.

    Raises:
        OSError: something cannot be removed; all that can be removed is gone.
    """
    top = os.fspath(path)
    try:
        top_status = os.lstat(top)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(top_status.st_mode):
        os.unlink(top)
        return
    failed: list[OSError] = []
    emptied, left, moved = [], [top], 0
    while left:
        folder = left.pop()
        emptied.append(folder)
        try:
            os.chmod(folder, 0o700)
        except OSError:
            pass  # It is another user's: whether that matters is seen below.
        for entry in _listed(folder, failed.append):
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                place = entry.path
                if len(os.fsencode(place)) > LONG_BYTES:
                    os.chmod(place, 0o700)  # Else it cannot be moved.
                    moved += 1
                    place = f"{top}/.removed-{os.getpid()}-{moved}"
                    os.rename(entry.path, place)
                left.append(place)
            except FileNotFoundError:
                pass
            except OSError as error:
                failed.append(error)
    for folder in reversed(emptied):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _mode(path: Path | str, unreadable: Unreadable, *, follow_links: bool) -> int | None:
    try:
        path_status = status(path, follow_links=follow_links)
    except OSError as error:
        unreadable(error)
        return None
    return None if path_status is None else path_status.st_mode


def _listed(folder: str, unreadable: Unreadable) -> list[os.DirEntry[str]]:
    listed: list[os.DirEntry[str]] = []
    error = _list(folder, listed)
    if error is not None:
        unreadable(error)
    return listed


def _list(folder: str, listed: list[os.DirEntry[str]]) -> OSError | None:
    """Add the entries of *folder* to *listed*, sorted; return the error that ended the listing, if any."""
    try:
        with os.scandir(folder) as scanned:
            listed.extend(scanned)
    except OSError as error:
        listed.sort(key=lambda entry: entry.name)
        if error.errno == errno.ENOENT:
            return None
        error.filename = error.filename or folder  # An error of readdir(3) names no path.
        return error
    listed.sort(key=lambda entry: entry.name)
    return None


def _folder(
    entry: os.DirEntry[str], above: list[tuple[int, int]], unreadable: Unreadable, *, follow_links: bool
) -> tuple[int, int] | None:
    """Return the identity of *entry* if it is a folder and none of *above*; report a link that leads back."""
    try:
        entry_status = entry.stat(follow_symlinks=follow_links)
    except OSError as error:
        if error.errno != errno.ENOENT:
            unreadable(error)
        return None
    if not stat.S_ISDIR(entry_status.st_mode):
        return None
    if _identity(entry_status) in above:
        unreadable(LoopError(errno.ELOOP, "a link to a folder above it", entry.path))
        return None
    return _identity(entry_status)


def _identity(file_status: os.stat_result) -> tuple[int, int]:
    return file_status.st_dev, file_status.st_ino
