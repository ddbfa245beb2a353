"""Tells what a path that a user gives is: a file, a folder, or something else."""

import errno
import stat
from pathlib import Path

from toolkit import folders
from toolkit.errors import may_pass

_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_file(path: Path) -> bool:
    """True if *path* is a file; False also where another try ends the same: an invalid path, a name of more than 255
    bytes, a folder that this user may not read. `kind_of` says what there is.

    Raises:
        OSError: it is not known, and may be at another time.
    """
    return folders.is_file(path, raise_what_may_pass)


def is_folder(path: Path) -> bool:
    """True if *path* is a folder; the rest as in `is_file`."""
    return folders.is_dir(path, raise_what_may_pass)


def kind_of(path: Path) -> str:
    """Return the kind of *path*, links followed: "a file", "a FIFO", "a link to nothing", "nothing", ..."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _NOTHING:
            return f"something that cannot be looked at ({error.strerror})"
        try:
            return f"a link to nothing ({path.readlink()})"
        except (OSError, ValueError):
            return "nothing"
    # Without a kind: what the kernel makes without one, such as an epoll descriptor in /proc/PID/fd.
    return next((kind for holds, kind in _KINDS if holds(mode)), "a special file")


def raise_what_may_pass(error: OSError) -> None:
    """The handler (folders.py) of readers for whom only what another try may find differs from what is absent."""
    if may_pass(error):
        raise error
