"""A script and `train` talk by toolkit.status; hangs and their stacks."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.live import live

HAS_TORCH = any((Path(folder) / "torch").is_dir() for folder in sys.path)


def test_a_loop_that_asks_stops_with_the_time_it_has_left(base: Base) -> None:
    base.program(
        "import time\nfrom toolkit import status\n"
        "print('ready', status.time_left_s(), flush=True)\n"
        "step = 0\n"
        "while not status.should_stop(step):\n"
        "    status.heartbeat(step); step += 1; time.sleep(0.01)\n"
        "print('saved', 0 < status.time_left_s() <= 30)\n"
    )

    with live(base, TOOLKIT_GRACE_S="30") as running:
        running.until(b"ready None\n")
        running.signal()
        done = running.end()

    assert b"saved True" in done.stdout
    assert done.status == 0


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_ranks_agree_on_the_step_at_which_they_stop(base: Base) -> None:
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"})
    base.program(
        "import os, time, torch, torch.distributed as dist\nfrom toolkit import status\n"
        "dist.init_process_group('gloo')\n"
        "rank, step = dist.get_rank(), 0\n"
        "while not status.should_stop(step):\n"
        "    dist.all_reduce(torch.ones(1)); status.heartbeat(step); step += 1\n"
        "    if step == 5: print('ready', flush=True)\n"
        "    time.sleep(0.01)\n"
        "print('stopped at', step, flush=True)\n"
        "dist.destroy_process_group()\n"
    )

    with live(base, TOOLKIT_LOG_PREFIX="off") as running:
        running.until(b"ready\n", count=2)
        running.signal()
        done = running.end()

    steps = [line for line in done.stdout.splitlines() if line.startswith(b"stopped at")]
    assert len(steps) == 2
    assert steps[0] == steps[1]
    assert done.status == 0


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_a_failure_waits_for_a_checkpoint_that_is_being_written(base: Base) -> None:
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"})
    base.program(
        "import os, time\nfrom toolkit import status\n"
        "if os.environ['RANK'] == '0':\n"
        "    with status.holding_checkpoint():\n"
        "        open('holding', 'w'); time.sleep(2); print('written', flush=True)\n"
        "    time.sleep(600)\n"
        "while not os.path.exists('holding'): time.sleep(0.01)\n"
        "raise ValueError('the culprit')\n"
    )

    done = base.train()

    assert b"written" in done.stdout
    assert done.outcome["cause"]["rank"] == 1
    assert done.status == 1


@pytest.mark.parametrize("action", ["stop", "report"])
def test_a_hang_is_seen_and_its_stacks_are_written(base: Base, action: str) -> None:
    base.program(
        "import time\ndef stuck_here():\n    time.sleep(4)\nprint('ready', flush=True)\nstuck_here()\nprint('over')\n"
    )

    done = base.train(TOOLKIT_STALL_S="1", TOOLKIT_STALL_ACTION=action)

    stacks = (base.output / "data/stacks/algo-1-script.txt").read_text()
    assert "stuck_here" in stacks
    if action == "stop":
        assert done.status == 124
        assert done.failure is not None
        assert done.failure.startswith("Hang:")
    else:
        assert done.status == 0
        assert b"over" in done.stdout


@pytest.mark.parametrize("way", ["print('.', flush=True)", "sum(range(2_000_000))"])
def test_a_script_that_writes_or_computes_does_not_hang(base: Base, way: str) -> None:
    base.program(
        f"import time\nends = time.monotonic() + 4\nwhile time.monotonic() < ends:\n    {way}; time.sleep(0.05)\n"
    )

    assert base.train(TOOLKIT_STALL_S="2.5").status == 0


def test_a_stopped_rank_is_named_as_what_it_is(base: Base) -> None:
    base.program("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")

    done = base.train(TOOLKIT_STALL_S="1", TOOLKIT_GRACE_S="1")

    assert done.status == 124
    assert done.failure is not None
    assert "script is stopped (SIGSTOP)" in done.failure


def test_a_crash_in_native_code_shows_where(base: Base) -> None:
    base.program("import ctypes\ndef deep_down():\n    ctypes.string_at(0)\ndeep_down()\n")

    done = base.train()

    assert done.status == 128 + signal.SIGSEGV
    assert b"deep_down" in done.stderr
    assert done.failure is not None
    assert "SIGSEGV" in done.failure


def test_the_users_choice_about_faulthandler_stays(base: Base) -> None:
    base.program("import os\nprint(os.environ['PYTHONFAULTHANDLER'] == '')\n")

    assert base.train({"PYTHONFAULTHANDLER": ""}).stdout == b"True\n"


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making a control group needs root")
def test_out_of_memory_is_proved_by_the_kernels_count(base: Base) -> None:
    group = Path("/sys/fs/cgroup/memory") / f"toolkit-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(80 << 20))
    except OSError as error:
        pytest.skip(f"no control group of version 1 can be made here ({error.strerror})")
    base.program("kept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 20))\n")
    try:
        done = base.train(before=lambda: _enter(group))
    finally:
        group.rmdir()

    assert done.status == 137
    assert done.failure is not None
    assert "by the kernel, out of memory (limit 0.08 GiB" in done.failure
