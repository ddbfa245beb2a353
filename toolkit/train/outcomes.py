"""Makes the outcome of what ended this host: its processes, an error or a stop. `verdict` is imported only then."""

import errno
from pathlib import Path

from toolkit.errors import ToolkitError, of_path
from toolkit.job.job import Job
from toolkit.job.outcome import Ended, Memory, Outcome
from toolkit.probe import host
from toolkit.supervise import limits
from toolkit.supervise.signals import Interrupted


def of_end(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of this host's processes, which ended as *ended*."""
    from toolkit.verdict import judge

    return judge.judge(job, ended)


def of_error(error: ToolkitError, me: str) -> Outcome:
    """Return the outcome of host *me*, whose part ended with *error*."""
    from toolkit.verdict import judge

    return judge.of_error(error, me)


def of_stop(stop: Interrupted, me: str) -> Outcome:
    """Return the outcome of host *me*, which *stop* ended before its script began."""
    from toolkit.verdict import judge

    return judge.of_stop(stop.number, me)


def of_os_error(error: OSError, me: str) -> Outcome:
    """Return the outcome of a job ended by a limit of the host or a path's permissions, else by a fault of `train`."""
    limit = limits.exhausted(error) or (of_path(error) if error.errno in (errno.EACCES, errno.EROFS) else None)
    return of_fault(error, me) if limit is None else of_error(limit, me)


def of_fault(error: Exception, me: str) -> Outcome:
    """Return the outcome of a job ended by a fault of `train`, with the traceback of *error*."""
    import traceback

    from toolkit.verdict import judge

    trace = "".join(traceback.format_exception(error))
    return judge.of_fault(f"{type(error).__name__}: {error}", trace, me)


class OomWatch:
    """When called, returns how many processes the kernel has killed for lack of memory since the attempt began."""

    def __init__(self) -> None:
        self._root = Path("/")
        self.begin()

    def begin(self) -> None:
        self._before = host.oom_kills(self._root)

    def __call__(self) -> Memory:
        root, now = self._root, host.oom_kills(self._root)
        kills = None if now is None or self._before is None else now - self._before
        return Memory(oom_kills=kills, peak_bytes=host.memory_peak_bytes(root), limit_bytes=host.memory_bytes(root))
