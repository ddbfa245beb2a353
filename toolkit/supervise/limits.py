"""The limits of a host: descriptors, processes, memory. `train` raises its own soft limit, and names the limit that was
reached."""

import errno
import resource

from toolkit.errors import PlatformError

# More than any job of one host needs; an unlimited hard limit would make programs that close "all" descriptors slow.
MOST_FILES = 65536
FILES_HINT = (
    "Raise the hard limit (docker run --ulimit nofile=65536:65536, LimitNOFILE= of the container engine's service), "
    "or run fewer ranks on a host."
)
PROCESSES_HINT = (
    "Raise the limit of processes (docker run --pids-limit, podPidsLimit of the kubelet, ulimit -u), "
    "or run fewer ranks or data loader workers."
)
MEMORY_HINT = "Give the container more memory, or run fewer ranks or data loader workers."


def raise_open_files() -> tuple[int, int]:
    """Raise this process's soft limit of open files as far as MOST_FILES and the hard limit allow.

    Returns (soft, hard) as they were before: the limits for the programs that `train` starts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):
            pass  # A sandbox may forbid it; the limit stays as it was.
    return soft, hard


def set_open_files(limits: tuple[int, int]) -> None:
    """Set this process's (soft, hard) limit of open files; between fork and exec."""
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def exhausted(error: OSError) -> PlatformError | None:
    """Return the error to raise in place of *error* if this host has reached a limit, None if it has not."""
    if error.errno == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _error("another file descriptor", error, f"RLIMIT_NOFILE: soft {soft}, hard {hard}", FILES_HINT)
    if error.errno == errno.ENFILE:
        return _error("another open file", error, "fs.file-max, of all processes together", FILES_HINT)
    if error.errno == errno.EAGAIN:
        return _error("another process", error, "pids.max of the control group, or RLIMIT_NPROC", PROCESSES_HINT)
    if error.errno == errno.ENOMEM:
        return _error("memory for another process", error, "", MEMORY_HINT)
    return None


def _error(wanted: str, error: OSError, limit: str, hint: str) -> PlatformError:
    found = f"{error.strerror} ({limit})" if limit else str(error.strerror)
    return PlatformError(f"expected {wanted} on this host, found: {found}", hint=hint)
