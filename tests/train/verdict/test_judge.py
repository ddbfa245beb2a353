"""The verdict on a job's end on a host, from its processes' ends: every row of docs/exit-codes.md, and the cause."""

import re
import signal
from pathlib import Path

import msgspec
import pytest

from tests.train.launchers.jobs import job_of
from tests.train.verdict.test_traceback import OTHER, PLAIN
from toolkit.errors import ContractError, InternalError, PlatformError, UserError
from toolkit.job.job import Job
from toolkit.job.outcome import DetectedHang, Exit, MemoryUse, PhaseEnd, PhaseFailure
from toolkit.settings import Settings
from toolkit.status_pages.pages import Raised, Thrown
from toolkit.train import outcomes
from toolkit.train.verdict.advice import OUT_OF_MEMORY
from toolkit.train.verdict.cause import describe_end
from toolkit.train.verdict.judge import judge

TERM, INT, KILL, SEGV, ABRT = signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT
SCRIPT_FAILED: PhaseFailure = "ExecuteUserScriptError"
LOST = PLAIN.replace(
    "ValueError: no such shard: 7", "RuntimeError: [../gloo/tcp/pair.cc:534] Connection closed by peer"
)


def process(name: str, at_s: float, how: int | signal.Signals, *, signalled: bool = False) -> Exit:
    """Return the end of "rank 3" (a rank), "script" (rank 0) or a launcher: *how* is a code or a signal."""
    rank = 0 if name == "script" else int(name[5:]) if name.startswith("rank ") else None
    return Exit(
        process=name,
        pid=70 + (rank or 0),
        started_ns=1,
        ended_ns=int(at_s * 1e9),
        code=None if isinstance(how, signal.Signals) else how,
        signal=int(how) if isinstance(how, signal.Signals) else None,
        rank=rank,
        local_rank=rank if name.startswith("rank ") else None,
        signalled=signalled,
    )


def make_phase_end(
    *exits: Exit,
    stop: tuple[signal.Signals, float] | None = None,
    missing: tuple[str, ...] = (),
    forced: bool = False,
    peer_failed: bool = False,
    signals_each: bool = False,
    phase: str = "train",
    failure: PhaseFailure = SCRIPT_FAILED,
    **output: str,
) -> PhaseEnd:
    """Return the end that the loop saw.

    *stop* is (signal, at second); *signals_each*: each process got the signal; *output* is stderr by process ("rank_1",
    "script").
    """
    return PhaseEnd(
        name=phase,
        failure_kind=failure,
        command=("python", "train.py"),
        exits=exits,
        main=exits[-1].process if exits else "script",
        tails={name.replace("_", " "): (text.encode(), b"") for name, text in output.items()},
        stopped_by=None if stop is None else int(stop[0]),
        stopped_at_ns=None if stop is None else int(stop[1] * 1e9),
        signalled_each=signals_each,
        missing=missing,
        forced=forced,
        peer_failed=peer_failed,
    )


SAGEMAKER = job_of()
ELSEWHERE = job_of(stopped_is_success=False)
STATUSES: list[tuple[str, Job, PhaseEnd, str, int]] = [
    ("the script ends with 0", SAGEMAKER, make_phase_end(process("script", 5, 0)), "succeeded", 0),
    (
        "every rank ends with 0",
        SAGEMAKER,
        make_phase_end(process("rank 0", 5, 0), process("torchrun", 6, 0)),
        "succeeded",
        0,
    ),
    ("the script ends with n", SAGEMAKER, make_phase_end(process("script", 5, 42)), "failed", 42),
    ("the script ends with 255", SAGEMAKER, make_phase_end(process("script", 5, 255)), "failed", 255),
    ("killed", SAGEMAKER, make_phase_end(process("script", 5, KILL)), "failed", 137),
    ("a segmentation fault", SAGEMAKER, make_phase_end(process("script", 5, SEGV)), "failed", 139),
    ("an abort", SAGEMAKER, make_phase_end(process("script", 5, ABRT)), "failed", 134),
    ("somebody else's SIGTERM", SAGEMAKER, make_phase_end(process("script", 5, TERM)), "failed", 143),
    ("a rank fails", SAGEMAKER, make_phase_end(process("rank 1", 5, 3), process("torchrun", 6, 1)), "failed", 3),
    (
        "the launcher fails alone",
        SAGEMAKER,
        make_phase_end(process("rank 0", 5, 0), process("torchrun", 6, 1)),
        "failed",
        1,
    ),
    (
        "pip fails",
        SAGEMAKER,
        make_phase_end(process("pip", 5, 1), phase="install", failure="InstallModuleError"),
        "failed",
        1,
    ),
    ("a host does not come", SAGEMAKER, make_phase_end(missing=("host algo-2 to resolve",)), "failed", 75),
    (
        "another host failed",
        SAGEMAKER,
        make_phase_end(
            process("rank 0", 6, TERM, signalled=True), process("torchrun", 7, 1, signalled=True), peer_failed=True
        ),
        "failed",
        75,
    ),
    (
        "another host failed, the launcher makes an error of it",
        SAGEMAKER,
        make_phase_end(process("rank 0", 6, TERM, signalled=True), process("torchrun", 7, 1), peer_failed=True),
        "failed",
        75,
    ),
    (
        "another host failed, and this one before it",
        SAGEMAKER,
        make_phase_end(process("rank 0", 6, 3), process("torchrun", 7, 1, signalled=True), peer_failed=True),
        "failed",
        3,
    ),
    ("stopped before the start", SAGEMAKER, make_phase_end(stop=(TERM, 4)), "stopped", 143),
    ("stopped before the start by Ctrl-C", ELSEWHERE, make_phase_end(stop=(INT, 4)), "stopped", 130),
    (
        "stopped, saves, 0",
        SAGEMAKER,
        make_phase_end(process("script", 5, 0, signalled=True), stop=(TERM, 4)),
        "stopped",
        0,
    ),
    (
        "the same elsewhere",
        ELSEWHERE,
        make_phase_end(process("script", 5, 0, signalled=True), stop=(TERM, 4)),
        "stopped",
        143,
    ),
    (
        "Ctrl-C, saves, 0",
        ELSEWHERE,
        make_phase_end(process("script", 5, 0, signalled=True), stop=(INT, 4)),
        "stopped",
        130,
    ),
    ("done before the stop", ELSEWHERE, make_phase_end(process("script", 5, 0), stop=(TERM, 6)), "succeeded", 0),
    (
        "each signalled, the script first",
        ELSEWHERE,
        make_phase_end(process("script", 5, 0), stop=(TERM, 6), signals_each=True),
        "stopped",
        143,
    ),
    (
        "the same, on SageMaker",
        SAGEMAKER,
        make_phase_end(process("script", 5, 0), stop=(TERM, 6), signals_each=True),
        "stopped",
        0,
    ),
    (
        "each signalled, dies of it",
        ELSEWHERE,
        make_phase_end(process("script", 5, TERM), stop=(TERM, 6), signals_each=True),
        "stopped",
        143,
    ),
    (
        "each signalled, failed before",
        ELSEWHERE,
        make_phase_end(process("script", 5, 3), stop=(TERM, 6), signals_each=True),
        "failed",
        3,
    ),
    (
        "each signalled, killed before",
        ELSEWHERE,
        make_phase_end(process("script", 5, KILL), stop=(TERM, 6), signals_each=True),
        "failed",
        137,
    ),
    (
        "each signalled, done long before",
        ELSEWHERE,
        make_phase_end(process("script", 5, 0), stop=(TERM, 11), signals_each=True),
        "succeeded",
        0,
    ),
    (
        "stopped, dies of it",
        SAGEMAKER,
        make_phase_end(process("script", 5, TERM, signalled=True), stop=(TERM, 4)),
        "stopped",
        143,
    ),
    (
        "stopped, fails then",
        SAGEMAKER,
        make_phase_end(process("script", 5, 7, signalled=True), stop=(TERM, 4)),
        "stopped",
        143,
    ),
    (
        "stopped, does not end",
        SAGEMAKER,
        make_phase_end(process("script", 99, KILL, signalled=True), stop=(TERM, 4), forced=True),
        "stopped",
        143,
    ),
    (
        "stopped when it had finished",
        ELSEWHERE,
        make_phase_end(process("script", 5, 0), stop=(TERM, 6)),
        "succeeded",
        0,
    ),
    ("stopped when it had failed", SAGEMAKER, make_phase_end(process("script", 5, 3), stop=(TERM, 6)), "failed", 3),
    (
        "stopped when its ranks had finished and the launcher had not",
        ELSEWHERE,
        make_phase_end(process("rank 0", 5, 0), process("torchrun", 7, TERM, signalled=True), stop=(TERM, 6)),
        "succeeded",
        0,
    ),
    (
        "stopped, the launcher makes an error of it",
        SAGEMAKER,
        make_phase_end(process("rank 0", 7, 0, signalled=True), process("torchrun", 8, 1), stop=(TERM, 6)),
        "stopped",
        0,
    ),
    (
        "stopped, one rank of two saves",
        SAGEMAKER,
        make_phase_end(
            process("rank 0", 7, 0, signalled=True), process("rank 1", 7, TERM, signalled=True), stop=(TERM, 6)
        ),
        "stopped",
        143,
    ),
    (
        "stopped before the launcher had started a rank",
        SAGEMAKER,
        make_phase_end(process("torchrun", 7, TERM, signalled=True), stop=(TERM, 6)),
        "stopped",
        143,
    ),
    (
        "stopped while pip ran",
        SAGEMAKER,
        make_phase_end(process("pip", 7, TERM, signalled=True), stop=(TERM, 6), phase="install"),
        "stopped",
        143,
    ),
]


@pytest.mark.parametrize(
    ("job", "phase_end", "status", "code"), [pytest.param(*row[1:], id=row[0]) for row in STATUSES]
)
def test_the_status_and_exit_code_of_every_end(job: Job, phase_end: PhaseEnd, status: str, code: int) -> None:
    outcome = judge(job, phase_end)

    assert (outcome.status, outcome.exit_code) == (status, code)


def test_the_numbers_of_the_page_are_those_that_are_judged() -> None:
    page = (Path(__file__).parents[3] / "docs/exit-codes.md").read_text()
    numbers = {
        int(number) for row in page.splitlines() if row.startswith("|") for number in re.findall(r"\b\d+\b", row)
    }

    assert {0, 75, 78, 70, 137, 139, 134, 143, 130} <= numbers
    assert [outcomes.of_error(kind("x"), "").exit_code for kind in (UserError, ContractError, PlatformError)] == [
        78,
        78,
        75,
    ]
    assert outcomes.of_fault(RuntimeError("x"), "").exit_code == 70


# Nothing reads as a success that is none.


@pytest.mark.parametrize("at_s", [5, 7])
def test_a_finished_pip_is_no_finished_job(at_s: float) -> None:
    pip = process("pip", at_s, 0)

    with pytest.raises(InternalError):
        judge(SAGEMAKER, make_phase_end(pip, phase="install", failure="InstallModuleError"))
    stopped = judge(SAGEMAKER, make_phase_end(pip, stop=(TERM, 6), phase="install", failure="InstallModuleError"))
    assert stopped.exit_code == 143


def test_no_process_at_all_is_no_success() -> None:
    with pytest.raises(InternalError) as raised:
        judge(SAGEMAKER, make_phase_end())

    assert (raised.value.exit_code, raised.value.blame) == (70, "toolkit")


@pytest.mark.parametrize("how", [KILL, TERM])
def test_our_own_signal_is_never_the_cause_though_nothing_else_explains_the_end(how: signal.Signals) -> None:
    dead = (process("rank 0", 5, how, signalled=True), process("mpirun", 6, KILL, signalled=True))

    silent, speaking = (
        judge(SAGEMAKER, make_phase_end(*dead)),
        judge(SAGEMAKER, make_phase_end(*dead, mpirun="ORTE has lost a daemon\n")),
    )

    assert (silent.status, silent.exit_code, silent.cause.process) == ("failed", 1, "mpirun")
    assert silent.cause.message == "mpirun had its ranks ended; it gave no reason"
    assert speaking.cause.message == "mpirun had its ranks ended; it last said: ORTE has lost a daemon"
    assert not silent.cause.primary


# A rank that ends with 0 while the others train.

LEFT = "rank 1 of host algo-1 ended with 0, 2.0 s earlier; the others lost it"


@pytest.mark.parametrize(
    ("phase_end", "code", "text"),
    [
        pytest.param(
            make_phase_end(process("rank 1", 3, 0), process("rank 0", 5, 1), process("torchrun", 6, 1), rank_0=LOST),
            1,
            LEFT,
            id="a collective broke",
        ),
        pytest.param(
            make_phase_end(
                process("rank 1", 3, 0),
                process("rank 0", 5, 134),
                process("mpirun", 6, 1),
                rank_0="MPI_ERR_PROC_FAILED",
            ),
            134,
            LEFT,
            id="the code is that of the first rank that lost it",
        ),
        pytest.param(
            make_phase_end(process("rank 2", 4, 0), process("rank 1", 3, 0), process("rank 0", 5, 1), rank_0=LOST),
            1,
            LEFT,
            id="the first of several",
        ),
        pytest.param(
            make_phase_end(process("rank 1", 3, 0), process("rank 0", 5, 14), process("mpirun", 6, 14)),
            14,
            LEFT,
            id="Open MPI 5 ends the other without a word",
        ),
        pytest.param(
            make_phase_end(
                process("rank 1", 3, 0),
                process("rank 0", 5, TERM, signalled=True),
                process("mpirun", 6, KILL, signalled=True),
            ),
            1,
            LEFT,
            id="Open MPI 4 and MPICH have the others ended",
        ),
        pytest.param(
            make_phase_end(process("rank 1", 3, 0), process("rank 0", 5, 1), process("torchrun", 6, 1), rank_0=PLAIN),
            1,
            "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)",
            id="another rank failed by itself",
        ),
        pytest.param(
            make_phase_end(process("rank 1", 3, 0), process("rank 2", 5.5, 3), process("rank 0", 5, 1), rank_0=LOST),
            3,
            "rank 2 ended with code 3 without a word",
            id="a third rank failed by itself",
        ),
        pytest.param(
            make_phase_end(
                process("rank 1", 3, 0), process("rank 0", 5, 1), rank_0="BrokenPipeError: [Errno 32] Broken pipe"
            ),
            1,
            "BrokenPipeError: [Errno 32] Broken pipe",
            id="what broke need not have been a rank",
        ),
        pytest.param(
            make_phase_end(process("rank 0", 5, 0), process("torchrun", 6, 1), torchrun=LOST),
            1,
            "RuntimeError: [../gloo/tcp/pair.cc:534] Connection closed by peer (at /opt/ml/code/train.py:5 in main)",
            id="a launcher is no rank",
        ),
        pytest.param(
            make_phase_end(process("rank 1", 6.5, 0), process("rank 0", 5, 1), rank_0=LOST),
            1,
            "RuntimeError: [../gloo/tcp/pair.cc:534] Connection closed by peer (at /opt/ml/code/train.py:5 in main)",
            id="it ended long after the others had failed",
        ),
        pytest.param(
            make_phase_end(process("rank 1", 4, 0, signalled=True), process("rank 0", 5, 1), rank_0=LOST),
            1,
            "RuntimeError: [../gloo/tcp/pair.cc:534] Connection closed by peer (at /opt/ml/code/train.py:5 in main)",
            id="it ended because it was told to",
        ),
    ],
)
def test_a_rank_that_ended_with_0_is_the_cause_where_the_others_only_lost_it(
    phase_end: PhaseEnd, code: int, text: str
) -> None:
    outcome = judge(SAGEMAKER, phase_end)

    assert (outcome.exit_code, outcome.cause.message) == (code, text)
    if text == LEFT:
        assert (outcome.cause.rank, outcome.cause.pid, outcome.cause.process_end, outcome.cause.primary) == (
            1,
            71,
            "ended with code 0",
            True,
        )
        assert (outcome.cause.traceback, "barrier" in outcome.cause.advice) == ("", True)


def test_ranks_that_end_with_0_at_different_times_are_a_success() -> None:
    assert judge(SAGEMAKER, make_phase_end(process("rank 1", 3, 0), process("rank 0", 900, 0))).exit_code == 0


def test_of_several_hosts_only_all_together_know_who_left_first() -> None:
    phase_end = make_phase_end(process("rank 1", 3, 0), process("rank 0", 5, 1), rank_0=LOST)

    linked, apart = (
        judge(job_of(hosts=("algo-1", "algo-2"), settings=Settings(link=link)), phase_end) for link in ("on", "off")
    )

    assert (linked.cause.rank, linked.cause.peer_lost, linked.cause.primary) == (0, True, False)
    assert apart.cause.message == LEFT


# Who is the cause.


def test_the_first_failing_rank_by_time_is_the_cause() -> None:
    phase_end = make_phase_end(
        process("rank 0", 6, 9),
        process("rank 3", 5, 3),
        process("rank 2", 7, SEGV),
        process("torchrun", 1, 1),
        rank_0="late",
        rank_3=PLAIN,
        torchrun=OTHER,
    )

    outcome = judge(SAGEMAKER, phase_end)

    assert (outcome.exit_code, outcome.cause.process, outcome.cause.pid) == (3, "rank 3", 73)
    assert (outcome.cause.rank, outcome.cause.local_rank, outcome.cause.process_end) == (3, 3, "ended with code 3")
    assert outcome.cause.message == "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)"
    assert outcome.cause.traceback == PLAIN.strip()
    assert (outcome.cause.kind, outcome.cause.blame, outcome.cause_host) == (SCRIPT_FAILED, "user", "algo-1")


def test_ranks_with_the_same_traceback_are_counted_and_others_are_not() -> None:
    phase_end = make_phase_end(
        process("rank 0", 5, 1),
        process("rank 1", 6, 1, signalled=True),
        process("rank 2", 6, 1),
        process("rank 3", 6, TERM, signalled=True),
        process("rank 4", 7, 1),
        process("torchrun", 8, 1),
        rank_0=PLAIN,
        rank_1=PLAIN.replace("/opt/ml/code/", "/elsewhere/"),
        rank_2="[rank2]: " + PLAIN.strip().replace("\n", "\n[rank2]: "),
        rank_3=OTHER,
        rank_4=PLAIN.replace("line 5", "line 6"),
        torchrun=PLAIN,
    )

    outcome = judge(SAGEMAKER, phase_end)

    assert (outcome.cause.process, outcome.cause.identical_failures) == ("rank 0", 2)


def test_ends_without_a_traceback_are_not_folded() -> None:
    phase_end = make_phase_end(process("rank 0", 5, 3), process("rank 1", 6, 3), process("torchrun", 8, 1))

    assert judge(SAGEMAKER, phase_end).cause.identical_failures == 0


@pytest.mark.parametrize("how", [TERM, KILL, 1, 0])
def test_a_script_that_was_ended_after_the_leaders_had_ended_well_succeeded(how: int | signal.Signals) -> None:
    """A worker of TensorFlow's serves for ever."""
    phase_end = msgspec.structs.replace(
        make_phase_end(process("script", 5, how, signalled=how != 0)), job_finished=True
    )

    assert (judge(SAGEMAKER, phase_end).status, judge(SAGEMAKER, phase_end).exit_code) == ("succeeded", 0)


def test_a_script_that_fails_by_itself_after_the_leaders_end_has_failed() -> None:
    phase_end = msgspec.structs.replace(make_phase_end(process("script", 5, 3)), job_finished=True)

    assert judge(SAGEMAKER, phase_end).exit_code == 3


def test_a_service_that_dies_is_the_cause_and_not_the_script_that_loses_it() -> None:
    gone = PLAIN.replace("ValueError: no such shard: 7", "tensorflow.errors_impl.UnavailableError: failed to connect")

    outcome = judge(SAGEMAKER, make_phase_end(process("ps", 5, KILL), process("script", 5.1, 1), script=gone))

    assert (outcome.exit_code, outcome.cause.process, outcome.cause.primary) == (137, "ps", True)


def test_a_rank_that_was_told_to_end_is_never_the_cause() -> None:
    phase_end = make_phase_end(
        process("rank 0", 5, 1, signalled=True), process("rank 1", 6, 4), process("torchrun", 7, 1)
    )

    assert judge(SAGEMAKER, phase_end).cause.process == "rank 1"


def test_a_rank_that_lost_its_peer_is_not_the_cause_where_the_peer_is_there() -> None:
    phase_end = make_phase_end(process("rank 0", 5, 1), process("rank 1", 6, 1), rank_0=LOST, rank_1=PLAIN)

    outcome = judge(SAGEMAKER, phase_end)

    assert (outcome.cause.rank, outcome.cause.message.split(":")[0], outcome.cause.primary) == (1, "ValueError", True)


@pytest.mark.parametrize(
    "between",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_a_rank_that_wraps_the_loss_of_its_peer_is_not_the_cause_either(between: str) -> None:
    wrapped = PLAIN.replace("ValueError", "RuntimeError")
    phase_end = make_phase_end(
        process("rank 0", 5, 1), process("rank 1", 6, KILL), rank_0=f"{LOST}\n\n{between}\n\n{wrapped}"
    )
    alone = make_phase_end(process("rank 0", 5, 1), rank_0=f"{LOST}\n\n{between}\n\n{wrapped}")

    assert judge(SAGEMAKER, phase_end).cause.rank == 1
    assert judge(SAGEMAKER, alone).cause.process == "rank 0"


@pytest.mark.parametrize(
    ("behind", "echo", "lost"),
    [
        ("RuntimeError: [../gloo/tcp/pair.cc:534] Connection closed by peer", True, True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True, False),
        ("BrokenPipeError: [Errno 32] Broken pipe", True, False),
        ("torch.distributed.DistBackendError: NCCL error: remote process exited", True, True),
        ("KeyError: 'lr'", False, False),
    ],
)
@pytest.mark.parametrize("is_shown", [True, False], ids=["printed", "from none"])
def test_a_rank_that_hides_the_loss_of_its_peer_is_not_the_cause(
    behind: str, echo: bool, lost: bool, is_shown: bool
) -> None:
    first = PLAIN.replace("ValueError: no such shard: 7", behind)
    text = f"{first}\n\nDuring handling of the above exception, another exception occurred:\n\n{PLAIN}"
    kind, _, message = behind.partition(": ")
    noted = Raised(
        time_ns=int(5e9),
        kind="ValueError",
        message="no such shard: 7",
        text=text if is_shown else PLAIN,
        behind=() if is_shown else (Thrown(kind=kind, message=message),),
    )
    phase_end = msgspec.structs.replace(
        make_phase_end(process("rank 0", 5, 1), process("rank 1", 6, KILL)), exceptions={"rank 0": noted}
    )

    outcome = judge(SAGEMAKER, phase_end)
    alone = judge(SAGEMAKER, msgspec.structs.replace(phase_end, exits=phase_end.exits[:1]))

    assert outcome.cause.rank == (1 if echo else 0)
    assert (alone.cause.process, alone.cause.primary, alone.cause.peer_lost) == ("rank 0", not echo, lost)


def test_a_hang_began_before_it_was_seen_though_no_process_has_ended_yet() -> None:
    phase_end = msgspec.structs.replace(make_phase_end(), hang=DetectedHang(idle_s=4.0, seen_ns=int(100e9)))

    assert judge(SAGEMAKER, phase_end).cause.failed_ns == int(96e9)


def test_under_mpi_a_rank_that_ends_without_a_word_is_not_the_cause_where_another_died() -> None:
    died = (process("rank 0", 5, 14), process("rank 1", 6, KILL), process("mpirun", 7, 14))

    assert judge(SAGEMAKER, make_phase_end(*died)).cause.rank == 1
    assert judge(SAGEMAKER, make_phase_end(*died, rank_0="no more data")).cause.rank == 0
    left = (process("rank 0", 5, 14), process("rank 1", 6, 7), process("mpirun", 7, 14))
    assert judge(SAGEMAKER, make_phase_end(*left)).cause.rank == 1
    alone = judge(SAGEMAKER, make_phase_end(process("rank 0", 5, 14), process("mpirun", 7, 14)))
    assert (alone.cause.process, alone.exit_code, alone.cause.primary) == ("rank 0", 14, False)


@pytest.mark.parametrize("main", ["mpirun", "mpi daemon"])
def test_a_host_that_mpirun_gave_no_rank_is_no_success(main: str) -> None:
    two, alone = job_of("mpi", hosts=("algo-1", "algo-2")), job_of("mpi")
    idle, busy = make_phase_end(process(main, 5, 0)), make_phase_end(process("rank 0", 5, 0), process(main, 6, 0))

    got = judge(two, idle)

    assert (got.status, got.exit_code, got.cause.primary) == ("failed", 78, False)
    assert got.cause.message.startswith("mpirun started no rank on host algo-1")
    assert judge(two, msgspec.structs.replace(idle, job_finished=True)).exit_code == 78
    assert judge(two, busy).status == judge(alone, idle).status == "succeeded"
    assert judge(two, msgspec.structs.replace(idle, peer_failed=True)).exit_code == 75
    unseen = job_of("mpi", hosts=("algo-1", "algo-2"), settings=Settings(rank_shim="off"))
    assert judge(unseen, idle).status == "succeeded"  # Without the rank shim ranks are not seen.


def test_a_rank_that_lost_its_peer_is_the_cause_where_nothing_else_is_known() -> None:
    phase_end = make_phase_end(process("rank 0", 5, 1), process("rank 1", 6, 1), rank_0=LOST, rank_1=LOST)

    assert (judge(SAGEMAKER, phase_end).cause.rank, judge(SAGEMAKER, phase_end).cause.primary) == (0, False)


def test_what_failed_after_the_stop_is_not_the_cause_of_a_job_that_failed_before() -> None:
    phase_end = make_phase_end(
        process("rank 0", 5, 1), process("rank 1", 8, 6), stop=(TERM, 6), rank_0=LOST, rank_1=PLAIN
    )

    assert (judge(SAGEMAKER, phase_end).cause.rank, judge(SAGEMAKER, phase_end).exit_code) == (0, 1)


def test_a_script_alone_has_no_rank_however_many_gpus_there_are() -> None:
    outcome = judge(job_of(gpus=8), make_phase_end(process("script", 5, 1)))

    assert (outcome.cause.rank, outcome.cause.process) == (None, "script")


# What it says.


def cause(phase_end: PhaseEnd, job: Job = SAGEMAKER) -> str:
    return judge(job, phase_end).cause.message


def lines(count: int) -> str:
    return "".join(f"step {number} done\n" for number in range(count))


def test_sys_exit_with_a_text_is_quoted() -> None:
    assert cause(make_phase_end(process("script", 5, 1), script="loading\nno data in /data: giving up\n")) == (
        "loading\nno data in /data: giving up"
    )


def test_of_a_long_end_the_last_lines_are_kept() -> None:
    text = cause(
        make_phase_end(process("script", 5, 3), script="".join(f"{n} {'x' * 200}\n" for n in range(9)) + "the reason\n")
    )

    assert text.endswith("the reason")
    assert len(text) <= 600


def test_of_one_very_long_line_the_beginning_is_kept() -> None:
    text = cause(make_phase_end(process("script", 5, 3), script="the reason: " + "x" * 9000))

    assert text.startswith("the reason")
    assert len(text) <= 600


def test_an_error_of_argparse_is_named_without_its_usage() -> None:
    usage = "usage: train.py [-h] [--epochs EPOCHS]\ntrain.py: error: unrecognized arguments: --lr 0.1\n"

    assert (
        cause(make_phase_end(process("script", 5, 2), script=usage))
        == "train.py: error: unrecognized arguments: --lr 0.1"
    )


def test_what_only_stdout_says_is_the_cause_if_stderr_is_silent() -> None:
    phase_end = PhaseEnd(
        name="train",
        failure_kind=SCRIPT_FAILED,
        command=(),
        exits=(process("script", 5, 3),),
        main="script",
        tails={"script": (b"", b"disk quota exceeded\n")},
    )

    assert cause(phase_end) == "disk quota exceeded"


def test_silence_is_said() -> None:
    assert cause(make_phase_end(process("script", 5, 3))) == "script ended with code 3 without a word"


@pytest.mark.parametrize("code", [1, 3])
def test_a_traceback_right_before_the_end_is_the_cause(code: int) -> None:
    assert cause(make_phase_end(process("script", 5, code), script=PLAIN + "\n" + lines(5))).startswith(
        "ValueError: no such"
    )


def test_a_handled_traceback_long_before_a_chosen_code_is_not_the_cause() -> None:
    outcome = judge(
        SAGEMAKER, make_phase_end(process("script", 5, 3), script=OTHER + "\n" + lines(60) + "quota exceeded\n")
    )

    assert outcome.cause.message.endswith("quota exceeded")
    assert "flash_attn" not in outcome.cause.message + outcome.cause.traceback


def test_a_traceback_before_a_trackers_summary_is_the_cause_and_the_last_line_is_quoted() -> None:
    text = cause(make_phase_end(process("script", 5, 1), script=PLAIN + "\n" + lines(60)))

    assert text == ("ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)\nit last said: step 59 done")


def test_a_handled_traceback_very_long_before_the_end_is_not_the_cause() -> None:
    assert "flash_attn" not in cause(
        make_phase_end(process("script", 5, 1), script=OTHER + "\n" + lines(300) + "no data\n")
    )


def test_the_stacks_of_a_crash_are_looked_at_for_advice() -> None:
    frames = (
        '  File "/v/horovod/common/basics.py", line 105 in init\n' + '  File "<frozen runpy>", line 88 in run\n' * 12
    )
    stderr = f"Fatal Python error: Segmentation fault\n\n{frames}Extension modules: numpy\n"

    outcomes = [judge(SAGEMAKER, make_phase_end(process("script", 5, how), script=stderr)) for how in (SEGV, 1)]

    assert "without MPI" in outcomes[0].cause.advice
    assert outcomes[1].cause.advice == ""


def test_a_death_by_signal_is_named_with_the_last_words() -> None:
    assert cause(make_phase_end(process("rank 1", 5, SEGV), rank_1="a\nb\nc\nloading weights\n")) == (
        "rank 1 was killed by SIGSEGV (signal 11); it last said: b\nc\nloading weights"
    )


GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "message", "unsaid"),
    [
        (None, "whether memory had run out is not counted here", "by the kernel"),
        (MemoryUse(oom_kills=None, peak_bytes=None, limit_bytes=GIB), "is not counted here", "by the kernel"),
        (MemoryUse(oom_kills=0, peak_bytes=GIB, limit_bytes=2 * GIB), "not for want of memory", "by the kernel, out"),
        (
            MemoryUse(oom_kills=1, peak_bytes=2 * GIB - (1 << 24), limit_bytes=2 * GIB),
            "by the kernel, out of memory (limit 2.00 GiB, peak 1.98 GiB, 1 kill counted)",
            "not by the toolkit",
        ),
    ],
)
def test_out_of_memory_is_proved_and_never_guessed(memory: MemoryUse | None, message: str, unsaid: str) -> None:
    phase = msgspec.structs.replace(make_phase_end(process("rank 1", 5, KILL)), memory=memory)

    cause_text = cause(phase)

    assert message in cause_text
    assert unsaid not in cause_text
    is_proved = "by the kernel, out" in message
    assert (judge(SAGEMAKER, phase).cause.advice == OUT_OF_MEMORY) is is_proved


@pytest.mark.parametrize(
    ("how", "oom_kills", "signalled", "expected"),
    [
        (TERM, None, False, True),
        (TERM, 1, False, True),
        (TERM, 0, True, False),
        (KILL, 0, False, True),
        (KILL, None, False, False),
        (KILL, 1, False, False),
        (SEGV, 0, False, False),
        (143, 0, False, False),
    ],
)
def test_who_was_ended_by_somebody_outside(
    how: int | signal.Signals, oom_kills: int | None, signalled: bool, expected: bool
) -> None:
    memory = MemoryUse(oom_kills=oom_kills, peak_bytes=None, limit_bytes=GIB)

    outcome = judge(
        SAGEMAKER,
        msgspec.structs.replace(make_phase_end(process("rank 1", 5, how, signalled=signalled)), memory=memory),
    )

    assert outcome.cause.preempted is expected


def test_our_own_kill_is_no_memory_matter() -> None:
    killed = make_phase_end(process("rank 0", 5, KILL, signalled=True))
    cause_text = cause(msgspec.structs.replace(killed, memory=MemoryUse(oom_kills=1, peak_bytes=1, limit_bytes=1)))

    assert "out of memory" not in cause_text


def test_an_abort_after_a_traceback_tells_both() -> None:
    outcome = judge(
        SAGEMAKER, make_phase_end(process("script", 5, ABRT), script=PLAIN + "terminate called recursively\n")
    )

    assert outcome.cause.message.startswith(
        "script was killed by SIGABRT (signal 6); its last traceback: ValueError: no such"
    )
    assert outcome.cause.traceback.startswith("Traceback")


def test_pips_last_error_is_the_cause_of_a_failed_install() -> None:
    pip_output = (
        "ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)\n"
        "\x1b[31mERROR: No matching distribution found for nosuch\x1b[0m\n\n[notice] A new pip is there\n"
    )
    phase_end = make_phase_end(
        process("pip", 5, 1), phase="install", failure="InstallRequirementsError", pip=pip_output
    )

    outcome = judge(SAGEMAKER, phase_end)

    assert (outcome.cause.kind, outcome.cause.message) == (
        "InstallRequirementsError",
        "No matching distribution found for nosuch",
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            "  error: subprocess-exited-with-error\n  x\nerror: metadata-generation-failed\n",
            "metadata-generation-failed",
        ),
        ("ERROR: Exception:\n" + PLAIN, "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)"),
        ("No module named pip\n", "No module named pip"),
    ],
)
def test_other_ends_of_pip_are_told_too(message: str, text: str) -> None:
    assert (
        cause(make_phase_end(process("pip", 5, 1), phase="install", failure="InstallModuleError", pip=message)) == text
    )


def test_needs_that_were_not_met_are_all_named() -> None:
    outcome = judge(
        SAGEMAKER, make_phase_end(missing=("host algo-2 to resolve", "host algo-1 to listen on algo-1:7777"))
    )

    assert outcome.cause.message == (
        "waited in vain for host algo-2 to resolve; for host algo-1 to listen on algo-1:7777 (TOOLKIT_JOIN_S=900)"
    )
    assert (outcome.cause.blame, outcome.cause.kind) == ("platform", "PlatformError")


@pytest.mark.parametrize(
    ("phase_end", "text"),
    [
        (make_phase_end(stop=(TERM, 4)), "stopped by SIGTERM before the script began"),
        (
            msgspec.structs.replace(make_phase_end(stop=(TERM, 4)), attempt=2),
            "stopped by SIGTERM before attempt 2 of the script began",
        ),
        (
            make_phase_end(process("script", 5, 0, signalled=True), stop=(TERM, 4)),
            "stopped by SIGTERM; the script ended with 0",
        ),
        (
            make_phase_end(process("script", 5, 7, signalled=True), stop=(TERM, 4)),
            "stopped by SIGTERM; script ended with code 7",
        ),
        (
            make_phase_end(process("script", 115, KILL, signalled=True), stop=(INT, 4), forced=True),
            "stopped by SIGINT; script killed by SIGKILL (signal 9); SIGKILL was needed (grace 110 s)",
        ),
        (
            make_phase_end(process("pip", 7, 0, signalled=True), stop=(TERM, 6), phase="install"),
            "stopped by SIGTERM during install",
        ),
    ],
)
def test_a_stop_says_how_it_went(phase_end: PhaseEnd, text: str) -> None:
    assert cause(phase_end) == text


def test_lines_passed_on_in_pieces_are_noted() -> None:
    phase_end = PhaseEnd(
        name="train",
        failure_kind=SCRIPT_FAILED,
        command=(),
        exits=(process("script", 5, 0),),
        main="script",
        long_lines=2,
        notes=("the guardian process was ended by somebody",),
    )

    assert judge(SAGEMAKER, phase_end).notes == (
        "the guardian process was ended by somebody",
        "2 lines above 1 MiB were passed on in pieces",
    )


def test_an_unknown_signal_is_named_by_its_number() -> None:
    end = Exit(process="script", pid=1, started_ns=1, ended_ns=2, signal=63)

    assert describe_end(end) == "killed by signal 63"
