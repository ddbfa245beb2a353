"""Signals are one stop request, or a second one that kills at once."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.train.base import TRAIN, Base
from tests.train.live import alive, live, program

# Saves for 0.5 s when it is told to stop, and ends with 0.
SAVES = (
    "import signal, sys, time\n"
    "def save(*_):\n"
    "    print('saving', flush=True); time.sleep(0.5); print('saved', flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "signal.signal(signal.SIGINT, save)\n"
    "print('ready', flush=True)\n"
    "while True: time.sleep(0.05)\n"
)


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGTERM,) * 4],
    ids=["SIGTERM twice", "SIGTERM and SIGINT", "SIGTERM four times"],
)
def test_stop_signals_within_a_second_are_one_wish_and_the_script_saves(
    base: Base, numbers: tuple[signal.Signals, ...]
) -> None:
    base.program(SAVES)

    with live(base) as running:
        running.until(b"ready\n")
        for number in numbers:
            running.signal(number)
            time.sleep(0.002)
        done = running.end()

    assert done.status == 0, done
    assert b"saved" in done.stdout
    assert done.stdout.count(b"saving") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("first", ["script", "train"])
def test_a_script_that_the_platform_signals_too_saves_once_where_its_handler_ignores_the_second_signal(
    base: Base, number: signal.Signals, first: str
) -> None:
    """docs/orchestrators/slurm.md advises this for proctrack/linuxproc: `train` passes the signal on all the same."""
    base.program(
        "import os, signal, sys, time\n"
        "def save(number, _):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "    print('saving', flush=True); time.sleep(0.2); print('saved', flush=True); sys.exit(0)\n"
        f"signal.signal({int(number)}, save)\n"
        "print(f'ready {os.getpid()}.', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )

    with live(base) as running:
        running.until(b".\n")
        script = int(running.out.split()[1][:-1])
        for pid in (script, running.pid) if first == "script" else (running.pid, script):
            os.kill(pid, number)
        done = running.end()

    assert done.status == 0, done
    assert (done.stdout.count(b"saving"), done.stdout.count(b"saved")) == (1, 1)


def test_timeout_which_signals_train_and_its_group_lets_the_script_save(base: Base) -> None:
    base.program(SAVES)

    with live(base, command=("timeout", "60", *TRAIN)) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGALRM)  # What its clock sends to `timeout`.
        done = running.end()

    assert b"saved" in done.stdout, done
    assert done.status == 124  # That of `timeout`.
    assert done.outcome["exit_code"] == 0


def test_a_stop_signal_a_second_after_the_first_kills_at_once(base: Base) -> None:
    program(base, "ignores_term.py")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal()
        running.until(b"SIGTERM received")
        time.sleep(1.0)
        running.signal()
        done = running.end()

    assert done.status == 143
    assert done.failure is not None
    assert "SIGKILL came with a second signal" in done.failure


def test_a_stopped_guardian_does_not_keep_train_from_ending(base: Base) -> None:
    base.program("import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n")

    with live(base) as running:
        running.until(b"ready\n")
        guardian = _wait_for_guardian(running.pid)
        subprocess.run(["kill", "-STOP", str(guardian)], check=True)
        (base.code / "go").touch()
        done = running.end()

    assert done.status == 0
    assert not alive(guardian)


def _wait_for_guardian(train: int) -> int:
    """Return the only child of *train* with its command line: any other has not begun its own program yet."""
    ends_s = time.monotonic() + 60
    while True:
        children = [pid for pid in _children(train) if _command(pid) == _command(train)]
        if len(children) == 1:
            return children[0]
        assert time.monotonic() < ends_s, children
        time.sleep(0.01)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
