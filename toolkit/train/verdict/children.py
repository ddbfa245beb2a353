"""Pure: the exceptions of processes that the script started itself.

These are ranks, as Lightning starts them without a launcher, and the real program of a script that only starts it:
subprocess.run(check=True), a wrapper of torchrun, accelerate or deepspeed.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from toolkit.job.outcome import Ended, Exit
from toolkit.patterns import lazy
from toolkit.status_pages.pages import Raised
from toolkit.train.verdict import place, traceback
from toolkit.train.verdict.cause import FAR_LINES, REPORTS, account, handled, last_traceback, read_or
from toolkit.train.verdict.collateral import lost_a_rank
from toolkit.train.verdict.traceback import Traceback, first_failure

# subprocess.CalledProcessError's message; torchrun's ends with 1.
_STATUS = lazy(r"(?:exit status|exit code|exitcode)\s*:?\s*(?P<code>\d+)")
_EXIT = "SystemExit"


def with_children(ended: Ended) -> Ended:
    """Return *ended* with a child's exception as the cause of a script that only reports its failure, or only lost it.

    Not if `train` knows several ranks, and which of them started the child is not known.
    """
    ranks = [end for end in ended.exits if end.rank is not None]
    for end in ranks:
        if not end.ok and end.signal is None:
            ended = read_or(partial(_with_reported, ended, end, alone=len(ranks) == 1), ended)
    return _with_lost(ended, ranks[0]) if len(ranks) == 1 else ended


def _with_lost(ended: Ended, end: Exit) -> Ended:
    if end.ok or not ended.raised_by_children or ended.reported_by:
        return ended
    if not (lost_a_rank(account(ended, end)) or lost_a_rank(handled(ended, end))):
        return ended
    own = [each for each in _between(ended, end) if each.kind != _EXIT and not _is_lost(each)]
    if not own:
        return ended
    first = min(own, key=lambda each: each.time_ns)
    exits = tuple(
        msgspec.structs.replace(each, raised_ns=first.time_ns) if each is end else each for each in ended.exits
    )
    return msgspec.structs.replace(ended, exits=exits, raised={**ended.raised, end.process: first})


def _with_reported(ended: Ended, end: Exit, *, alone: bool) -> Ended:
    """Return *ended* with what ended the process whose failure the exception of *end* reports."""
    report = last_traceback(ended, end)
    if report is None or not report.kind.startswith(REPORTS):
        return ended
    found = _recorded(ended, end, report, alone=alone)
    if found is None or first_failure(found.text)[1] == 1:
        # Python ends with 1 for an exception. What a rank has printed of it says more than torchrun's table.
        found = _captured(report) or _printed(ended, end, report) or found
    if found is None or found.kind.rpartition(".")[2] == report.kind:
        return ended
    where = place.short(place.of_user(report.frames, ended.own_code) or report.place, ended.own_code)
    noted = ended.raised.get(end.process)
    time_ns = end.failed_ns if noted is None else noted.time_ns
    child = msgspec.structs.replace(found, time_ns=time_ns, text="\n\n".join(filter(None, (found.text, report.text))))
    by = f"{report.kind} in {where.partition(' in ')[0]}" if where else report.kind
    return msgspec.structs.replace(
        ended,
        raised={**ended.raised, end.process: child},
        reported_by={**ended.reported_by, end.process: by},
    )


def _recorded(ended: Ended, end: Exit, report: Traceback, *, alone: bool) -> Raised | None:
    """Return what the rank hook recorded of the process that failed, None if it recorded nothing.

    A process that only reports the failure of its own children (torchrun) leads to the first of these that did not just
    lost another one.
    """
    status = _STATUS.search(report.error)
    records = [each for each in _between(ended, end) if each.code]
    known = {each.pid for each in records}
    own = [each for each in records if each.parent == end.pid]
    if not own and alone:  # A shell in between.
        own = [each for each in records if each.parent not in known]
    if status is not None:
        own = [each for each in own if each.code == int(status["code"])]
    of_torchrun = first_failure(report.text)[0]
    found = _first_of(own, report.text) if of_torchrun else max(own, key=lambda each: each.time_ns, default=None)
    passed: set[int] = set()
    while found is not None and found.pid not in passed and _reports(found):
        passed.add(found.pid)
        first = _first_of([each for each in records if each.parent == found.pid], found.text)
        if first is None:
            break
        found = first
    if found is not None and first_failure(found.text)[0]:
        return found
    if found is None or (_reports(found) and found.kind != _EXIT):
        return None
    if found.kind != _EXIT or found.handling is not None:
        return found
    if not found.message.strip():
        return None  # It said why before that, if it did.
    return msgspec.structs.replace(found, kind="sys.exit", text="")


def _first_of(records: Sequence[Raised], table: str) -> Raised | None:
    """Return the first of *records* that did not just lose another rank.

    None if all did, and the one that failed first by torchrun's *table* was killed or chose its code: of it nothing is
    recorded.
    """
    first = min(records, key=lambda each: (_is_lost(each), each.time_ns), default=None)
    return None if first is not None and _is_lost(first) and first_failure(table)[1] not in (0, 1) else first


def _captured(report: Traceback) -> Raised | None:
    """Return the exception in the output that the script had captured, and nobody printed."""
    return _as_raised(traceback.last(report.said.encode("utf-8", "replace"))) if report.said else None


def _printed(ended: Ended, end: Exit, report: Traceback) -> Raised | None:
    """Return the exception that was printed before the report: the nearest that is none of a process that only lost
    another one."""
    status = _STATUS.search(report.error)
    if (status is not None and status["code"] != "1") or first_failure(report.text)[1] not in (0, 1):
        return None
    seen: list[Traceback] = []
    for stream in ended.tails.get(end.process, ()):
        before = traceback.before(stream, report.error.partition("\n")[0])
        seen += [each for each in before if not each.kind.startswith(REPORTS) and each.after <= FAR_LINES]
    return _as_raised(next((each for each in seen if not lost_a_rank(each.error)), seen[0] if seen else None))


def _as_raised(found: Traceback | None) -> Raised | None:
    if found is None:
        return None
    kind, _, message = found.error.partition(": ")
    return Raised(time_ns=0, kind=kind, message=message, text=found.text, place=found.place, frames=found.frames)


def _between(ended: Ended, end: Exit) -> Iterable[Raised]:
    """Return what children recorded before *end* failed."""
    return [each for each in ended.raised_by_children if end.started_ns <= each.time_ns <= end.failed_ns]


def _reports(noted: Raised) -> bool:
    """True if *noted* only tells that a child of its process failed: also a launcher that ends with its code."""
    kind = noted.kind.rpartition(".")[2]
    return kind.startswith(REPORTS) or (kind == _EXIT and noted.handling is None and not noted.message.strip())


def _is_lost(noted: Raised) -> bool:
    """True if *noted* is the loss of another rank, or was raised because of one."""
    behind = (f"{each.kind}: {each.message}" for each in noted.behind)
    return any(map(lost_a_rank, (f"{noted.kind}: {noted.message}", *behind)))
