"""A rank that ended with 0 while the others trained, on a host whose ranks know no other host's."""

import msgspec
import pytest

from tests.train.verdict.test_judge import TERM, process
from toolkit.job.cause import Cause
from toolkit.job.outcome import WAIT_FOR_ALL, Exit, Outcome
from toolkit.train.verdict import early

OTHERS = Outcome(
    status="failed",
    exit_code=143,
    cause_host="algo-1",
    cause=Cause(
        process="rank 0",
        pid=70,
        rank=0,
        process_end="killed by SIGTERM (signal 15)",
        traceback="Traceback",
        fingerprint="x",
        identical_failures=2,
        failed_ns=7_000_000_000,
    ),
)


def others(**changes: bool) -> Outcome:
    """Return the outcome of ranks that lost one, with *changes* of its cause."""
    return msgspec.structs.replace(OTHERS, cause=msgspec.structs.replace(OTHERS.cause, **changes))


def with_rank_1(outcome: Outcome, at_s: float = 5, *, left: bool = False, signalled: bool = False) -> Outcome:
    """Return *outcome* with the end of rank 1, with 0, beside that of rank 0."""
    end = msgspec.structs.replace(process("rank 1", at_s, 0, signalled=signalled), without_mpi_finalize=left)
    exits: tuple[Exit, ...] = (process("rank 0", 7, TERM, signalled=True), end)
    return msgspec.structs.replace(outcome, exits=exits)


@pytest.mark.parametrize(
    ("left", "changes", "code"),
    [
        (True, {}, 1),
        (True, {"primary": True}, 1),
        (True, {"peer_lost": True}, 1),
        (False, {"peer_lost": True}, 143),
    ],
    ids=["mpich ended the others", "the others' end has its own code", "the others lost it, too", "the others lost it"],
)
def test_a_rank_that_ended_early_is_the_cause(left: bool, changes: dict[str, bool], code: int) -> None:
    """MPI ends the others by itself; its code (SIGTERM's, 255) is nobody's: the job ends with 1."""
    outcome = early.blame_early_exit(with_rank_1(others(**changes), left=left))

    assert outcome.cause.message == "rank 1 of host algo-1 ended with 0, 2.0 s earlier; the others lost it"
    assert (outcome.exit_code, outcome.cause.process, outcome.cause.rank, outcome.cause.pid) == (code, "rank 1", 1, 71)
    assert (outcome.cause.process_end, outcome.cause.advice, outcome.cause.traceback) == (
        "ended with code 0",
        WAIT_FOR_ALL,
        "",
    )
    assert (outcome.cause.primary, outcome.cause.failed_ns, outcome.cause.identical_failures) == (
        True,
        5_000_000_000,
        0,
    )


@pytest.mark.parametrize(
    "outcome",
    [
        with_rank_1(OTHERS),
        with_rank_1(others(peer_lost=True, primary=True)),
        with_rank_1(others(peer_lost=True), at_s=9),
        with_rank_1(others(peer_lost=True), signalled=True),
        with_rank_1(OTHERS, at_s=9, left=True),
        with_rank_1(msgspec.structs.replace(OTHERS, status="succeeded", exit_code=0), left=True),
        with_rank_1(msgspec.structs.replace(OTHERS, status="stopped"), left=True),
    ],
    ids=[
        "nobody lost it",
        "the others have a cause of their own",
        "it ended after them",
        "train had signalled it",
        "it left after them",
        "all ended well",
        "the job was stopped",
    ],
)
def test_a_rank_that_ended_with_0_is_otherwise_no_cause(outcome: Outcome) -> None:
    assert early.blame_early_exit(outcome) == outcome
