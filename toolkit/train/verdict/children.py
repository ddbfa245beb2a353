"""Pure: the exceptions of processes that the script started itself.

These are ranks, as Lightning starts them without a launcher, and the real program of a script that only starts it:
subprocess.run(check=True), a wrapper of torchrun, accelerate or deepspeed.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from toolkit.job.outcome import Exit, PhaseEnd
from toolkit.patterns import lazy
from toolkit.status_pages.pages import Raised
from toolkit.train.verdict import error_frame, traceback
from toolkit.train.verdict.cause import FAR_LINES, REPORTS, error_text, find_traceback, handled_errors, read_or
from toolkit.train.verdict.collateral import reports_lost_rank
from toolkit.train.verdict.traceback import Traceback, read_first_failure

# subprocess.CalledProcessError's message; torchrun's ends with 1.
_STATUS = lazy(r"(?:exit status|exit code|exitcode)\s*:?\s*(?P<code>\d+)")
_EXIT = "SystemExit"


def with_children(phase: PhaseEnd) -> PhaseEnd:
    """Return *phase* with a child's exception as the cause of a script that only reports its failure, or only lost it.

    Not if `train` knows several ranks, and which of them started the child is not known.
    """
    ranks = [end for end in phase.exits if end.rank is not None]
    for end in ranks:
        if not end.ok and end.signal is None:
            phase = read_or(partial(_with_reported_child, phase, end, alone=len(ranks) == 1), phase)
    return _with_lost_child(phase, ranks[0]) if len(ranks) == 1 else phase


def _with_lost_child(phase: PhaseEnd, end: Exit) -> PhaseEnd:
    if end.ok or not phase.child_exceptions or phase.reported_by:
        return phase
    if not (reports_lost_rank(error_text(phase, end)) or reports_lost_rank(handled_errors(phase, end))):
        return phase
    recorded = [
        exception
        for exception in _recorded_before(phase, end)
        if exception.kind != _EXIT and not _is_peer_loss(exception)
    ]
    if not recorded:
        return phase
    first = min(recorded, key=lambda exception: exception.time_ns)
    exits = tuple(
        msgspec.structs.replace(exit, exception_raised_ns=first.time_ns) if exit is end else exit
        for exit in phase.exits
    )
    return msgspec.structs.replace(phase, exits=exits, exceptions={**phase.exceptions, end.process: first})


def _with_reported_child(phase: PhaseEnd, end: Exit, *, alone: bool) -> PhaseEnd:
    """Return *phase* with what ended the process whose failure the exception of *end* reports."""
    report = find_traceback(phase, end)
    if report is None or not report.kind.startswith(REPORTS):
        return phase
    exception = _find_recorded(phase, end, report, alone=alone)
    if exception is None or read_first_failure(exception.text)[1] == 1:
        # Python ends with 1 for an exception. What a rank has printed of it says more than torchrun's table.
        exception = _find_captured(report) or _find_printed(phase, end, report) or exception
    if exception is None or exception.kind.rpartition(".")[2] == report.kind:
        return phase
    frame = error_frame.shorten_frame(
        error_frame.find_user_frame(report.frames, phase.user_paths) or report.place, phase.user_paths
    )
    noted = phase.exceptions.get(end.process)
    time_ns = end.failed_ns if noted is None else noted.time_ns
    child = msgspec.structs.replace(
        exception, time_ns=time_ns, text="\n\n".join(filter(None, (exception.text, report.text)))
    )
    by = f"{report.kind} in {frame.partition(' in ')[0]}" if frame else report.kind
    return msgspec.structs.replace(
        phase,
        exceptions={**phase.exceptions, end.process: child},
        reported_by={**phase.reported_by, end.process: by},
    )


def _find_recorded(phase: PhaseEnd, end: Exit, report: Traceback, *, alone: bool) -> Raised | None:
    """Return what the rank hook recorded of the process that failed, None if it recorded nothing.

    A process that only reports the failure of its own children (torchrun) leads to the first of these that did not just
    lost another one.
    """
    status = _STATUS.search(report.error)
    records = [record for record in _recorded_before(phase, end) if record.code]
    pids = {record.pid for record in records}
    children = [record for record in records if record.parent == end.pid]
    if not children and alone:  # A shell in between.
        children = [record for record in records if record.parent not in pids]
    if status is not None:
        children = [record for record in children if record.code == int(status["code"])]
    if read_first_failure(report.text)[0]:
        exception = _first_failure_of(children, report.text)
    else:
        exception = max(children, key=lambda record: record.time_ns, default=None)
    passed: set[int] = set()
    while exception is not None and exception.pid not in passed and _only_tells_of_child(exception):
        passed.add(exception.pid)
        first = _first_failure_of([record for record in records if record.parent == exception.pid], exception.text)
        if first is None:
            break
        exception = first
    if exception is not None and read_first_failure(exception.text)[0]:
        return exception
    if exception is None or (_only_tells_of_child(exception) and exception.kind != _EXIT):
        return None
    if exception.kind != _EXIT or exception.handling is not None:
        return exception
    if not exception.message.strip():
        return None  # It said why before that, if it did.
    return msgspec.structs.replace(exception, kind="sys.exit", text="")


def _first_failure_of(records: Sequence[Raised], table: str) -> Raised | None:
    """Return the first of *records* that did not just lose another rank.

    None if all did, and the one that failed first by torchrun's *table* was killed or chose its code: of it nothing is
    recorded.
    """
    first = min(records, key=lambda record: (_is_peer_loss(record), record.time_ns), default=None)
    return None if first is not None and _is_peer_loss(first) and read_first_failure(table)[1] not in (0, 1) else first


def _find_captured(report: Traceback) -> Raised | None:
    """Return the exception in the output that the script had captured, and nobody printed."""
    return (
        _raised_from(traceback.find_last(report.command_output.encode("utf-8", "replace")))
        if report.command_output
        else None
    )


def _find_printed(phase: PhaseEnd, end: Exit, report: Traceback) -> Raised | None:
    """Return the exception that was printed before the report: the nearest that is none of a process that only lost
    another one."""
    status = _STATUS.search(report.error)
    if (status is not None and status["code"] != "1") or read_first_failure(report.text)[1] not in (0, 1):
        return None
    traces: list[Traceback] = []
    for stream in phase.tails.get(end.process, ()):
        earlier = traceback.find_before(stream, report.error.partition("\n")[0])
        traces += [trace for trace in earlier if not trace.kind.startswith(REPORTS) and trace.after <= FAR_LINES]
    return _raised_from(
        next((trace for trace in traces if not reports_lost_rank(trace.error)), traces[0] if traces else None)
    )


def _raised_from(trace: Traceback | None) -> Raised | None:
    if trace is None:
        return None
    kind, _, message = trace.error.partition(": ")
    return Raised(time_ns=0, kind=kind, message=message, text=trace.text, place=trace.place, frames=trace.frames)


def _recorded_before(phase: PhaseEnd, end: Exit) -> Iterable[Raised]:
    """Return what children recorded before *end* failed."""
    return [exception for exception in phase.child_exceptions if end.started_ns <= exception.time_ns <= end.failed_ns]


def _only_tells_of_child(noted: Raised) -> bool:
    """True if *noted* only tells that a child of its process failed: also a launcher that ends with its code."""
    kind = noted.kind.rpartition(".")[2]
    return kind.startswith(REPORTS) or (kind == _EXIT and noted.handling is None and not noted.message.strip())


def _is_peer_loss(noted: Raised) -> bool:
    """True if *noted* is the loss of another rank, or was raised because of one."""
    behind = (f"{error.kind}: {error.message}" for error in noted.behind)
    return any(map(reports_lost_rank, (f"{noted.kind}: {noted.message}", *behind)))
