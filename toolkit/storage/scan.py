"""Looks at a folder whose files others write: what is in it, and what is being written right now.

Only ENOENT means that something is not there. Any other error is kept beside what could be read, so that nobody takes
an entry that cannot be read for one that is gone.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from toolkit import folders, paths
from toolkit.records import Record

STAGING = ".toolkit-restore"
LOCK = ".toolkit-restore.lock"
# At the top: ours, and that of ext4, which nobody but root may read.
NOT_CONTENT = (STAGING, LOCK, "lost+found")
_PROC = Path("/proc")
# /proc does not show the processes of other users, and a process may end at any moment.
_INVISIBLE = (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EINVAL)
# A file that names another entry holds no more than its name.
_POINTER_BYTES = 4096


class FileState(Record, frozen=True, kw_only=True):
    """A file or link as it was. Equal ones are taken for the same content."""

    size_bytes: int
    mtime_ns: int
    mode: int
    link: str = ""


class FolderEntry(Record, frozen=True, kw_only=True):
    """A file or folder at the top, with all files below it by their path. `changed_s`: the newest change of any, since
    the epoch."""

    files: dict[str, FileState]
    changed_s: float


class FolderScan(Record, frozen=True, kw_only=True):
    """The entries of a folder by name. `unreadable`: entries that could not be read to their end, and why; they may be
    in `entries`, too. `fault`: why the folder itself could not be listed to its end; "" if it was."""

    entries: dict[str, FolderEntry] = {}
    unreadable: dict[str, str] = {}
    fault: str = ""


def scan(folder: Path) -> FolderScan:
    """Return the entries of *folder*; FIFOs, sockets, devices and what vanishes meanwhile are left out."""
    top = os.fspath(folder)
    files: dict[str, dict[str, FileState]] = {}
    changed_s: dict[str, float] = {}
    unreadable: dict[str, str] = {}
    faults: list[str] = []

    def below(path: str) -> str:
        return path[len(top) :].lstrip("/")

    def note(error: OSError) -> None:
        path = below(os.fsdecode(error.filename or top))
        if not path:
            faults.append(describe(error))
        elif path not in NOT_CONTENT:
            unreadable.setdefault(entry_of(path), describe(error))

    for entry in folders.walk(folder, note, enter=lambda entry: below(entry.path) not in NOT_CONTENT):
        path = below(entry.path)
        if path in NOT_CONTENT:
            continue
        name = entry_of(path)
        try:
            status = entry.stat(follow_symlinks=False)
            state = _state_of(entry.path, status)
        except OSError as error:
            if error.errno != errno.ENOENT:
                error.filename = entry.path
                note(error)
            continue
        changed_s[name] = max(changed_s.get(name, 0.0), status.st_ctime)
        if state is not None:
            files.setdefault(name, {})[path] = state
    entries = {name: FolderEntry(files=states, changed_s=changed_s[name]) for name, states in files.items()}
    return FolderScan(entries=entries, unreadable=unreadable, fault="; ".join(faults))


def file_state(path: Path) -> FileState | None:
    """Return the file or link *path* as it is, None if it is neither.

    Raises:
        OSError: it is not known whether it is there.
    """
    status = folders.status(path, follow_links=False)
    try:
        return None if status is None else _state_of(path, status)
    except FileNotFoundError:
        return None


def read(path: Path, start: int, size_bytes: int) -> bytes:
    """Return *size_bytes* of the file *path* from *start* on; less only if it ends there.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        content = os.pread(fd, size_bytes, start)
        while len(content) < size_bytes and (more := os.pread(fd, size_bytes - len(content), start + len(content))):
            content += more
        return content
    finally:
        os.close(fd)


def pointer_names(folder: Path, path: str, state: FileState) -> tuple[str, ...]:
    """Return the names in what the link or the small file *path* of *folder* holds, if that can be one path.

    Raises:
        OSError: it cannot be read.
    """
    if state.link:
        target = state.link
    elif 0 < state.size_bytes <= _POINTER_BYTES:
        content = read(folder / path, 0, state.size_bytes)
        if len(content) != state.size_bytes:
            message = f"it ended after {len(content)} of {state.size_bytes} bytes"
            raise OSError(errno.EIO, message, os.fspath(folder / path))
        target = os.fsdecode(content).strip().strip("\"'")
    else:
        return ()
    if "\n" in target or "\0" in target:
        return ()
    return tuple(sorted({part for part in target.split("/") if part not in ("", ".", "..")}))


def entry_of(path: str) -> str:
    """Return the entry that holds *path*."""
    return path.partition("/")[0]


def describe(error: OSError) -> str:
    """Return *error* for people: what failed, and with which path."""
    text = error.strerror or str(error)
    return f"{paths.shown(error.filename)}: {text}" if error.filename else text


def entries_being_written(folder: Path) -> frozenset[str]:
    """Return the names at the top of *folder* that a process of this user has open for writing, or a file below.

    Raises:
        OSError: it is not known, because /proc cannot be read.
    """
    top = f"{os.path.realpath(folder)}/"
    names = set()
    for pid in _list_visible(_PROC):
        if not pid.isdecimal():
            continue
        for fd in _list_visible(_PROC / pid / "fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if not target.startswith(top):
                    continue
                flags = (_PROC / pid / "fdinfo" / fd).read_text().partition("flags:")[2].split()[0]
            except IndexError:
                continue  # It is closed.
            except OSError as error:
                if error.errno not in _INVISIBLE:
                    raise
                continue
            if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                names.add(entry_of(target[len(top) :]).removesuffix(" (deleted)"))
    return frozenset(names)


def _list_visible(folder: Path) -> Iterator[str]:
    """Yield the names in *folder* of /proc, none if it may not be seen."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        if error.errno not in _INVISIBLE:
            raise
        return
    yield from names


def _state_of(path: str | Path, status: os.stat_result) -> FileState | None:
    if stat.S_ISLNK(status.st_mode):
        return FileState(size_bytes=0, mtime_ns=0, mode=0o777, link=os.readlink(path))
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileState(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, mode=stat.S_IMODE(status.st_mode))
