"""Tells what a path that a user gives is: a file, a folder, or something else."""

import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def is_file(path: Path) -> bool:
    """True if *path* is a file; False also for an invalid path (a NUL, or a name of more than 255 bytes, for which
    Path.is_file raises)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """True if *path* is a folder; False also for an invalid path, or one in a folder that this user may not read."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def kind_of(path: Path) -> str:
    """Return the kind of *path*, links followed: "a file", "a FIFO", "a link to nothing", "nothing", ..."""
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        return f"something that cannot be looked at ({error.strerror})"
    except (OSError, ValueError):
        try:
            return f"a link to nothing ({path.readlink()})"
        except (OSError, ValueError):
            return "nothing"
    # Without a kind: what the kernel makes without one, such as an epoll descriptor in /proc/PID/fd.
    return next((kind for holds, kind in _KINDS if holds(mode)), "a special file")
