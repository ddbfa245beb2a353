"""Pure: reads what MPI prints about a rank that called MPI_Abort, or whose error handler did.

MPICH prints it on the rank's own stderr, Open MPI on mpirun's. Each row of SAYS was seen with MPICH 5.0.2, Open MPI
4.1.8 and 5.0.8 on 2026-11-22.
"""

import re

import msgspec

from toolkit.job.outcome import Exit, PhaseEnd
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.train.verdict import tail

# Of the failure text's 1,024 characters.
LAST_CHARACTERS = 300
# The main processes of hosts whose ranks MPI may end by itself.
MAINS = ("mpirun", "mpi daemon")
# MPICH: "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(...)"; its error handler's has the error's
# stack below it: "internal_Send_c(234): Invalid rank has value 99 but must be nonnegative and less than 2".
_MPICH = lazy(r"^Abort\((?P<code>\d+)\) on node (?P<rank>\d+) \(rank \d+ in comm \d+\): .*$", re.M)
_STACK = lazy(r"(?:\n\w+\(\d+\)[.]*: .*){1,8}")
# Open MPI 4: "... in communicator MPI_COMM_WORLD\nwith errorcode 7."; 5: "...\n  Proc: [[9297,1],1]\n  Errorcode: 7".
_OPEN_MPI = lazy(
    r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator (?P<of>.+?)\s*\n"
    r"(?:\s*Proc: .*\n)?\s*(?:with errorcode|Errorcode:) (?P<code>-?\d+)"
)
# "[algo-1:77] *** An error occurred in MPI_Send", "*** reported by process [64710,1]", ..., "*** MPI_ERR_RANK: ...".
_HANDLER = lazy(
    r"\*\*\* An error occurred in (?P<call>\w+)\n.*\*\*\* reported by process \[\d+,(?P<rank>\d+)\]\n"
    r"(?:.*\n)?.*\*\*\* (?P<error>MPI_ERR_\w+: .*)"
)
# Both, of a rank that ended with 0 and without MPI_Finalize, above 20 lines of reasons why that may be.
_IMPROPER = lazy(
    r"has exited due to process\s+rank\s+(?P<rank>\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+\S+\s+exiting\s+improperly"
)


class Abort(Record, frozen=True, kw_only=True):
    """A rank that aborted the job according to MPI; `code`: the code that it passed, None if MPI does not print it."""

    rank: int
    text: str
    code: int | None = None


def read_abort(stderr: bytes) -> Abort | None:
    """Return the last abort in *stderr*, a rank's or mpirun's; None if there is none."""
    text = "\n".join(tail.split_lines(stderr))
    aborts = [
        abort
        for kind in (_read_mpich, _read_open_mpi, _read_handler, _read_missing_finalize)
        if (abort := kind(text)) is not None
    ]
    return aborts[0] if aborts else None


def with_aborts(phase: PhaseEnd) -> PhaseEnd:
    """Return *phase* with each rank that reports its own abort as failed by itself, with the code of the abort.

    The launcher then ends all ranks, often before the aborting rank can exit with its code. The news may come first
    from another host, whose mpirun ended. (If a rank failed there, it failed earlier and is the cause.)
    """
    if phase.main not in MAINS or not (phase.launcher_first or phase.peer_failed):
        return phase
    return msgspec.structs.replace(phase, exits=tuple(_with_abort_code(phase, end) for end in phase.exits))


def find_abort(phase: PhaseEnd, culprit: Exit) -> Abort | None:
    """Return the abort of *culprit* as MPI reports it; if *culprit* is the launcher, that of the rank it names."""
    if phase.main not in MAINS or culprit.exception_raised_ns is not None:
        return None
    by_rank, launchers = (read_abort(phase.tails.get(name, (b"", b""))[0]) for name in (culprit.process, phase.main))
    abort = by_rank or launchers
    return abort if abort is not None and culprit.rank in (abort.rank, None) else None


def find_abort_elsewhere(phase: PhaseEnd) -> Abort | None:
    """Return the abort of another host's rank that the mpirun of this host reports, None if it reports none."""
    if phase.main not in MAINS:
        return None
    abort = read_abort(phase.tails.get(phase.main, (b"", b""))[0])
    is_own_rank = abort is None or any(end.rank == abort.rank for end in phase.exits)
    return None if is_own_rank else abort


def describe_abort(phase: PhaseEnd, culprit: Exit, abort: Abort) -> tuple[str, Exit]:
    """Return (the cause, the exit of the rank that aborted).

    If only the launcher reports the abort, the exit has the launcher's code, and pid 0 if the rank's is not known.
    """
    last = tail.last_lines(phase.tails.get(culprit.process, (b"", b""))[0], 1, LAST_CHARACTERS)
    if culprit.rank is None:
        rank = next((end for end in phase.exits if end.rank == abort.rank), None)
        exit = Exit(
            process=f"rank {abort.rank}",
            pid=rank.pid if rank is not None else 0,
            started_ns=culprit.started_ns,
            ended_ns=culprit.ended_ns,
            code=culprit.status,
            rank=abort.rank,
            local_rank=rank.local_rank if rank is not None else None,
        )
        return abort.text, exit
    return abort.text if not last or last in abort.text else f"{abort.text}\nit last said: {last}", culprit


def _with_abort_code(phase: PhaseEnd, end: Exit) -> Exit:
    abort = read_abort(phase.tails.get(end.process, (b"", b""))[0]) if end.rank is not None and not end.ok else None
    if abort is None or abort.rank != end.rank or abort.code is None:
        return end
    return msgspec.structs.replace(end, code=abort.code & 0xFF or 1, signal=None, signalled=False)


def _read_mpich(text: str) -> Abort | None:
    matches = list(_MPICH.finditer(text))
    if not matches:
        return None
    stack = _STACK.match(text, matches[-1].end())
    return Abort(
        rank=int(matches[-1]["rank"]),
        code=int(matches[-1]["code"]),
        text=matches[-1][0] + (stack[0] if stack else ""),
    )


def _read_open_mpi(text: str) -> Abort | None:
    matches = list(_OPEN_MPI.finditer(text))
    if not matches:
        return None
    rank, of, code = matches[-1]["rank"], matches[-1]["of"], matches[-1]["code"]
    words = f"MPI_ABORT was invoked on rank {rank} in communicator {of} with errorcode {code}"
    return Abort(rank=int(rank), code=int(code), text=words)


def _read_handler(text: str) -> Abort | None:
    matches = list(_HANDLER.finditer(text))
    if not matches:
        return None
    return Abort(rank=int(matches[-1]["rank"]), text=f"{matches[-1]['error']} (in {matches[-1]['call']})")


def _read_missing_finalize(text: str) -> Abort | None:
    matches = list(_IMPROPER.finditer(text))
    if not matches:
        return None
    rank = int(matches[-1]["rank"])
    return Abort(rank=rank, text=f"rank {rank} ended with 0 and without MPI_Finalize, while the others worked")
