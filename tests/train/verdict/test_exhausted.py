"""A launcher that failed because its host ran out of something: the limit is the cause, and the exit code 75."""

import msgspec
import pytest

from tests.train.launchers.jobs import job_of
from tests.train.verdict.test_judge import TERM, make_phase_end, process
from toolkit.job.job import Job
from toolkit.job.outcome import PhaseEnd
from toolkit.settings import Settings
from toolkit.status_pages.pages import Raised, Thrown
from toolkit.train.verdict.judge import judge

POPEN = """\
Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/torch/distributed/run.py", line 936, in main
    run(args)
  File "/usr/lib/python3.12/subprocess.py", line 1885, in _execute_child
    self.pid = _fork_exec(args, executable_list, ...)
{error}
"""
CHILD_FAILED = """\
OSError: [Errno 24] Too many open files
Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 300, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED
"""


def torchrun_said(stderr: str, **changes: object) -> PhaseEnd:
    phase_end = make_phase_end(process("torchrun", 2, 1), process("rank 0", 2.1, TERM, signalled=True), torchrun=stderr)
    return msgspec.structs.replace(phase_end, main="torchrun", open_files=(40, 4096), **changes)


def job(**settings: object) -> Job:
    return job_of("torch_distributed", settings=Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            POPEN.format(error="OSError: [Errno 24] Too many open files: '/dev/null'"),
            "expected another file descriptor on this host,"
            " found: Too many open files (RLIMIT_NOFILE: soft 40, hard 4096)",
        ),
        (POPEN.format(error="OSError: [Errno 23] Too many open files in system"), "expected another open file"),
        (
            POPEN.format(error="BlockingIOError: [Errno 11] Resource temporarily unavailable"),
            "expected another process on this host",
        ),
        (POPEN.format(error="RuntimeError: can't start new thread"), "expected another process on this host"),
        (POPEN.format(error="OSError: [Errno 12] Cannot allocate memory"), "expected memory for another process"),
        (
            POPEN.format(error="ImportError: libc10.so: cannot open shared object file: Too many open files"),
            "expected another file descriptor",
        ),
        ("mpirun: fork: Resource temporarily unavailable", "expected another process on this host"),
        ("/bin/sh: 1: Cannot fork\npipe: Too many open files in system", "expected another open file"),
    ],
)
def test_the_limit_that_a_launcher_names_is_the_cause(output: str, cause: str) -> None:
    outcome = judge(job(), torchrun_said(output))

    assert (outcome.status, outcome.exit_code) == ("failed", 75)
    assert (outcome.cause.kind, outcome.cause.blame, outcome.cause.primary) == ("PlatformError", "platform", True)
    assert outcome.cause.message.startswith(cause)
    assert outcome.cause.process == "torchrun"


@pytest.mark.parametrize(
    "output",
    [
        CHILD_FAILED,  # A rank ran out, and not the launcher.
        POPEN.format(error="BlockingIOError: [Errno 11] Resource temporarily unavailable").replace("fork", "recv"),
        POPEN.format(error="OSError: [Errno 98] Address already in use"),
        "a disk is slow: Resource temporarily unavailable",
        "",
    ],
)
def test_another_failure_of_a_launcher_stays_its_own(output: str) -> None:
    outcome = judge(job(), torchrun_said(output))

    assert (outcome.exit_code, outcome.cause.blame) == (1, "user")


def test_what_the_rank_hook_recorded_of_the_launcher_counts_though_nothing_was_printed() -> None:
    wrapped = Raised(
        time_ns=1,
        kind="RuntimeError",
        message="workers could not be started",
        text="",
        behind=(Thrown(kind="OSError", message="[Errno 24] Too many open files"),),
    )
    outcome = judge(job(), torchrun_said("", exceptions={"torchrun": wrapped}))

    assert outcome.exit_code == 75


def test_lines_of_ranks_that_the_launcher_relays_are_not_its_own() -> None:
    outcome = judge(job(rank_shim="off"), torchrun_said("rank 3: Too many open files"))

    assert outcome.exit_code == 1


def test_a_rank_that_runs_out_is_the_cause_itself() -> None:
    error = POPEN.format(error="OSError: [Errno 24] Too many open files")
    phase_end = make_phase_end(process("rank 0", 1, 1), process("torchrun", 2, 1), rank_0=error, torchrun=error)
    outcome = judge(job(), msgspec.structs.replace(phase_end, main="torchrun"))

    assert (outcome.exit_code, outcome.cause.process, outcome.cause.blame) == (1, "rank 0", "user")
