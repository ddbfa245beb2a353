"""Remains of a job, and jobs for which their host has no room."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.live import alive, gone

# A daemon that changes its pid *n* times before it settles, ignores SIGTERM, and writes its pid down.
HOPS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    for _ in range({hops}):
        if os.fork():
            os._exit(0)
    with open({file!r}, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
os._exit(0)
"""


@contextlib.contextmanager
def control_group(kind: str) -> Iterator[Path]:
    """Make a control group of version 1 below the mounted *kind*, and remove it; the test is skipped without one."""
    group = Path(f"/sys/fs/cgroup/{kind}/toolkit-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cgroup.procs").read_text()
    except OSError as error:
        pytest.skip(f"no control group {kind} of version 1: {error}")
    try:
        yield group
    finally:
        group.rmdir()


@pytest.mark.parametrize("hops", [1, 2, 50])
def test_a_daemon_that_forks_while_it_is_looked_for_is_ended(base: Base, tmp_path: Path, hops: int) -> None:
    file = tmp_path / "pid"
    base.program(HOPS.format(hops=hops, file=str(file)))

    for _ in range(2):
        file.unlink(missing_ok=True)
        done = base.train()

        assert done.status == 0
        # It was ended on its way, or where it had settled.
        assert not file.exists() or not file.read_text() or not alive(int(file.read_text()))


def test_a_script_is_given_the_limit_of_open_files_that_train_was_started_with(base: Base) -> None:
    base.program("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))\n")

    done = base.train(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 4096)))

    assert done.stdout == b"(40, 4096)\n"


def test_a_job_whose_ranks_need_more_descriptors_than_the_soft_limit_runs(base: Base) -> None:
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program("print('trained')\n")

    done = base.train(
        TOOLKIT_PROCESSES_PER_HOST="6", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (28, 4096))
    )

    assert done.status == 0
    assert done.stdout.count(b"trained\n") == 6


def test_descriptors_that_run_out_are_a_platform_error_and_leave_nothing_behind(base: Base, tmp_path: Path) -> None:
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program(
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '600'], start_new_session=True, env={{}})\n"
        f"open(os.path.join({str(tmp_path)!r}, f'pid-{{child.pid}}'), 'w').close()\n"
        "print('started', flush=True)\ntime.sleep(600)\n"
    )

    done = base.train(
        TOOLKIT_PROCESSES_PER_HOST="12", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    )

    assert done.status == 75
    assert "Too many open files (RLIMIT_NOFILE: soft 40, hard 40)" in (done.failure or "")
    assert "--ulimit nofile" in (done.failure or "")
    assert not any(alive(int(file.name[4:])) for file in tmp_path.glob("pid-*"))


# Stand for torchrun. The first runs out of descriptors itself. The second starts one rank after the other without a
# descriptor of its own, so `train` runs out: at a place that depends on the limit, in itself or in a child before exec.
RUNS_OUT = "import os\nheld = []\nwhile True:\n    held.append(os.open('/dev/null', os.O_RDONLY))\n"
STARTS_RANKS = """
import os, signal, time
for rank in range(12):
    environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "12"}
    shim = os.posix_spawn(os.environ["PYTHON_EXEC"], [os.environ["PYTHON_EXEC"], "-u", "train.py"], environ)
    while not os.path.exists(f"started-{rank}"):
        if os.waitpid(shim, os.WNOHANG)[0]:
            raise SystemExit(1)
        time.sleep(0.01)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("torchrun", "first", "limit"),
    [(RUNS_OUT, "torchrun", 40), *((STARTS_RANKS, "train", limit) for limit in range(40, 44))],
)
def test_a_limit_of_descriptors_is_the_cause_wherever_it_is_reached(
    base: Base, torchrun: str, first: str, limit: int
) -> None:
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program("import os, time\nopen('started-' + os.environ['RANK'], 'w').close()\ntime.sleep(600)\n")
    folder = base.code / "torch" / "distributed"
    folder.mkdir(parents=True)
    for file, text in (
        (folder.parent / "__init__.py", ""),
        (folder / "__init__.py", ""),
        (folder / "run.py", torchrun),
    ):
        file.write_text(text)

    done = base.train(
        TOOLKIT_PROCESSES_PER_HOST="12", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    )

    assert done.status == 75
    assert f"Too many open files (RLIMIT_NOFILE: soft {limit}, hard {limit})" in (done.failure or "")
    assert "--ulimit nofile" in (done.failure or "")
    assert (done.outcome["cause"]["process"] == "torchrun") is (first == "torchrun")


@pytest.mark.root
def test_a_refused_fork_is_a_platform_error(base: Base) -> None:
    base.program("print('trained')\n")

    with control_group("pids") as group:
        (group / "pids.max").write_text("2")  # `train` and its guardian.

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        done = base.train(before=enter)

    assert done.status == 75
    assert "expected another process on this host" in (done.failure or "")
    assert "--pids-limit" in (done.failure or "")


@pytest.mark.root
def test_a_process_that_even_sigkill_does_not_end_is_named_and_left(base: Base) -> None:
    with control_group("freezer") as group:
        base.program(
            "import subprocess\n"
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            f"open('{group}/cgroup.procs', 'w').write(str(child.pid))\n"
            f"open('{group}/freezer.state', 'w').write('FROZEN')\n"
            "print(child.pid)\n"
        )

        done = base.train()
        pid = int(done.stdout)
        (group / "freezer.state").write_text("THAWED")
        is_gone = gone(pid)

    assert done.status == 0
    assert f"SIGKILL has not ended sleep (pid {pid}, in the kernel)" in done.log
    assert any(f"sleep (pid {pid}" in note for note in done.outcome["notes"])
    assert is_gone
