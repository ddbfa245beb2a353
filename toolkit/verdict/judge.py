"""Pure: what the loop saw -> how the job ended on this host, which process is the cause, and what it said.

The status is computed here, once; nothing later changes it. docs/exit-codes.md has the same table for people.
"""

import signal

from toolkit.errors import ToolkitError
from toolkit.job.job import Job
from toolkit.job.outcome import Ended, Exit, Outcome
from toolkit.verdict import traceback

LAST_LINES = 8
TEMPORARY_FAILURE = 75
PIP_ERROR = "ERROR:"


def judge(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of a host whose last phase ended as *ended*.

    - needs that were not met: failed, 75;
    - a process that ended badly by itself, before any stop: failed, with its code or 128 + signal;
    - otherwise a stop signal: stopped, 128 + signal, or 0 where the platform counts a script that ended with 0 as
      success;
    - otherwise succeeded, 0.
    """
    culprit = _culprit(ended)
    if culprit is not None and (ended.stopped_by is None or _before_stop(ended, culprit)):
        return _failed(job, ended, culprit)
    if ended.missing:
        return _missing(job, ended)
    if ended.stopped_by is not None and not _finished_before_stop(ended):
        return _stopped(job, ended)
    return Outcome(
        status="succeeded",
        exit_code=0,
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def of_error(error: ToolkitError, host: str) -> Outcome:
    """Return the outcome of a job that ended by an error the toolkit itself has named."""
    return Outcome(
        status="failed", exit_code=error.exit_code, blame=error.blame, kind=error.prefix, cause=str(error), host=host
    )


def of_fault(text: str, trace: str, host: str) -> Outcome:
    """Return the outcome of a job that ended by a fault of the toolkit."""
    return Outcome(
        status="failed", exit_code=70, blame="toolkit", kind="Framework Error", cause=text, traceback=trace, host=host
    )


def _culprit(ended: Ended) -> Exit | None:
    """Return the process that failed first by itself: a rank before a launcher, which only repeats what its ranks
    did."""
    bad = [e for e in ended.exits if not e.ok and not e.told]
    ranks = [e for e in bad if e.rank is not None]
    return min(ranks or bad, key=lambda e: e.ended_ns, default=None)


def _before_stop(ended: Ended, culprit: Exit) -> bool:
    return ended.stopped_at_ns is not None and culprit.ended_ns < ended.stopped_at_ns


def _finished_before_stop(ended: Ended) -> bool:
    """True if every process had ended well when the signal came: the job was done."""
    at_ns = ended.stopped_at_ns or 0
    return bool(ended.exits) and all(e.ok and e.ended_ns < at_ns for e in ended.exits)


def _failed(job: Job, ended: Ended, culprit: Exit) -> Outcome:
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    cause, trace = _cause(ended, culprit, stderr, stdout)
    return Outcome(
        status="failed",
        exit_code=culprit.status or 1,
        blame="user",
        kind=ended.failure,
        cause=cause,
        traceback=trace,
        host=job.cluster.current,
        process=culprit.process,
        pid=culprit.pid,
        rank=culprit.rank if job.cluster.size * job.processes_per_host > 1 else None,
        local_rank=culprit.local_rank,
        ended=how(culprit),
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _stopped(job: Job, ended: Ended) -> Outcome:
    number = ended.stopped_by or 0
    ranks = [e for e in ended.exits if e.rank is not None] or list(ended.exits)
    well = bool(ranks) and all(e.ok for e in ranks)
    code = 0 if well and job.stopped_is_success else 128 + number
    name = _signal_name(number)
    if not ended.exits:
        what = f"stopped by {name} before {ended.phase} began"
    elif well:
        what = f"stopped by {name}; the script ended with 0"
    else:
        ends = "; ".join(sorted({f"{e.process} {how(e)}" for e in ranks if not e.ok}))
        what = f"stopped by {name}; {ends}"
    if ended.forced:
        what += f"; SIGKILL was needed (grace {job.grace_s:g} s)"
    return Outcome(
        status="stopped",
        exit_code=code,
        blame="",
        kind="Stopped" if code else "",
        cause=what,
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _missing(job: Job, ended: Ended) -> Outcome:
    cause = "waited in vain for " + "; for ".join(ended.missing) + f" (TOOLKIT_JOIN_S={job.settings.join_s:g})"
    return Outcome(
        status="failed",
        exit_code=TEMPORARY_FAILURE,
        blame="platform",
        kind="PlatformError",
        cause=cause,
        host=job.cluster.current,
        command=ended.command,
        notes=_notes(ended),
    )


def _cause(ended: Ended, culprit: Exit, stderr: bytes, stdout: bytes) -> tuple[str, str]:
    """Return (the cause in one or few lines, the whole traceback or "")."""
    if ended.failure.startswith("Install"):
        error = _last_error_of_pip(stderr) or _last_error_of_pip(stdout)
        if error:
            return error, ""
    found = traceback.last(stderr) or traceback.last(stdout)
    if culprit.signal is not None:
        cause = f"{culprit.process} was {how(culprit)}"
        if culprit.signal == signal.SIGKILL:
            cause += " (not by the toolkit; the kernel's out-of-memory killer and `docker kill` do this)"
        return cause + _said_last(stderr, stdout), found.text if found else ""
    if found is not None:
        place = f" (at {found.place})" if found.place else ""
        first, newline, rest = found.error.partition("\n")
        return f"{first}{place}{newline}{rest}", found.text
    return _last_lines(stderr) or _last_lines(stdout) or f"{culprit.process} {how(culprit)} without a word", ""


def _said_last(stderr: bytes, stdout: bytes) -> str:
    said = _last_lines(stderr, 3) or _last_lines(stdout, 3)
    return f"; it last said: {said}" if said else ""


def _last_error_of_pip(tail: bytes) -> str:
    lines = tail.decode("utf-8", "replace").splitlines()
    errors = [line.strip() for line in lines if line.strip().startswith(PIP_ERROR)]
    return errors[-1].removeprefix(PIP_ERROR).strip() if errors else ""


def _last_lines(tail: bytes, count: int = LAST_LINES) -> str:
    lines = [line.rpartition("\r")[2].rstrip() for line in tail[-8192:].decode("utf-8", "replace").splitlines()]
    return "\n".join([line for line in lines if line][-count:])


def how(end: Exit) -> str:
    """Return "ended with code 3", "killed by SIGSEGV (signal 11)"."""
    if end.signal is not None:
        return f"killed by {_signal_name(end.signal)} (signal {end.signal})"
    return f"ended with code {end.code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _notes(ended: Ended) -> tuple[str, ...]:
    long = (f"{ended.long_lines} line(s) above 1 MiB were passed on in pieces",) if ended.long_lines else ()
    return (*ended.notes, *long)
