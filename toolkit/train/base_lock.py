"""Keeps two `train` from one base: both would write the same output, remove each other's reports and mix checkpoints.

The lock (flock) is on the base folder itself, so that nothing has to be written: it works on a read-only file system,
and the kernel releases it when its holder dies, however. Where a file system has no such locks, `train` starts without.
"""

import errno
import fcntl
import os
from pathlib import Path

from toolkit.errors import PlatformError
from toolkit.folders import make


def take(base: Path) -> int | None:
    """Return a descriptor that holds the lock of *base*, which is created if absent; None where it cannot be had.

    Raises:
        PlatformError: another process holds it.
    """
    try:
        make(base)
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(fd) if error.errno in (errno.EAGAIN, errno.EACCES) else None
        os.close(fd)
        if holder is None:
            return None
        raise PlatformError(
            f"another train{holder} is running a job with this base folder",
            where=str(base),
            hint="Wait until it has ended, or give this job another one (TOOLKIT_BASE; its {job} and {host} tell jobs"
            " and hosts apart).",
        ) from None
    return fd


def _holder(fd: int) -> str:
    """Return " (pid 71)" for the process that holds the lock of the open folder *fd*, "" if /proc does not tell."""
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                return f" (pid {words[4]})"
    except (OSError, ValueError):
        pass
    return ""
