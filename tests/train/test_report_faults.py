"""Nothing that fails while the end is reported changes the status: every step of the report raises, on every way out.

A fault in our own code cannot be had from outside, so `faulty.py` plants it.
"""

import signal
import sys
from pathlib import Path

import pytest

from tests.train.base import Base, Done
from tests.train.faulty import STEPS
from tests.train.live import gone, live
from tests.train.test_together import MEETS, RAISES, Hosts

FAULTY = (sys.executable, str(Path(__file__).with_name("faulty.py")), "train")
WAYS: dict[str, tuple[str, int]] = {
    "succeeded": ("print('done')\n", 0),
    "raised": ("raise ValueError('no shard 7')\n", 1),
    "left with 3": ("import sys\nsys.exit(3)\n", 3),
    "aborted": ("import os\nos.abort()\n", 134),
    "stopped": ("import signal\nprint('ready', flush=True)\nsignal.pause()\n", 143),
    "left a child behind": ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n", 0),
    "hung": ("import time\ntime.sleep(600)\n", 124),
    "no such script": ("", 78),
}


def train_with_fault(base: Base, way: str, *steps: str, **more: str) -> Done:
    """Run `train` to its end on *way*, with faults in *steps*."""
    program, _ = WAYS[way]
    if program:
        base.program(program)
    base.code.mkdir(exist_ok=True)
    if way != "stopped":
        return base.train(more, command=(*FAULTY, *steps))
    with live(base, command=(*FAULTY, *steps), **more) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGTERM)
        return running.end()


@pytest.mark.parametrize("way", WAYS)
def test_the_status_stays_though_every_step_of_the_report_fails(base: Base, way: str) -> None:
    done = train_with_fault(base, way, *STEPS, TOOLKIT_STALL_S="1" if way == "hung" else "0")

    assert done.status == WAYS[way][1]
    assert not done.succeeded
    assert done.failure is None


@pytest.mark.parametrize("step", STEPS)
def test_what_fails_in_one_step_keeps_no_other_from_being_done(base: Base, step: str) -> None:
    message = base.folder / "termination-log"
    message.touch()

    done = train_with_fault(
        base,
        "raised",
        step,
        TOOLKIT_PLATFORM="kubernetes",
        TOOLKIT_TERMINATION_LOG=str(message),
        TOOLKIT_BASE=str(base.root),
        TOOLKIT_PROGRAM="train.py",
    )

    assert done.status == 1
    left = {
        "log": "ExitCode 1" in done.log,
        "failure": (base.output / "failure").exists(),
        "outcome.json": (base.output / "outcome.json").exists(),
        "message": bool(message.read_text()),
    }
    lost = {
        "the failure text": ("log", "failure", "message"),
        "the story": ("outcome.json",),
        "the termination message": ("message",),
        "the job's end in the log": ("log",),
        "the success or failure file": ("failure",),
        "outcome.json": ("outcome.json",),
        "mask": ("log",),
    }.get(step, ())
    assert {name for name, exists in left.items() if not exists} == set(lost)


def test_another_host_does_not_notice_that_a_host_cannot_report_its_end(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.program("algo-1", RAISES)
    hosts.program("algo-2", MEETS)
    steps = (*(step for step in STEPS if step != "settle"),)

    with hosts.start("algo-1") as first:
        with live(hosts.bases["algo-2"], command=(*FAULTY, *steps), **hosts.environ) as second:
            done = second.end()
        leader = first["algo-1"].end()

    assert (leader.status, done.status) == (1, 1)
    assert "boom, and nobody else" in str(leader.failure)


@pytest.mark.parametrize("name", ["'é' * 8", "'模' * 6", "'\\udcff'"])
def test_a_good_job_stays_one_whatever_its_leftovers_are_called(base: Base, name: str) -> None:
    base.program(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    open('/proc/self/comm', 'wb').write(os.fsencode({name})[:15])\n"
        "    open('named', 'w').write(str(os.getpid())); os.rename('named', 'pid')\n"
        "    time.sleep(600)\n"
        "while not os.path.exists('pid'): time.sleep(0.01)\n"
    )

    done = base.train()

    assert done.status == 0
    assert done.succeeded
    assert "outlived the script" in done.log
    assert gone(int((base.code / "pid").read_text()))


def test_a_secret_that_is_a_word_of_ours_changes_no_status(base: Base) -> None:
    base.hyperparameters({"sort_key": "succeeded", "api_key": "failed", "db_password": "script"})
    base.program("print('done')\n")

    done = base.train()

    assert (done.status, done.outcome["status"]) == (0, "succeeded")
