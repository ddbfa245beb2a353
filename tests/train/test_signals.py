"""Signals from the first instruction of `train` on: what it inherits, what ranks inherit, what each signal does."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.train.base import TRAIN, Base
from tests.train.live import Live, live, program

START = (sys.executable, "-c", "from toolkit.cli.start import train; train()")
INHERITED = ("env", "--block-signal", "--ignore-signal=TERM,INT,QUIT,HUP,USR1,CHLD,PIPE,ALRM,TSTP")


def test_ranks_inherit_neither_the_mask_nor_the_ignored_signals_of_train(base: Base) -> None:
    base.hyperparameters(program="run.sh")
    base.program("grep -E '^Sig(Blk|Ign):' /proc/self/status\n", "run.sh")

    done = base.train(command=(*INHERITED, *TRAIN), deadline_s=60)  # Blocked, SIGCHLD once kept `train` for ever.

    assert done.status == 0
    assert [int(line.split()[1], 16) for line in done.stdout.splitlines()] == [0, 0]


def test_a_stop_signal_that_was_blocked_and_ignored_is_heard(base: Base) -> None:
    program(base, "says_signals.py")

    with live(base, command=(*INHERITED, *TRAIN)) as running:
        running.until(b"ready\n")
        running.signal()
        done = running.end()

    assert done.stdout.endswith(b"got SIGTERM\n")
    assert done.status == 0


def test_under_nohup_a_hangup_is_ignored_and_sigterm_still_stops(base: Base) -> None:
    program(base, "says_signals.py")

    with live(base, command=("env", "--ignore-signal=HUP", *TRAIN)) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGHUP)
        running.signal(signal.SIGTERM)
        done = running.end()

    assert done.stdout.endswith(b"ready\ngot SIGTERM\n")


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGTRAP, signal.SIGABRT, signal.SIGRTMAX])
def test_a_signal_that_would_end_train_stops_the_job_with_a_report(base: Base, number: signal.Signals) -> None:
    program(base, "says_signals.py", "['1', '3']")

    with live(base) as running:
        running.until(b"ready\n")
        running.signal(number)
        done = running.end()

    assert done.stdout.endswith(b"got SIGTERM\n")
    assert done.status == 128 + number
    assert done.failure is not None
    assert f"stopped by {signal.Signals(number).name}" in done.failure
    assert done.outcome["status"] == "stopped"


def test_a_notice_that_repeats_does_not_kill(base: Base) -> None:
    base.program(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), print('saved'), sys.exit(0)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )

    with live(base) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGXCPU)
        running.until(b"SIGXCPU received")
        time.sleep(1.1)  # The kernel sends one each second once the limit is reached.
        running.signal(signal.SIGXCPU)
        done = running.end()

    assert b"saved" in done.stdout
    assert done.status == 0


def test_the_clock_of_slow_regular_expressions_does_not_stop_the_job(base: Base) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "(?:a|a)+=([0-9.]+)$"}])
    base.program("import time\nprint('a' * 60)\ntime.sleep(0.3)\nprint('done')\n")

    done = base.train()

    assert done.stdout.endswith(b"done\n")
    assert done.status == 0


def test_job_control_of_a_terminal_neither_suspends_nor_ends_the_job(base: Base) -> None:
    base.program(
        "import os, sys, time\nprint('ready', flush=True)\nsys.stdin.read()\n"
        "while not os.path.exists('go'): time.sleep(0.05)\nprint('done')\n"
    )

    with live(base) as running:
        running.until(b"ready\n")
        for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGIO, signal.SIGVTALRM, signal.SIGTSTP):
            running.signal(number)
        running.until(b"SIGTSTP is ignored")
        (base.code / "go").touch()
        done = running.end()

    assert done.stdout.endswith(b"done\n")
    assert done.status == 0


@pytest.mark.parametrize(
    "prefix",
    [
        (),
        pytest.param(
            ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
            marks=[pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")],
        ),
    ],
    ids=["process", "PID 1"],
)
def test_sigterm_is_heard_from_the_first_handler_on(base: Base, prefix: tuple[str, ...]) -> None:
    base.program("print('started')\nimport time\ntime.sleep(600)\n")

    with live(base, command=(*prefix, *START)) as running:
        os.kill(_once_it_catches(running, signal.SIGTERM, child=bool(prefix)), signal.SIGTERM)
        done = running.end()

    assert done.status == 143
    assert done.failure is not None
    assert "stopped by SIGTERM" in done.failure
    assert b"started" not in done.stdout


def _once_it_catches(running: Live, number: int, *, child: bool) -> int:
    """Return the pid of `train`, the child of the process that was started or that itself, once it has a handler."""
    ends_s = time.monotonic() + 30
    while True:
        assert time.monotonic() < ends_s
        try:
            pid = running.pid
            if child:
                pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            status = Path(f"/proc/{pid}/status").read_text().split()
        except (OSError, IndexError):
            continue
        if int(status[status.index("SigCgt:") + 1], 16) >> (number - 1) & 1:
            return pid
