"""Makes the outcome of what ended this host: its processes, an error or a stop.

`verdict` judges processes. Its import takes 7 ms, which the script need not wait for: the supervisor calls
`import_for_the_end` when the first process runs (train/supervise/deferred_work.py). The end would be too late: by then
the script may have removed the toolkit, or pip may have installed another version in its place.
"""

import errno
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolkit import exit_codes, machine
from toolkit.errors import PlatformError, ToolkitError, explain_path_error
from toolkit.job.cause import Cause
from toolkit.job.job import Job
from toolkit.job.outcome import MemoryUse, Outcome, PhaseEnd, signal_name
from toolkit.log import Log
from toolkit.train.supervise import limits
from toolkit.train.supervise.signals import Interrupted

if TYPE_CHECKING:
    from traceback import FrameSummary


def import_for_the_end(log: Log) -> None:
    """Import the modules that only the end of a job needs."""
    try:
        import traceback  # noqa: F401

        from toolkit.train.source import modules  # noqa: F401
        from toolkit.train.verdict import judge  # noqa: F401
    except Exception as error:  # noqa: BLE001 - files of another version may raise anything, and the job goes on
        log.warning(f"{_without_files(error)}. At the job's end `train` will fail with {exit_codes.INTERNAL_FAULT}")


def of_end(job: Job, ended: PhaseEnd) -> Outcome:
    """Return the outcome of this host's processes, which ended as *ended*.

    After a fault it tries again: how a script has ended does not change for one read that failed.
    """
    try:
        return _judged(job, ended)
    except ToolkitError:
        raise
    except Exception:  # noqa: BLE001 - a second one is an outcome of its own
        pass
    try:
        return _judged(job, ended)
    except ImportError as error:
        outcome = of_fault(error, job.cluster.current)
        ends = ", ".join(f"{exit.process} ended with {exit.status}" for exit in ended.exits)
        text = f"{_without_files(error)}. What is known: {ends or 'no process was started'}"
        cause = msgspec.structs.replace(outcome.cause, message=text)
        return msgspec.structs.replace(outcome, cause=cause, command=ended.command, exits=ended.exits)


def _judged(job: Job, ended: PhaseEnd) -> Outcome:
    from toolkit.train.verdict import judge

    return advised(job, judge.judge(job, ended))


def advised(job: Job, outcome: Outcome) -> Outcome:
    """Return *outcome* with better advice where a missing module is one of the user's own code."""
    from toolkit.train.source import modules
    from toolkit.train.verdict.advice import INSTALL, advise_own_module

    if job.script is None or outcome.cause.advice != INSTALL:
        return outcome
    folder = job.script.folder
    better = advise_own_module(outcome.cause.message, lambda name: modules.path_of(name, folder))
    cause = msgspec.structs.replace(outcome.cause, advice=better or INSTALL)
    return msgspec.structs.replace(outcome, cause=cause)


def _without_files(error: Exception) -> str:
    return (
        f"expected the toolkit's own files, found none ({error}): they were removed or replaced while `train` ran."
        " Let neither the script nor its requirements change the toolkit's installation"
    )


def of_error(error: ToolkitError, me: str) -> Outcome:
    """Return the outcome of host *me*, whose part ended with *error*."""
    cause = Cause(blame=error.blame, kind=error.prefix, message=str(error), primary=True)
    return Outcome(status="failed", exit_code=error.exit_code, cause=cause, cause_host=me)


def of_stop(stop: Interrupted, me: str) -> Outcome:
    """Return the outcome of host *me*, which *stop* ended before its script began."""
    cause = Cause(kind="Stopped", message=f"stopped by {signal_name(stop.number)} before the script began")
    return Outcome(status="stopped", exit_code=exit_codes.of_signal(stop.number), cause=cause, cause_host=me)


def of_os_error(error: OSError, me: str) -> Outcome:
    """Return the outcome of a job ended by a limit of the host or a path's permissions, else by a fault of `train`."""
    limit: ToolkitError | None = limits.exhausted(error) or _denied(error)
    if limit is None and error.errno in (errno.EACCES, errno.EROFS):
        limit = explain_path_error(error)
    return of_fault(error, me) if limit is None else of_error(limit, me)


def of_any(error: BaseException, me: str) -> Outcome:
    """Return the outcome of host *me*, whose part was ended by *error*, whatever that is."""
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(signal.SIGINT)
    if isinstance(error, Interrupted):
        return of_stop(error, me)
    if isinstance(error, ToolkitError):
        return of_error(error, me)
    if isinstance(error, MemoryError):
        limit = limits.exhausted(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        return of_fault(error, me) if limit is None else of_error(limit, me)
    return of_os_error(error, me) if isinstance(error, OSError) else of_fault(error, me)


def of_fault(error: BaseException, me: str) -> Outcome:
    """Return the outcome of a job ended by a fault of `train`, with the traceback of *error*."""
    import traceback

    text, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    cause = Cause(blame="toolkit", kind="Framework Error", message=text, traceback=trace, primary=True)
    return Outcome(status="failed", exit_code=exit_codes.INTERNAL_FAULT, cause=cause, cause_host=me)


def _denied(error: OSError) -> PlatformError | None:
    """Return what to tell of a system call that this host denies, None if *error* is another one."""
    if error.errno not in (errno.EPERM, errno.ENOSYS) or error.filename is not None:
        return None
    hint = "Allow it in the profile of the container's sandbox (docker run --security-opt seccomp=PROFILE)."
    place = "".join(f" in {frame.name}" for frame in _frames(error)[-1:])
    return PlatformError(f"this host denies a system call that train needs{place} ({error.strerror})", hint=hint)


def _frames(error: BaseException) -> "list[FrameSummary]":
    import traceback

    return list(traceback.extract_tb(error.__traceback__))


class OomWatch:
    """Returns, when called, how many processes the kernel has killed for lack of memory since the attempt began."""

    def __init__(self) -> None:
        self._root = Path("/")
        self.begin()

    def begin(self) -> None:
        self._before = machine.oom_kills(self._root)

    def __call__(self) -> MemoryUse:
        root, now = self._root, machine.oom_kills(self._root)
        kills = None if now is None or self._before is None else now - self._before
        return MemoryUse(
            oom_kills=kills, peak_bytes=machine.memory_peak_bytes(root), limit_bytes=machine.memory_bytes(root)
        )
