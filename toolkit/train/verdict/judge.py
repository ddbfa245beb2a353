"""Pure: computes from the observations of the run how the job ended on this host, and which process is the cause.

The status is computed here, once; nothing later changes it. docs/exit-codes.md has the same table for users.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from toolkit import exit_codes
from toolkit.collectives.wording import describe_hang
from toolkit.errors import InternalError
from toolkit.job.cause import Cause
from toolkit.job.job import Job
from toolkit.job.outcome import Exit, Outcome, PhaseEnd, signal_name
from toolkit.records import Record
from toolkit.train.verdict import early, error_frame, mpi, tail
from toolkit.train.verdict.advice import OUT_OF_MEMORY, find_advice
from toolkit.train.verdict.cause import (
    LAST_CHARACTERS,
    Reading,
    describe_end,
    describe_exception,
    evidence_of,
    read_cause,
)
from toolkit.train.verdict.children import with_children
from toolkit.train.verdict.collateral import is_collateral
from toolkit.train.verdict.culprit import (
    INSTALL,
    find_culprit,
    fingerprint_of,
    finished_before_stop,
    has_same_traceback,
    is_preempted,
    lost_a_peer_rank,
    lost_its_peer,
    only_launches,
    select_ranks,
    was_killed_for_memory,
)
from toolkit.train.verdict.exhausted import find_limit


class _Case(Record, frozen=True, kw_only=True):
    """The case to judge: a host's last phase, and the process of it that failed first by itself, None if none did."""

    job: Job
    phase: PhaseEnd
    culprit: Exit | None

    @property
    def exits(self) -> tuple[Exit, ...]:
        return self.phase.exits

    @property
    def hung_first(self) -> bool:
        """True if a hang began before any process failed by itself."""
        if self.phase.hang is None:
            return False
        return self.culprit is None or self.culprit.ended_ns > _hang_began_ns(self.phase)

    @property
    def all_well(self) -> bool:
        """True if processes ended, and none otherwise than with 0 or because `train` had signalled it."""
        return bool(self.exits) and all(end.ok or end.signalled for end in self.exits)

    @property
    def has_no_rank(self) -> bool:
        """True if mpirun has started none of its ranks on this host. Without rank shims this is not known: False."""
        if self.job.cluster.size == 1 or self.phase.main not in mpi.MAINS or self.job.settings.rank_shim == "off":
            return False
        return self.all_well and self.phase.name != INSTALL and all(end.rank is None for end in self.exits)


def judge(job: Job, phase: PhaseEnd) -> Outcome:
    """Return the outcome of a host whose last phase ended as *phase*.

    The first row of VERDICTS whose condition holds decides.

    Raises:
        InternalError: no process of the script had ended.
    """
    phase = _complete(job, phase)
    case = _Case(job=job, phase=phase, culprit=find_culprit(phase))
    outcome = next(verdict(case) for holds, verdict in VERDICTS if holds(case))
    linked = len(job.cluster.hosts) > 1 and job.settings.link == "on"
    return outcome if linked else early.blame_early_exit(outcome)


def judge_failed(job: Job, phase: PhaseEnd) -> Outcome | None:
    """Return the outcome of what has failed on this host by itself so far, None if nothing has."""
    phase = _complete(job, phase)
    case = _Case(job=job, phase=phase, culprit=find_culprit(phase))
    if case.culprit is not None:
        return _judge_culprit(case)
    return None if phase.rule_match is None else _judge_rule_match(case)


def _complete(job: Job, phase: PhaseEnd) -> PhaseEnd:
    """Return *phase* with the paths of the user's code, the aborts that MPI reports, and the exceptions of children
    whose failure the script only reports."""
    return with_children(mpi.with_aborts(msgspec.structs.replace(phase, user_paths=error_frame.user_paths_of(job))))


def _outcome(case: _Case, status: Literal["succeeded", "failed", "stopped"], exit_code: int, cause: Cause) -> Outcome:
    return Outcome(
        status=status,
        exit_code=exit_code,
        cause=cause,
        cause_host=case.job.cluster.current,
        command=case.phase.command,
        exits=case.exits,
        notes=_notes(case.phase),
    )


def _succeed(case: _Case) -> Outcome:
    return _outcome(case, "succeeded", 0, Cause())


def _judge_missing_rank(case: _Case) -> Outcome:
    """Return the outcome of a host without ranks. Not `primary`: if mpirun itself failed, that is the cause."""
    host = case.job.cluster.current
    cause = Cause(
        blame="user",
        kind="ClientError",
        message=f"mpirun started no rank on host {host}; its ranks ran on another host",
        advice="See that each host's name leads to it and no other, or give the addresses (TOOLKIT_HOST_ADDRESSES);"
        " and that custom MPI options place a rank on every host",
        failed_ns=max(end.ended_ns for end in case.exits),
    )
    return _outcome(case, "failed", exit_codes.MISCONFIGURED, cause)


def _judge_culprit(case: _Case) -> Outcome:
    """Return the outcome of a host on which a process failed by itself.

    If it is the launcher, and the host had run out of descriptors, processes or memory, that is the cause.
    """
    job, phase, culprit = case.job, case.phase, case.culprit
    assert culprit is not None
    reading = read_cause(phase, culprit)
    message = reading.text
    abort = mpi.find_abort(phase, culprit) if not reading.traceback else None
    launcher = ""
    if abort is not None:
        launcher = "" if culprit.rank is not None else f"{culprit.process} "
        message, culprit = mpi.describe_abort(phase, culprit, abort)
        reading = Reading(text=message, traceback=reading.traceback, error=message)
    has_peers = job.cluster.size > 1 or len({end.rank for end in phase.exits if end.rank is not None}) > 1
    cause = Cause(
        blame="user",
        kind=phase.failure_kind,
        message=message,
        traceback=reading.traceback,
        process=culprit.process,
        pid=culprit.pid or None,
        rank=culprit.rank if has_peers else None,
        local_rank=culprit.local_rank,
        process_end=launcher + describe_end(culprit),
        evidence=evidence_of(phase, culprit) if abort is None else "error",
        advice=_find_advice(job, phase, culprit, reading),
        primary=not lost_its_peer(phase, culprit) and not (has_peers and only_launches(phase, culprit)),
        peer_lost=lost_a_peer_rank(phase, culprit),
        failed_ns=culprit.failed_ns,
        fingerprint=fingerprint_of(phase, culprit),
        identical_failures=sum(
            1 for end in phase.exits if end is not culprit and has_same_traceback(phase, end, culprit)
        ),
        preempted=is_preempted(phase, culprit),
    )
    outcome = _outcome(case, "failed", culprit.status or 1, cause)
    return _with_limit(job, phase, culprit, outcome) if only_launches(phase, culprit) else outcome


def _find_advice(job: Job, phase: PhaseEnd, culprit: Exit, reading: Reading) -> str:
    """Return advice for the cause; without any, what is known to be wrong with the script's text."""
    if was_killed_for_memory(phase, culprit):
        return OUT_OF_MEMORY
    text = find_advice(reading.error, caused_by=reading.caused_by, handled=reading.handled)
    flaw = job.script.flaw if job.script is not None and phase.name != INSTALL else ""
    return text or flaw


def _with_limit(job: Job, phase: PhaseEnd, launcher: Exit, outcome: Outcome) -> Outcome:
    """Return *outcome*, whose cause is *launcher*; if it failed because of a limit of this host, that is the cause."""
    limit = find_limit(phase, launcher, relays_ranks=job.settings.rank_shim == "off")
    if limit is None:
        return outcome
    cause = msgspec.structs.replace(
        outcome.cause,
        blame=limit.blame,
        kind=limit.prefix,
        message=str(limit),
        advice="",  # The message has it.
        evidence="error",
        primary=True,
        peer_lost=False,
    )
    return msgspec.structs.replace(outcome, exit_code=limit.exit_code, cause=cause)


def _judge_launcher_request(case: _Case) -> Outcome:
    """Return the outcome of a host on which nothing failed by itself: its launcher asked `train` to end the ranks."""
    phase = case.phase
    main = next((end for end in phase.exits if end.process == phase.main and end.rank is None), None)
    stderr, _ = phase.tails.get(phase.main, (b"", b""))
    last_lines = tail.last_lines(stderr, 3, LAST_CHARACTERS)
    reason = f"it last said: {last_lines}" if last_lines else "it gave no reason"
    cause = Cause(
        blame="user",
        kind=phase.failure_kind,
        message=f"{phase.main} had its ranks ended; {reason}",
        process=phase.main,
        pid=None if main is None else main.pid,
        peer_lost=True,
        failed_ns=min(end.failed_ns for end in phase.exits if not end.ok),
    )
    outcome = _outcome(case, "failed", 1, cause)
    return outcome if main is None else _with_limit(case.job, phase, main, outcome)


def _judge_hang(case: _Case) -> Outcome:
    hang = case.phase.hang
    assert hang is not None
    host, alone = case.job.cluster.current, len(case.job.cluster.hosts) == 1
    message = f"no rank has written or computed anything for {hang.idle_s:.0f} s (TOOLKIT_STALL_S)"
    # Of several hosts, the leader compares all ranks (train/peers/failures.py).
    described = describe_hang({host: hang.stuck_ranks}, {host: hang.rank_calls}, alone=True)
    if alone:
        message = "; ".join((message, *described.sentences))
    cause = Cause(blame="user", kind="Hang", message=message, primary=True, failed_ns=_hang_began_ns(case.phase))
    return msgspec.structs.replace(
        _outcome(case, "failed", exit_codes.TIMED_OUT, cause),
        cause_host=host if alone and described.hosts else "",
        stuck_ranks=hang.stuck_ranks,
        collectives=described.compared if alone else (),
    )


def _judge_rule_match(case: _Case) -> Outcome:
    match = case.phase.rule_match
    assert match is not None
    cause = Cause(
        blame="user", kind="HealthRule", message=match.text, rank=match.rank, primary=True, failed_ns=match.at_ns
    )
    return _outcome(case, "failed", match.exit_code, cause)


def _hang_began_ns(phase: PhaseEnd) -> int:
    """Return when a hang began, computed from its end and its length: nothing that failed later caused it."""
    if phase.hang is None:
        return 0
    seen_ns = phase.hang.seen_ns or min((end.ended_ns for end in phase.exits), default=0)
    return seen_ns - int(phase.hang.idle_s * 1e9)


def _judge_stop(case: _Case) -> Outcome:
    job, phase = case.job, case.phase
    if finished_before_stop(phase):
        return _succeed(case)
    failures = [end for end in select_ranks(phase.exits) if not end.ok]
    well = bool(phase.exits) and phase.name != INSTALL and not failures
    code = 0 if well and job.stopped_is_success else exit_codes.of_signal(phase.stopped_by or 0)
    tracebacks = (describe_exception(phase, end)[1] for end in failures)
    cause = Cause(
        kind="Stopped" if code else "",
        message=_describe_stop(job, phase, failures),
        traceback=next(filter(None, tracebacks), ""),
    )
    return _outcome(case, "stopped", code, cause)


def _describe_stop(job: Job, phase: PhaseEnd, failures: Sequence[Exit]) -> str:
    """Return what stopped the job, and how its processes ended; *failures*: those that did not end with 0."""
    name = signal_name(phase.stopped_by or 0)
    text = f"stopped by rule {phase.stop_rule} ({name})" if phase.stop_rule else f"stopped by {name}"
    if not phase.exits:
        script = f"attempt {phase.attempt} of the script" if phase.attempt else "the script"
        text += f" before {phase.name if phase.name == INSTALL else script} began"
    elif phase.name != INSTALL and not failures:
        text += "; the script ended with 0"
    else:
        during = f" during {phase.name}" if phase.name == INSTALL else ""
        text = "; ".join((f"{text}{during}", *sorted({_describe_failure(phase, end) for end in failures})))
    if phase.forced:
        took_ns = max((end.ended_ns for end in phase.exits), default=0) - (phase.stopped_at_ns or 0)
        over = took_ns >= job.grace_s * 1e9
        text += f"; SIGKILL was needed (grace {job.grace_s:g} s)" if over else "; SIGKILL came with a second signal"
    return text


def _describe_failure(phase: PhaseEnd, end: Exit) -> str:
    """Return how a stopped process ended, and the exception that it failed with, for example while saving."""
    error, _ = describe_exception(phase, end)
    return f"{end.process} {describe_end(end)}" + (f": {error}" if error and not is_collateral(error) else "")


def _judge_peer_failure(case: _Case) -> Outcome:
    """Return the outcome of a healthy host that stopped because another one failed; the job's verdict replaces it
    (train/coordinator.py)."""
    cause = Cause(blame="platform", kind="PlatformError", message="another host failed")
    return _outcome(case, "failed", exit_codes.TEMPORARY_FAILURE, cause)


def _judge_unmet_needs(case: _Case) -> Outcome:
    needs, join_s = "; for ".join(case.phase.missing), case.job.settings.join_s
    message = f"waited in vain for {needs} (TOOLKIT_JOIN_S={join_s:g})"
    cause = Cause(blame="platform", kind="PlatformError", message=message, primary=True)
    return msgspec.structs.replace(_outcome(case, "failed", exit_codes.TEMPORARY_FAILURE, cause), exits=())


def _refuse(case: _Case) -> Outcome:
    raise InternalError(f"{case.phase.name} was judged before any process of the script had ended")


def _notes(phase: PhaseEnd) -> tuple[str, ...]:
    count = phase.long_lines
    were = "1 line above 1 MiB was" if count == 1 else f"{count} lines above 1 MiB were"
    long = (f"{were} passed on in pieces",) if count else ()
    return (*phase.notes, *long)


# (condition, what then gives the outcome): the first row whose condition holds decides.
VERDICTS: tuple[tuple[Callable[[_Case], bool], Callable[[_Case], Outcome]], ...] = (
    # No rank was active for TOOLKIT_STALL_S: failed, 124.
    (lambda case: case.hung_first, _judge_hang),
    # A log rule ended the job: failed, with the code of the rule's action.
    (lambda case: case.phase.rule_match is not None and case.culprit is None, _judge_rule_match),
    # A process failed by itself before any stop request: failed, with its code or 128 + signal.
    (lambda case: case.culprit is not None, _judge_culprit),
    # Needs were not met: failed, 75.
    (lambda case: bool(case.phase.missing), _judge_unmet_needs),
    # A stop signal came: stopped, 128 + signal, or 0 if the script ended with 0 and the platform counts that as a
    # success.
    (lambda case: case.phase.stopped_by is not None, _judge_stop),
    # Another host failed: failed, 75, until the job's verdict is known.
    (lambda case: case.phase.peer_failed, _judge_peer_failure),
    # mpirun started no rank on this host: failed, 78.
    (lambda case: case.has_no_rank, _judge_missing_rank),
    # The job was over, and `train` ended the rest on this host: succeeded, 0.
    (lambda case: case.phase.job_finished and case.all_well, _succeed),
    # The launcher ended its ranks, or `train` did on its request: failed, 1. A death by `train`'s own signal is never a
    # cause.
    (lambda case: not all(end.ok for end in case.exits), _judge_launcher_request),
    (lambda case: not case.exits or case.phase.name == INSTALL, _refuse),
    # All processes of the script's phase ended with 0: succeeded, 0.
    (lambda _: True, _succeed),
)
