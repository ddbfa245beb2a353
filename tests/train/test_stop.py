"""Signals to `train`: who gets them, in which order, how it ends, and that nothing is left (checklist 61-64, 80)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.base import TRAIN, Base
from tests.train.live import PROGRAMS, alive, gone, live, program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_reaches_the_script_and_its_clean_end_is_success(base: Base, number: signal.Signals) -> None:
    program(base, "says_signals.py")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal(number)
        done = running.end()

    assert done.stdout.splitlines()[-1] == f"got {number.name}".encode()
    assert done.status == 0
    assert done.succeeded
    assert done.outcome["status"] == "stopped"


def test_a_script_that_ends_badly_after_a_stop_gives_128_and_the_signal(base: Base) -> None:
    program(base, "says_signals.py", "['1', '3']")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal()
        done = running.end()

    assert done.status == 128 + signal.SIGTERM
    assert done.failure is not None
    assert "stopped by SIGTERM" in done.failure
    assert "code 3" in done.failure


def test_a_script_without_a_handler_dies_of_the_signal_and_is_never_a_success(base: Base) -> None:
    """And a metric that captured nothing until then is named, as at any other end."""
    base.document("metric-definition-regex.json", {"acc": "acc=([0-9.]+)"})
    base.program("import time\nprint('acc: 0.75\\nready', flush=True)\ntime.sleep(600)\n")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGTERM)
        done = running.end()

    assert done.status == 143
    assert not done.succeeded
    assert done.log.count("metric 'acc': acc=([0-9.]+) matched no line; the nearest: 'acc: 0.75'") == 1


def test_children_of_the_script_live_while_it_saves(base: Base) -> None:
    program(base, "workers_save.py")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal()
        done = running.end()

    assert b"saved" in done.stdout
    assert done.status == 0


def test_what_a_shell_leaves_behind_has_the_rest_of_the_grace(base: Base) -> None:
    base.hyperparameters(program="run.sh")
    base.program((PROGRAMS / "shell_saves.sh").read_text().replace('"$1"', sys.executable), "run.sh")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal()
        done = running.end()

    assert b"saved" in done.stdout
    assert done.status == 143


def test_a_script_that_ignores_the_signal_is_killed_at_the_deadline(base: Base) -> None:
    program(base, "ignores_term.py")

    with live(base, TOOLKIT_GRACE_S="0.5") as running:
        running.until(b"ready\n")
        running.signal()
        done = running.end()

    assert done.status == 143
    assert done.failure is not None
    assert "SIGKILL was needed" in done.failure


def test_user_signals_are_passed_on_and_do_not_stop(base: Base) -> None:
    program(base, "says_signals.py", "['3']")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGUSR1)
        running.until(b"got SIGUSR1\n")
        running.signal(signal.SIGUSR2)
        running.until(b"got SIGUSR2\n")
        running.signal(signal.SIGTERM)
        done = running.end()

    assert done.status == 0
    assert b"got SIGTERM" in done.stdout


@pytest.mark.parametrize("how", ["", "own-session", "ignore"])
def test_a_grandchild_that_holds_the_pipes_neither_delays_the_end_nor_outlives_it(
    base: Base, tmp_path: Path, how: str
) -> None:
    pid_file = tmp_path / "pid"
    program(base, "leaves_grandchild.py", repr([str(pid_file), how]))

    with live(base) as running:
        running.until(b"done\n")
        done = running.end()

    assert done.status == 0
    assert not alive(int(pid_file.read_text()))


def test_nothing_survives_a_killed_train(base: Base, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    base.program(
        "import os, subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{worker.pid}}')\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )

    with live(base) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGKILL)
        running.process.wait()

        assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_signals_before_the_script_starts_stop_the_job_before_it_begins(base: Base) -> None:
    base.program("print('started')\n")
    base.resources(["algo-1", "nowhere.invalid"])

    with live(base, TOOLKIT_GRACE_S="1") as running:
        running.until(b"Invoking script")
        running.signal()
        done = running.end()

    assert done.status == 143
    assert b"started" not in done.stdout
    assert done.failure is not None
    assert "before" in done.failure


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
class TestAsPid1:
    COMMAND = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *TRAIN)

    def test_zombies_of_others_are_reaped(self, base: Base) -> None:
        base.program(
            "import os, time\n"
            "for _ in range(5):\n"
            "    if os.fork() == 0:\n"
            "        if os.fork() == 0:\n"
            "            time.sleep(0.1)\n"
            "        os._exit(0)\n"
            "    os.wait()\n"
            "deadline = time.monotonic() + 20\n"
            "def orphans():\n"
            "    for name in filter(str.isdigit, os.listdir('/proc')):\n"
            "        try: fields = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()\n"
            "        except OSError: continue\n"  # It ended in between.
            "        if fields[1] == '1' and int(name) != os.getpid():\n"
            "            yield name, fields[0]\n"
            "while list(orphans()) and time.monotonic() < deadline:\n"
            "    time.sleep(0.05)\n"
            "print('left:', list(orphans()))\n"
        )

        done = base.train(command=self.COMMAND)

        assert done.stdout == b"left: []\n"
        assert done.status == 0

    def test_sigterm_is_heard_though_the_kernel_shields_pid_1(self, base: Base) -> None:
        program(base, "says_signals.py")

        with live(base, command=self.COMMAND) as running:
            running.until(b"ready\n")
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            done = running.end()

        assert b"got SIGTERM" in done.stdout
        assert done.status == 0


def test_a_sleeping_console_does_not_delay_a_stop(base: Base) -> None:
    base.program(
        "import signal, sys, threading, time\n"
        "def stop(*_):\n"
        f"    open({str(base.folder / 'stopped')!r}, 'w')\n"
        "    import os; os._exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "for _ in range(1000): print('x' * 1000)\n"  # As much as fits without a reader.
        f"open({str(base.folder / 'ready')!r}, 'w')\n"
        "while True:\n    print('x' * 1000)\n"
    )
    process = subprocess.Popen(
        TRAIN, env=base.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        deadline_s = time.monotonic() + 60
        while not (base.folder / "ready").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        while not (base.folder / "stopped").exists():
            assert time.monotonic() < deadline_s, "the script never heard of the stop"
            time.sleep(0.01)
        assert process.stdout is not None
        lines = process.stdout.read().split(b"\n")

        assert process.wait(60) == 0
        assert set(lines[:-1]) == {b"x" * 1000}
    finally:
        process.kill()
        process.communicate()
