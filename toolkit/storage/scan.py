"""Looks at a folder whose files others write: what is in it, and what is being written right now."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from toolkit.records import Record

STAGING = ".toolkit-restore"
_PROC = Path("/proc")


class Found(Record, frozen=True, kw_only=True):
    """A file or link as it was. Equal ones are taken for the same content."""

    size_bytes: int
    mtime_ns: int
    mode: int
    link: str = ""


class Entry(Record, frozen=True, kw_only=True):
    """A file or folder at the top, with all files below it by their path. `changed_s`: the newest change of any, since
    the epoch."""

    files: dict[str, Found]
    changed_s: float


def scan(folder: Path) -> dict[str, Entry]:
    """Return the entries of *folder* by name; FIFOs, sockets, devices and what vanishes meanwhile are left out."""
    entries = {}
    for name in sorted(_names(folder)):
        if name == STAGING:
            continue
        files: dict[str, Found] = {}
        changed_s = max((_look(folder, path, files) for path in _walk(folder, name)), default=0.0)
        if files:
            entries[name] = Entry(files=files, changed_s=changed_s)
    return entries


def look(path: Path) -> Found | None:
    """Return the file or link *path* as it is, None if it is neither."""
    try:
        seen = path.lstat()
        if stat.S_ISLNK(seen.st_mode):
            return Found(size_bytes=0, mtime_ns=0, mode=0o777, link=os.readlink(path))
    except OSError:
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    return Found(size_bytes=seen.st_size, mtime_ns=seen.st_mtime_ns, mode=stat.S_IMODE(seen.st_mode))


def being_written(folder: Path) -> frozenset[str]:
    """Return the names at the top of *folder* that a process of this user has open for writing, or a file below."""
    top = f"{os.path.realpath(folder)}/"
    found = set()
    for pid in _names(_PROC):
        if not pid.isdecimal():
            continue
        for fd in _names(_PROC / pid / "fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if not target.startswith(top):
                    continue
                flags = (_PROC / pid / "fdinfo" / fd).read_text().partition("flags:")[2].split()[0]
            except (OSError, IndexError):
                continue  # It has ended, or is closed.
            if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                found.add(target[len(top) :].partition("/")[0].removesuffix(" (deleted)"))
    return frozenset(found)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _walk(folder: Path, name: str) -> Iterator[str]:
    """Yield *name* and the paths of all folders and files below it, relative to *folder*."""
    yield name
    if (folder / name).is_symlink():
        return
    for place, folders, files in os.walk(folder / name):
        below = os.path.relpath(place, folder)
        yield from (f"{below}/{each}" for each in (*folders, *files))


def _look(folder: Path, path: str, files: dict[str, Found]) -> float:
    """Add *path* to *files* if it is a file or link; return when it was changed."""
    found = look(folder / path)
    if found is not None and _is_utf8(path):
        files[path] = found
    try:
        return (folder / path).lstat().st_ctime
    except OSError:
        return 0.0


def _is_utf8(path: str) -> bool:
    """True if *path* can be written in a manifest: a name of other bytes cannot."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
