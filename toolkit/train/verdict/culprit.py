"""Pure: which process of a host failed first by itself, and what its end shows: collateral, preempted, a traceback."""

import signal
from collections.abc import Sequence

from toolkit.job.outcome import SIGNALLING_S, Ended, Exit
from toolkit.train.verdict import mpi
from toolkit.train.verdict.cause import account, handled, last_traceback
from toolkit.train.verdict.collateral import is_collateral, lost_a_rank

INSTALL = "install"
# MPI_ERR_UNKNOWN in Open MPI 5's mpi.h. Open MPI ends a rank with this code, and prints nothing, if the rank gets the
# loss of a peer as an event that it does not know. mpirun alone then prints "An error occurred in Socket closed". The
# rank may end before the peer's own end can be observed.
UNKNOWN_MPI_ERROR = 14


def culprit_of(ended: Ended) -> Exit | None:
    """Return the process that failed first by itself.

    A rank comes before a launcher, which only repeats its ranks' failures; a rank with a cause of its own comes before
    one whose failure is collateral.
    """
    bad = [e for e in ended.exits if not e.ok and not e.signalled and _before_stop(ended, e)]
    if _ended_by_us(ended):
        bad = [e for e in bad if _works(ended, e)]
    works = [e for e in bad if _works(ended, e)]
    return min(works or bad, key=lambda e: (lost_its_peer(ended, e), e.failed_ns), default=None)


def _works(ended: Ended, end: Exit) -> bool:
    """True for a rank and for a service that ranks need, False for a launcher."""
    return end.rank is not None or end.process != ended.main


def _ended_by_us(ended: Ended) -> bool:
    """True if `train` ended the ranks for a reason of another host, a hang or a rule.

    The launcher's failure is then collateral (torchrun ends with 1 and a traceback of its own).
    """
    asked = ended.peer_failed or ended.hung is not None or ended.ruled is not None
    return asked and any(e.signalled for e in ended.exits if e.rank is not None)


def ranks_of(exits: Sequence[Exit]) -> Sequence[Exit]:
    """Return the ranks among *exits*; all of *exits* if the launcher kept its ranks as its own children."""
    return [e for e in exits if e.rank is not None] or exits


def lost_its_peer(ended: Ended, end: Exit) -> bool:
    """True if the end only shows that another process of the job was lost."""
    return _ended_by_mpi(ended, end) or is_collateral(account(ended, end)) or is_collateral(handled(ended, end))


def lost_a_peer_rank(ended: Ended, end: Exit) -> bool:
    """True if a rank's end shows that another rank was lost."""
    said = account(ended, end) if end.rank is not None else ""
    return end.rank is not None and (_ended_by_mpi(ended, end) or lost_a_rank(said) or lost_a_rank(handled(ended, end)))


def _ended_by_mpi(ended: Ended, end: Exit) -> bool:
    stderr, _ = ended.tails.get(end.process, (b"", b""))
    silent = end.raised_ns is None and not stderr.strip()
    return ended.main in mpi.MAINS and end.rank is not None and end.code == UNKNOWN_MPI_ERROR and silent


def only_launches(ended: Ended, end: Exit) -> bool:
    """True if a process starts ranks and is none: if no rank failed here, it may repeat the failure of another host."""
    return end.rank is None and end.process == ended.main and ended.phase != INSTALL


def _before_stop(ended: Ended, end: Exit) -> bool:
    """True if nobody had asked for a stop when the process ended.

    Where each process was signalled, a script that ended with 0 or of that signal shortly before `train` was signalled
    ended by it: nothing tells when the signals before `train`'s were sent.
    """
    if ended.stopped_by is None:
        return True
    by_it = ended.signalled_each and (end.ok or end.signal == ended.stopped_by)
    return end.failed_ns < (ended.stopped_at_ns or 0) - by_it * int(SIGNALLING_S * 1e9)


def finished_before_stop(ended: Ended) -> bool:
    """True if every rank had ended with 0 when the signal came: the job was done, however its launcher then ended."""
    ranks = ranks_of(ended.exits)
    return bool(ranks) and ended.phase != INSTALL and all(e.ok and _before_stop(ended, e) for e in ranks)


def preempted(ended: Ended, culprit: Exit) -> bool:
    """True if somebody outside the job ended *culprit*: by SIGTERM, or by SIGKILL if the kernel counts out-of-memory
    kills and has counted none. If it does not count them, a SIGKILL may be one."""
    if culprit.signalled or culprit.signal not in (signal.SIGTERM, signal.SIGKILL):
        return False
    return culprit.signal == signal.SIGTERM or (ended.memory is not None and ended.memory.oom_kills == 0)


def has_same_traceback(ended: Ended, end: Exit, culprit: Exit) -> bool:
    """True if *end* is a rank that ended with the same traceback as *culprit*, at any time."""
    same = fingerprint(ended, culprit)
    return bool(same) and end.rank is not None and not end.ok and fingerprint(ended, end) == same


def fingerprint(ended: Ended, end: Exit) -> str:
    """Return the fingerprint for folding identical tracebacks of ranks and hosts: error, file, line; "" for none."""
    found = last_traceback(ended, end)
    return "" if found is None else f"{found.error} at {found.place.rpartition('/')[2]}"
