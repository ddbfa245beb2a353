"""MPI's own words decide about the end of ranks; the words are as the three MPIs printed them."""

import signal

import msgspec
import pytest

from tests.train.launchers.jobs import job_of
from tests.train.verdict.test_judge import make_phase_end, process
from tests.train.verdict.test_traceback import PLAIN
from toolkit.job.outcome import Exit, Outcome, PhaseEnd
from toolkit.train.verdict.judge import judge
from toolkit.train.verdict.mpi import find_abort_elsewhere

TERM, KILL, SEGV = signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV
MPICH = "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"  # 5.0.2
MPICH_HANDLER = """\
Abort(269142278) on node 1 (rank 1 in comm 0): Fatal error in internal_Send_c: Invalid rank, error stack:
internal_Send_c(316): MPI_Send_c(buf=0x7f52ef351f70, count=1, MPI_BYTE, 99, 0, MPI_COMM_WORLD) failed
internal_Send_c(234): Invalid rank has value 99 but must be nonnegative and less than 2
Fatal Python error: Segmentation fault

Current thread 0x00007f9374043b80 (most recent call first):
  File "train.py", line 14 in <module>

Extension modules: mpi4py.MPI (total: 1)
"""
MPICH_LOST = """\
Abort(806987791) on node 0 (rank 0 in comm 0): Fatal error in internal_Allreduce: Other MPI error, error stack:
internal_Allreduce(123): MPI_Allreduce(...) failed
MPIDU_Complete_posted_with_error(1137): Communication error with rank 1
"""
RULE = "-" * 74 + "\n"
OPEN_MPI_4 = f"""\
{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 7.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{RULE}"""
OPEN_MPI_5 = f"""\
{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[9297,1],1]
  Errorcode: 7

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{RULE}"""
OPEN_MPI_HANDLER = """\
[vm:19060] *** An error occurred in MPI_Send
[vm:19060] *** reported by process [647102465,1]
[vm:19060] *** on communicator MPI_COMM_WORLD
[vm:19060] *** MPI_ERR_RANK: invalid rank
[vm:19060] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[vm:19060] ***    and potentially your MPI job)
"""
ABORTED = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD with errorcode 7"


IMPROPER_4 = f"""\
{RULE}mpirun has exited due to process rank 1 with PID 0 on
node vm exiting improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in
the job did.
{RULE}"""
IMPROPER_5 = f"""\
{RULE}prterun has exited due to process rank 1 with PID 12685 on node vm exiting
improperly. There are three reasons this could occur:
{RULE}"""
LEFT = "rank 1 ended with 0 and without MPI_Finalize, while the others worked"


def ends(*exits: Exit, main: str = "mpirun", first: bool = True, peer_failed: bool = False, **output: str) -> Outcome:
    """Return the verdict on ranks that their launcher had ended *first*."""
    phase_end: PhaseEnd = make_phase_end(*exits, peer_failed=peer_failed, **output)  # type: ignore[arg-type]
    return judge(job_of("mpi"), msgspec.structs.replace(phase_end, main=main, launcher_first=first))


MPIRUN_KILLED = process("mpirun", 7, KILL, signalled=True)
OTHER_ENDED = process("rank 0", 6, TERM, signalled=True)


def test_a_rank_that_says_itself_that_it_aborts_is_the_cause_though_its_launcher_had_it_ended() -> None:
    """Before it could end with its code; or it crashes on the way."""
    by_us = ends(OTHER_ENDED, process("rank 1", 6, TERM, signalled=True), process("mpirun", 5, 7), rank_1=MPICH)
    crashed = ends(process("rank 1", 5, SEGV), OTHER_ENDED, process("mpirun", 6, 6), rank_1=MPICH_HANDLER)

    assert (by_us.exit_code, by_us.cause.rank, by_us.cause.pid, by_us.cause.process_end) == (
        7,
        1,
        71,
        "ended with code 7",
    )
    assert by_us.cause.message == MPICH.strip()
    assert (crashed.exit_code, crashed.cause.rank, crashed.cause.primary) == (6, 1, True)
    assert crashed.cause.message.startswith(
        "Abort(269142278) on node 1 (rank 1 in comm 0): Fatal error in internal_Send_c"
    )
    assert "has value 99 but must be nonnegative and less than 2" in crashed.cause.message


@pytest.mark.parametrize("is_heard", [False, True])
def test_on_a_follower_the_rank_is_the_cause_too(is_heard: bool) -> None:
    """Also where the leader tells of mpirun's end before the daemon here has ended the rank."""
    outcome = ends(
        process("rank 1", 6, TERM, signalled=True),
        main="mpi daemon",
        first=not is_heard,
        peer_failed=is_heard,
        rank_1=MPICH,
    )

    assert (outcome.exit_code, outcome.cause.process, outcome.cause.message) == (7, "rank 1", MPICH.strip())


@pytest.mark.parametrize(
    ("output", "text"),
    [(OPEN_MPI_4, ABORTED), (OPEN_MPI_5, ABORTED), (OPEN_MPI_HANDLER, "MPI_ERR_RANK: invalid rank (in MPI_Send)")],
)
def test_what_mpirun_says_of_a_rank_that_aborted_is_its_cause(output: str, text: str) -> None:
    silent = ends(process("rank 1", 5, 7), OTHER_ENDED, MPIRUN_KILLED, first=False, mpirun=output)
    spoke = ends(process("rank 1", 5, 7), OTHER_ENDED, MPIRUN_KILLED, first=False, mpirun=output, rank_1="bad shard\n")

    assert (silent.exit_code, silent.cause.rank, silent.cause.message) == (7, 1, text)
    assert spoke.cause.message == f"{text}\nit last said: bad shard"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (OPEN_MPI_4, ABORTED),
        (OPEN_MPI_5, ABORTED),
        (MPICH, MPICH.strip()),
        (IMPROPER_4, LEFT),
        (IMPROPER_5, LEFT),
    ],
)
def test_without_the_rank_shim_the_rank_that_mpirun_names_is_named(output: str, text: str) -> None:
    outcome = ends(process("mpirun", 7, 7), first=False, mpirun=output)

    assert (outcome.exit_code, outcome.cause.process, outcome.cause.message) == (7, "rank 1", text)
    assert (outcome.cause.pid, outcome.cause.process_end) == (None, "mpirun ended with code 7")


def test_a_traceback_and_an_exit_code_of_its_own_go_before_mpi_s_words() -> None:
    """`python -m mpi4py` calls MPI_Abort for both."""
    raised = ends(process("rank 1", 5, 1), OTHER_ENDED, MPIRUN_KILLED, rank_1=PLAIN + MPICH, mpirun=OPEN_MPI_4)
    left = msgspec.structs.replace(process("rank 1", 5, 3), exception_raised_ns=4)
    chosen = ends(left, OTHER_ENDED, MPIRUN_KILLED, rank_1="cannot go on\n", mpirun=OPEN_MPI_4)

    assert raised.cause.message.startswith("ValueError: no such shard: 7")
    assert (chosen.exit_code, chosen.cause.message) == (3, "cannot go on")


def test_another_rank_s_abort_is_not_this_one_s() -> None:
    assert "MPI_ABORT" not in ends(process("rank 0", 5, 3), MPIRUN_KILLED, first=False, mpirun=OPEN_MPI_4).cause.message


def test_a_rank_that_aborts_because_its_peer_is_gone_only_lost_it() -> None:
    outcome = ends(process("rank 0", 5, 15), process("rank 1", 6, KILL), MPIRUN_KILLED, first=False, rank_0=MPICH_LOST)
    alone = ends(process("rank 1", 4, 0), process("rank 0", 5, 15), MPIRUN_KILLED, first=False, rank_0=MPICH_LOST)

    assert (outcome.cause.rank, outcome.exit_code) == (1, 137)
    assert alone.cause.message == "rank 1 of host algo-1 ended with 0, 1.0 s earlier; the others lost it"


def test_a_rank_that_aborts_because_train_had_told_it_to_end_is_not_the_cause() -> None:
    terminated = process("rank 1", 6, TERM, signalled=True)

    outcome = ends(process("rank 0", 5, 3), terminated, MPIRUN_KILLED, first=False, rank_1=MPICH)

    assert (outcome.cause.rank, outcome.exit_code) == (0, 3)


@pytest.mark.parametrize(
    ("exits", "main", "rank"),
    [
        ((process("rank 0", 5, TERM, signalled=True),), "mpirun", 1),
        ((process("rank 0", 5, TERM, signalled=True), process("rank 1", 5, 7)), "mpirun", None),
        ((process("rank 0", 5, TERM, signalled=True),), "torchrun", None),
    ],
    ids=["of another host", "of this host", "no mpirun"],
)
def test_what_mpirun_says_of_a_rank_of_another_host_is_found(
    exits: tuple[Exit, ...], main: str, rank: int | None
) -> None:
    phase_end = msgspec.structs.replace(make_phase_end(*exits, mpirun=OPEN_MPI_4, torchrun=OPEN_MPI_4), main=main)

    abort = find_abort_elsewhere(phase_end)

    assert (abort.rank if abort is not None else None) == rank
