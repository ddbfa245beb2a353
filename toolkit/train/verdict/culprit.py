"""Pure: which process of a host failed first by itself, and what its end shows: collateral, preempted, a traceback."""

import signal
from collections.abc import Sequence

from toolkit.job.outcome import SIGNALLING_S, Exit, PhaseEnd
from toolkit.train.verdict import mpi
from toolkit.train.verdict.cause import error_text, find_traceback, handled_errors
from toolkit.train.verdict.collateral import is_collateral, reports_lost_rank

INSTALL = "install"
# MPI_ERR_UNKNOWN in Open MPI 5's mpi.h. Open MPI ends a rank with this code, and prints nothing, if the rank gets the
# loss of a peer as an event that it does not know. mpirun alone then prints "An error occurred in Socket closed". The
# rank may end before the peer's own end can be observed.
UNKNOWN_MPI_ERROR = 14


def find_culprit(phase: PhaseEnd) -> Exit | None:
    """Return the process that failed first by itself.

    A rank comes before a launcher, which only repeats its ranks' failures; a rank with a cause of its own comes before
    one whose failure is collateral.
    """
    bad = [e for e in phase.exits if not e.ok and not e.signalled and _ended_before_stop(phase, e)]
    if _train_ended_ranks(phase):
        bad = [e for e in bad if _is_worker(phase, e)]
    works = [e for e in bad if _is_worker(phase, e)]
    return min(works or bad, key=lambda e: (lost_its_peer(phase, e), e.failed_ns), default=None)


def _is_worker(phase: PhaseEnd, end: Exit) -> bool:
    """True for a rank and for a service that ranks need, False for a launcher."""
    return end.rank is not None or end.process != phase.main


def _train_ended_ranks(phase: PhaseEnd) -> bool:
    """True if `train` ended the ranks for a reason of another host, a hang or a rule.

    The launcher's failure is then collateral (torchrun ends with 1 and a traceback of its own).
    """
    has_reason = phase.peer_failed or phase.hang is not None or phase.rule_match is not None
    return has_reason and any(e.signalled for e in phase.exits if e.rank is not None)


def select_ranks(exits: Sequence[Exit]) -> Sequence[Exit]:
    """Return the ranks among *exits*; all of *exits* if the launcher kept its ranks as its own children."""
    return [e for e in exits if e.rank is not None] or exits


def lost_its_peer(phase: PhaseEnd, end: Exit) -> bool:
    """True if the end only shows that another process of the job was lost."""
    return (
        _mpi_ended_silently(phase, end)
        or is_collateral(error_text(phase, end))
        or is_collateral(handled_errors(phase, end))
    )


def lost_a_peer_rank(phase: PhaseEnd, end: Exit) -> bool:
    """True if a rank's end shows that another rank was lost."""
    error = error_text(phase, end) if end.rank is not None else ""
    return end.rank is not None and (
        _mpi_ended_silently(phase, end) or reports_lost_rank(error) or reports_lost_rank(handled_errors(phase, end))
    )


def _mpi_ended_silently(phase: PhaseEnd, end: Exit) -> bool:
    stderr, _ = phase.tails.get(end.process, (b"", b""))
    silent = end.exception_raised_ns is None and not stderr.strip()
    return phase.main in mpi.MAINS and end.rank is not None and end.code == UNKNOWN_MPI_ERROR and silent


def only_launches(phase: PhaseEnd, end: Exit) -> bool:
    """True if a process starts ranks and is none: if no rank failed here, it may repeat the failure of another host."""
    return end.rank is None and end.process == phase.main and phase.name != INSTALL


def _ended_before_stop(phase: PhaseEnd, end: Exit) -> bool:
    """True if nobody had asked for a stop when the process ended.

    Where each process was signalled, a script that ended with 0 or of that signal shortly before `train` was signalled
    ended by it: nothing tells when the signals before `train`'s were sent.
    """
    if phase.stopped_by is None:
        return True
    by_it = phase.signalled_each and (end.ok or end.signal == phase.stopped_by)
    return end.failed_ns < (phase.stopped_at_ns or 0) - by_it * int(SIGNALLING_S * 1e9)


def finished_before_stop(phase: PhaseEnd) -> bool:
    """True if every rank had ended with 0 when the signal came: the job was done, however its launcher then ended."""
    ranks = select_ranks(phase.exits)
    return bool(ranks) and phase.name != INSTALL and all(e.ok and _ended_before_stop(phase, e) for e in ranks)


def was_killed_for_memory(phase: PhaseEnd, culprit: Exit) -> bool:
    """Return whether the kernel killed *culprit* for want of memory, as far as it counts that."""
    return culprit.signal == signal.SIGKILL and phase.memory is not None and bool(phase.memory.oom_kills)


def is_preempted(phase: PhaseEnd, culprit: Exit) -> bool:
    """True if somebody outside the job ended *culprit*: by SIGTERM, or by SIGKILL if the kernel counts out-of-memory
    kills and has counted none. If it does not count them, a SIGKILL may be one."""
    if culprit.signalled or culprit.signal not in (signal.SIGTERM, signal.SIGKILL):
        return False
    return culprit.signal == signal.SIGTERM or (phase.memory is not None and phase.memory.oom_kills == 0)


def has_same_traceback(phase: PhaseEnd, end: Exit, culprit: Exit) -> bool:
    """True if *end* is a rank that ended with the same traceback as *culprit*, at any time."""
    same = fingerprint_of(phase, culprit)
    return bool(same) and end.rank is not None and not end.ok and fingerprint_of(phase, end) == same


def fingerprint_of(phase: PhaseEnd, end: Exit) -> str:
    """Return the fingerprint for folding identical tracebacks of ranks and hosts: error, file, line; "" for none."""
    trace = find_traceback(phase, end)
    return "" if trace is None else f"{trace.error} at {trace.place.rpartition('/')[2]}"
