"""The limits that a host can reach, descriptors, processes and memory, as errors that name the limit and the way out.

Both `train`, which reaches one itself, and the verdict on a launcher that did use these texts.
"""

import errno
import os

from toolkit.errors import PlatformError

FILES_HINT = (
    "Raise the hard limit (docker run --ulimit nofile=65536:65536, LimitNOFILE= of the container engine's service), "
    "or run fewer ranks on a host."
)
PROCESSES_HINT = (
    "Raise the limit of processes (docker run --pids-limit, podPidsLimit of the kubelet, ulimit -u), "
    "or run fewer ranks or data loader workers."
)
MEMORY_HINT = "Give the container more memory, or run fewer ranks or data loader workers."
# EAGAIN is fork's or clone's: other calls that return it have reached no limit, and the caller must know which it was.
NUMBERS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


def limit_error(number: int, open_files: tuple[int, int] | None = None) -> PlatformError | None:
    """Return the error for a call that failed with errno *number*, None if that is no limit of the host.

    *open_files*: the (soft, hard) limit of open files of the process that made the call.
    """
    if number == errno.EMFILE:
        limit = "RLIMIT_NOFILE" if open_files is None else f"RLIMIT_NOFILE: soft {open_files[0]}, hard {open_files[1]}"
        return _error("another file descriptor", number, limit, FILES_HINT)
    if number == errno.ENFILE:
        return _error("another open file", number, "fs.file-max, of all processes together", FILES_HINT)
    if number == errno.EAGAIN:
        return _error("another process", number, "pids.max of the control group, or RLIMIT_NPROC", PROCESSES_HINT)
    if number == errno.ENOMEM:
        return _error("memory for another process", number, "", MEMORY_HINT)
    return None


def _error(resource: str, number: int, limit: str, hint: str) -> PlatformError:
    reason = f"{os.strerror(number)} ({limit})" if limit else os.strerror(number)
    return PlatformError(f"expected {resource} on this host, found: {reason}", hint=hint)
