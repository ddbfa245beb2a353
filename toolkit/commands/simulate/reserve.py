"""Space on the disk of a job's folder that the job cannot fill: for its last lines, outcome.json and job.json.

The first part is released when a log can no longer be written: the lines that are left and `train`'s own reports then
fit. The second part is released before job.json is written at the end.
"""

import contextlib
import errno
import os
from pathlib import Path

PARTS = {".reserve-1": 512 << 10, ".reserve-2": 128 << 10}  # Names and bytes.
LEAST_BYTES = 64 << 10  # A file system with less space than this is full.


class Reserve:
    """The reserve of the job in a folder. `was_needed`: a log could not be written."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._remaining = list(PARTS)
        self.was_needed = False

    def take(self) -> None:
        """Allocate the reserve.

        Raises:
            OSError: there is no space for it; `filename` is set.
        """
        for name, size_bytes in PARTS.items():
            fd = os.open(self._job_dir / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            except OSError as error:
                if is_full(error):
                    raise OSError(error.errno, error.strerror, str(self._job_dir)) from None
                # A file system that cannot allocate space has none to reserve.
            finally:
                os.close(fd)

    def release(self) -> bool:
        """Release the first part because a log cannot be written; return False if it was released before."""
        self.was_needed = True
        return self._remove(".reserve-1")

    def end(self) -> None:
        """Release all: the job has ended."""
        for name in PARTS:
            self._remove(name)

    def is_disk_full(self) -> bool:
        """True if the disk was full while the job ran, or is now."""
        try:
            room = os.statvfs(self._job_dir)
        except OSError:
            return self.was_needed
        return self.was_needed or (room.f_blocks > 0 and room.f_bavail * room.f_frsize < LEAST_BYTES)

    def _remove(self, name: str) -> bool:
        if name not in self._remaining:
            return False
        self._remaining.remove(name)
        with contextlib.suppress(OSError):
            (self._job_dir / name).unlink()
        return True


def is_full(error: BaseException | None) -> bool:
    """True if *error*, or one that it followed, says that a disk or a quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
