"""Pure: computes from the observations of the run how the job ended on this host, and which process is the cause.

The status is computed here, once; nothing later changes it. docs/exit-codes.md has the same table for users.
"""

import msgspec

from toolkit import exit_codes
from toolkit.errors import InternalError
from toolkit.job.cause import Cause
from toolkit.job.job import Job
from toolkit.job.outcome import Ended, Exit, Hung, Outcome, Ruled, signal_name
from toolkit.job.stuck import culprits, described
from toolkit.train.verdict import early, mpi, place
from toolkit.train.verdict import tail as ends
from toolkit.train.verdict.advice import advice
from toolkit.train.verdict.cause import LAST_CHARACTERS, Reading, cause_of, exception_text, grounds, how
from toolkit.train.verdict.children import with_children
from toolkit.train.verdict.collateral import is_collateral
from toolkit.train.verdict.culprit import (
    INSTALL,
    culprit_of,
    fingerprint,
    finished_before_stop,
    has_same_traceback,
    lost_a_peer_rank,
    lost_its_peer,
    only_launches,
    preempted,
    ranks_of,
)
from toolkit.train.verdict.exhausted import limit_reached


def judge(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of a host whose last phase ended as *ended*. The first line that applies decides:

    - no rank was active for TOOLKIT_STALL_S before any process failed by itself: failed, 124;
    - a log rule ended the job, and no process failed by itself: failed, with the code of the rule's action;
    - a process failed by itself before any stop request: failed, with its code or 128 + signal; if it is the launcher,
    and the host had run out of descriptors, processes or memory: failed, 75;
    - needs were not met: failed, 75;
    - a stop signal came: stopped, 128 + signal, or 0 if the script ended with 0 and the platform counts that as
    success;
    - another host failed: failed, 75, until the job's verdict is known (train/coordinator.py);
    - mpirun started no rank on this host: failed, 78;
    - the job was over, `train` ended the rest here, and all else had ended with 0: succeeded, 0;
    - the launcher ended its ranks, or `train` did on its request: failed, 1. A death by our own signal is never a
    cause;
    - all processes of the script's phase ended with 0: succeeded, 0.

    Raises:
        InternalError: none of them had ended.
    """
    outcome = _judged(job, _completed(job, ended))
    linked = len(job.cluster.hosts) > 1 and job.settings.link == "on"
    return outcome if linked else early.blamed(outcome)


def _judged(job: Job, ended: Ended) -> Outcome:
    culprit = culprit_of(ended)
    if ended.hung is not None and (culprit is None or culprit.ended_ns > _hung_ns(ended)):
        return _hung(job, ended, ended.hung)
    if ended.ruled is not None and culprit is None:
        return _ruled(job, ended, ended.ruled)
    if culprit is not None:
        return _failed(job, ended, culprit)
    if ended.missing:
        return _missing(job, ended)
    if ended.stopped_by is not None:
        return _succeeded(job, ended) if finished_before_stop(ended) else _stopped(job, ended)
    if ended.peer_failed:
        return _with_another(job, ended)
    if _got_no_rank(job, ended):
        return _without_ranks(job, ended)
    if ended.over and ended.exits and all(e.ok or e.signalled for e in ended.exits):
        return _succeeded(job, ended)
    if not all(e.ok for e in ended.exits):
        return _ended_by_launcher(job, ended)
    if not ended.exits or ended.phase == INSTALL:
        raise InternalError(f"{ended.phase} was judged before any process of the script had ended")
    return _succeeded(job, ended)


def _completed(job: Job, ended: Ended) -> Ended:
    """Return *ended* with what the observations together tell: whose code is the user's, and what ended ranks that only
    report it."""
    return with_children(mpi.with_aborts(msgspec.structs.replace(ended, own_code=place.own_code(job))))


def _got_no_rank(job: Job, ended: Ended) -> bool:
    """True if mpirun has started none of its ranks on this host. Without rank shims this is not known: False."""
    if job.cluster.size == 1 or ended.main not in mpi.MAINS or job.settings.rank_shim == "off":
        return False
    well = bool(ended.exits) and all(e.ok or e.signalled for e in ended.exits)
    return well and ended.phase != INSTALL and all(e.rank is None for e in ended.exits)


def _without_ranks(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of a host without ranks. Not `primary`: if mpirun itself failed, that is the cause."""
    return Outcome(
        status="failed",
        exit_code=exit_codes.MISCONFIGURED,
        cause=Cause(
            blame="user",
            kind="ClientError",
            text=f"mpirun started no rank on host {job.cluster.current}: another host did the work of both",
            advice="See that each host's name leads to it and no other, or give the addresses (TOOLKIT_HOST_ADDRESSES);"
            " and that custom MPI options place a rank on every host",
            failed_ns=max(e.ended_ns for e in ended.exits),
        ),
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def failed(job: Job, ended: Ended) -> Outcome | None:
    """Return the outcome of what has failed here by itself so far, None if nothing has."""
    ended = _completed(job, ended)
    culprit = culprit_of(ended)
    if culprit is None:
        return None if ended.ruled is None else _ruled(job, ended, ended.ruled)
    return _failed(job, ended, culprit)


def _succeeded(job: Job, ended: Ended) -> Outcome:
    return Outcome(
        status="succeeded",
        exit_code=0,
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _failed(job: Job, ended: Ended, culprit: Exit) -> Outcome:
    reading = cause_of(ended, culprit)
    cause = reading.text
    abort = mpi.abort_of(ended, culprit) if not reading.traceback else None
    launcher = ""
    if abort is not None:
        launcher = "" if culprit.rank is not None else f"{culprit.process} "
        cause, culprit = mpi.named(ended, culprit, abort)
    several = job.cluster.size > 1 or len({e.rank for e in ended.exits if e.rank is not None}) > 1
    outcome = Outcome(
        status="failed",
        exit_code=culprit.status or 1,
        cause=Cause(
            blame="user",
            kind=ended.failure,
            text=cause,
            traceback=reading.traceback,
            process=culprit.process,
            pid=culprit.pid or None,
            rank=culprit.rank if several else None,
            local_rank=culprit.local_rank,
            ended=launcher + how(culprit),
            grounds=grounds(ended, culprit) if abort is None else "reason",
            advice=_advice(job, ended, reading if abort is None else Reading(text=cause, error=cause)),
            primary=not lost_its_peer(ended, culprit) and not (several and only_launches(ended, culprit)),
            lost=lost_a_peer_rank(ended, culprit),
            failed_ns=culprit.failed_ns,
            fingerprint=fingerprint(ended, culprit),
            identical_failures=sum(
                1 for e in ended.exits if e is not culprit and has_same_traceback(ended, e, culprit)
            ),
            preempted=preempted(ended, culprit),
        ),
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )
    return _with_limit(job, ended, culprit, outcome) if only_launches(ended, culprit) else outcome


def _advice(job: Job, ended: Ended, reading: Reading) -> str:
    """Return advice for the cause; without any, what is known to be wrong with the script's text."""
    text = advice(reading.error, caused_by=reading.caused_by, handled=reading.handled)
    flaw = job.script.flaw if job.script is not None and ended.phase != INSTALL else ""
    return text or flaw


def _with_limit(job: Job, ended: Ended, launcher: Exit, outcome: Outcome) -> Outcome:
    """Return *outcome*, whose cause is *launcher*; if it failed because of a limit of this host, that is the cause."""
    limit = limit_reached(ended, launcher, relays_ranks=job.settings.rank_shim == "off")
    if limit is None:
        return outcome
    cause = msgspec.structs.replace(
        outcome.cause,
        blame=limit.blame,
        kind=limit.prefix,
        text=str(limit),
        advice="",  # The text says what to do.
        grounds="reason",
        primary=True,
        lost=False,
    )
    return msgspec.structs.replace(outcome, exit_code=limit.exit_code, cause=cause)


def _ended_by_launcher(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of a host on which nothing failed by itself: its launcher asked `train` to end the ranks."""
    main = next((e for e in ended.exits if e.process == ended.main and e.rank is None), None)
    stderr, _ = ended.tails.get(ended.main, (b"", b""))
    said = ends.last(stderr, 3, LAST_CHARACTERS)
    reason = f"it last said: {said}" if said else "it gave no reason"
    outcome = Outcome(
        status="failed",
        exit_code=1,
        cause=Cause(
            blame="user",
            kind=ended.failure,
            text=f"{ended.main} had its ranks ended; {reason}",
            process=ended.main,
            pid=None if main is None else main.pid,
            lost=True,
            failed_ns=min(e.failed_ns for e in ended.exits if not e.ok),
        ),
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )
    return outcome if main is None else _with_limit(job, ended, main, outcome)


def _hung(job: Job, ended: Ended, hung: Hung) -> Outcome:
    me, alone = job.cluster.current, len(job.cluster.hosts) == 1
    cause = f"no rank has written or computed anything for {hung.idle_s:.0f} s (TOOLKIT_STALL_S)"
    return Outcome(
        status="failed",
        exit_code=exit_codes.TIMED_OUT,
        cause=Cause(
            blame="user",
            kind="Hang",
            text="; ".join((cause, *described({me: hung.stuck}, alone=True))) if alone else cause,
            primary=True,
            failed_ns=_hung_ns(ended),
        ),
        host=me if alone and culprits({me: hung.stuck}) else "",
        stuck=hung.stuck,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _ruled(job: Job, ended: Ended, ruled: Ruled) -> Outcome:
    return Outcome(
        status="failed",
        exit_code=ruled.exit_code,
        cause=Cause(
            blame="user", kind="HealthRule", text=ruled.text, rank=ruled.rank, primary=True, failed_ns=ruled.at_ns
        ),
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _hung_ns(ended: Ended) -> int:
    """Return when a hang began, computed from its end and its length: nothing that failed later caused it."""
    if ended.hung is None:
        return 0
    seen_ns = ended.hung.seen_ns or min((e.ended_ns for e in ended.exits), default=0)
    return seen_ns - int(ended.hung.idle_s * 1e9)


def _stopped(job: Job, ended: Ended) -> Outcome:
    number = ended.stopped_by or 0
    ranks = ranks_of(ended.exits)
    well = bool(ranks) and ended.phase != INSTALL and all(e.ok for e in ranks)
    code = 0 if well and job.stopped_is_success else exit_codes.of_signal(number)
    name = f"rule {ended.stop_rule} ({signal_name(number)})" if ended.stop_rule else signal_name(number)
    if not ended.exits:
        script = f"attempt {ended.attempt} of the script" if ended.attempt else "the script"
        what = f"stopped by {name} before {ended.phase if ended.phase == INSTALL else script} began"
    elif well:
        what = f"stopped by {name}; the script ended with 0"
    else:
        deaths = "; ".join(sorted({_death(ended, e) for e in ranks if not e.ok}))
        during = f" during {ended.phase}" if ended.phase == INSTALL else ""
        what = f"stopped by {name}{during}" + (f"; {deaths}" if deaths else "")
    if ended.forced:
        took_ns = max((e.ended_ns for e in ended.exits), default=0) - (ended.stopped_at_ns or 0)
        over = took_ns >= job.grace_s * 1e9
        what += f"; SIGKILL was needed (grace {job.grace_s:g} s)" if over else "; SIGKILL came with a second signal"
    return Outcome(
        status="stopped",
        exit_code=code,
        cause=Cause(
            blame="",
            kind="Stopped" if code else "",
            text=what,
            traceback=next((trace for e in ranks if not e.ok and (trace := exception_text(ended, e)[1])), ""),
        ),
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _death(ended: Ended, end: Exit) -> str:
    """Return how a stopped process ended, and the exception that it failed with, for example while saving."""
    error, _ = exception_text(ended, end)
    return f"{end.process} {how(end)}" + (f": {error}" if error and not is_collateral(error) else "")


def _with_another(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of a healthy host that stopped because another one failed; the job's verdict replaces it."""
    return Outcome(
        status="failed",
        exit_code=exit_codes.TEMPORARY_FAILURE,
        cause=Cause(blame="platform", kind="PlatformError", text="another host failed"),
        host=job.cluster.current,
        command=ended.command,
        exits=ended.exits,
        notes=_notes(ended),
    )


def _missing(job: Job, ended: Ended) -> Outcome:
    cause = "waited in vain for " + "; for ".join(ended.missing) + f" (TOOLKIT_JOIN_S={job.settings.join_s:g})"
    return Outcome(
        status="failed",
        exit_code=exit_codes.TEMPORARY_FAILURE,
        cause=Cause(blame="platform", kind="PlatformError", text=cause, primary=True),
        host=job.cluster.current,
        command=ended.command,
        notes=_notes(ended),
    )


def _notes(ended: Ended) -> tuple[str, ...]:
    count = ended.long_lines
    were = "1 line above 1 MiB was" if count == 1 else f"{count} lines above 1 MiB were"
    long = (f"{were} passed on in pieces",) if count else ()
    return (*ended.notes, *long)
