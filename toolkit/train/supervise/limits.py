"""The limits of a host: descriptors, processes, memory. `train` raises its own soft limit, and names the limit that was
reached."""

import resource

from toolkit.errors import PlatformError
from toolkit.job.host_limits import limit_error

# More than any job of one host needs; an unlimited hard limit would make programs that close "all" descriptors slow.
MOST_FILES = 65536


def open_files() -> tuple[int, int] | None:
    """Return this process's (soft, hard) limit of open files, None where a sandbox denies the question."""
    try:
        return resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:
        return None


def raise_open_files() -> tuple[int, int] | None:
    """Raise this process's soft limit of open files as far as MOST_FILES and the hard limit allow.

    Returns (soft, hard) as they were before, the limits for the programs that `train` starts; None if unknown.
    """
    limits = open_files()
    if limits is None:
        return None
    soft, hard = limits
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):
            pass  # A sandbox may forbid it; the limit stays as it was.
    return limits


def set_open_files(limits: tuple[int, int]) -> None:
    """Set this process's (soft, hard) limit of open files; between fork and exec."""
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def exhausted(error: OSError) -> PlatformError | None:
    """Return the error to raise in place of *error* if this host has reached a limit, None if it has not."""
    return limit_error(error.errno, open_files()) if error.errno is not None else None
