"""Pure: reads what MPI prints about a rank that called MPI_Abort, or whose error handler did.

MPICH prints it on the rank's own stderr, Open MPI on mpirun's. Each row of SAYS was seen with MPICH 5.0.2, Open MPI
4.1.8 and 5.0.8 on 2026-11-22.
"""

import re

import msgspec

from toolkit.job.outcome import Ended, Exit
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.train.verdict import tail as ends

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


def said(stderr: bytes) -> Abort | None:
    """Return the last abort in *stderr*, a rank's or mpirun's; None if there is none."""
    text = "\n".join(ends.lines(stderr))
    found = [abort for kind in (_mpich, _open_mpi, _handler, _improper) if (abort := kind(text)) is not None]
    return found[0] if found else None


def with_aborts(ended: Ended) -> Ended:
    """Return *ended* with each rank that reports its own abort as failed by itself, with the code of the abort.

    The launcher then ends all ranks, often before the aborting rank can exit with its code. The news may come first
    from another host, whose mpirun ended. (If a rank failed there, it failed earlier and is the cause.)
    """
    if ended.main not in MAINS or not (ended.launcher_first or ended.peer_failed):
        return ended
    return msgspec.structs.replace(ended, exits=tuple(_as_it_says(ended, end) for end in ended.exits))


def abort_of(ended: Ended, culprit: Exit) -> Abort | None:
    """Return the abort of *culprit* as MPI reports it; if *culprit* is the launcher, that of the rank it names."""
    if ended.main not in MAINS or culprit.raised_ns is not None:
        return None
    own, launchers = (said(ended.tails.get(name, (b"", b""))[0]) for name in (culprit.process, ended.main))
    abort = own or launchers
    return abort if abort is not None and culprit.rank in (abort.rank, None) else None


def of_another_host(ended: Ended) -> Abort | None:
    """Return the abort of another host's rank that the mpirun of this host reports, None if it reports none."""
    if ended.main not in MAINS:
        return None
    abort = said(ended.tails.get(ended.main, (b"", b""))[0])
    known = abort is None or any(end.rank == abort.rank for end in ended.exits)
    return None if known else abort


def named(ended: Ended, culprit: Exit, abort: Abort) -> tuple[str, Exit]:
    """Return (the cause, the exit of the rank that aborted).

    If only the launcher reports the abort, the exit has the launcher's code, and pid 0 if the rank's is not known.
    """
    last = ends.last(ended.tails.get(culprit.process, (b"", b""))[0], 1, LAST_CHARACTERS)
    if culprit.rank is None:
        rank = next((end for end in ended.exits if end.rank == abort.rank), None)
        named = Exit(
            process=f"rank {abort.rank}",
            pid=rank.pid if rank is not None else 0,
            started_ns=culprit.started_ns,
            ended_ns=culprit.ended_ns,
            code=culprit.status,
            rank=abort.rank,
            local_rank=rank.local_rank if rank is not None else None,
        )
        return abort.text, named
    return abort.text if not last or last in abort.text else f"{abort.text}\nit last said: {last}", culprit


def _as_it_says(ended: Ended, end: Exit) -> Exit:
    abort = said(ended.tails.get(end.process, (b"", b""))[0]) if end.rank is not None and not end.ok else None
    if abort is None or abort.rank != end.rank or abort.code is None:
        return end
    return msgspec.structs.replace(end, code=abort.code & 0xFF or 1, signal=None, signalled=False)


def _mpich(text: str) -> Abort | None:
    found = list(_MPICH.finditer(text))
    if not found:
        return None
    stack = _STACK.match(text, found[-1].end())
    return Abort(
        rank=int(found[-1]["rank"]),
        code=int(found[-1]["code"]),
        text=found[-1][0] + (stack[0] if stack else ""),
    )


def _open_mpi(text: str) -> Abort | None:
    found = list(_OPEN_MPI.finditer(text))
    if not found:
        return None
    rank, of, code = found[-1]["rank"], found[-1]["of"], found[-1]["code"]
    words = f"MPI_ABORT was invoked on rank {rank} in communicator {of} with errorcode {code}"
    return Abort(rank=int(rank), code=int(code), text=words)


def _handler(text: str) -> Abort | None:
    found = list(_HANDLER.finditer(text))
    if not found:
        return None
    return Abort(rank=int(found[-1]["rank"]), text=f"{found[-1]['error']} (in {found[-1]['call']})")


def _improper(text: str) -> Abort | None:
    found = list(_IMPROPER.finditer(text))
    if not found:
        return None
    rank = int(found[-1]["rank"])
    return Abort(rank=rank, text=f"rank {rank} ended with 0 and without MPI_Finalize, while the others worked")
