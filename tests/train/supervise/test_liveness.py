"""Signs of life: what the loop leaves, and what is read from it."""

import os
from pathlib import Path

import pytest

from toolkit.train.supervise.liveness import BEAT, BEAT_EVERY_S, HANG, STUCK_AFTER_S, Liveness, state_of, trouble


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, of this process."""
    folder = tmp_path / f"run-{os.getpid()}-1f"
    folder.mkdir()
    return folder


def touched(path: Path, at_s: float) -> None:
    path.touch()
    os.utime(path, (at_s, at_s))


def test_a_pulse_beats_when_it_is_time_and_not_before(run: Path) -> None:
    liveness = Liveness(run)
    liveness.beat(100.0)
    touched(run / BEAT, 1.0)

    liveness.beat(100.0 + BEAT_EVERY_S / 2)
    assert (run / BEAT).stat().st_mtime == 1.0

    liveness.beat(100.0 + BEAT_EVERY_S)
    assert (run / BEAT).stat().st_mtime > 1.0


def test_the_loop_is_asked_to_wait_no_longer_than_until_the_next_beat(run: Path) -> None:
    liveness = Liveness(run)
    assert liveness.due_in_s(100.0) == 0.0

    liveness.beat(100.0)

    assert liveness.due_in_s(100.5) == BEAT_EVERY_S - 0.5


def test_a_folder_that_takes_no_files_costs_nothing_but_the_pulse(tmp_path: Path) -> None:
    liveness = Liveness(tmp_path / "missing")

    liveness.beat(100.0)
    liveness.note_hang(5.0)

    assert 0 < liveness.due_in_s(100.0) <= BEAT_EVERY_S


@pytest.mark.parametrize(
    ("beat_s", "hang_s", "idle", "expected"),
    [
        (999.0, None, "", ""),
        (1000.0 - STUCK_AFTER_S - 1, None, "", "has not moved for 61 s"),
        (999.0, 995.0, "10", "no rank has written or computed anything for 10 s"),
        (999.0, 979.0, "10", ""),  # It went on: nothing was said for a while.
        (999.0, 995.0, "half a wri", ""),
        (None, None, "", ""),  # Its disk was full at the start.
    ],
)
def test_what_is_wrong_is_said(run: Path, beat_s: float | None, hang_s: float | None, idle: str, expected: str) -> None:
    if beat_s is not None:
        touched(run / BEAT, beat_s)
    if hang_s is not None:
        (run / HANG).write_text(idle)
        touched(run / HANG, hang_s)

    message = trouble(run.parent, 1000.0)

    assert expected in message
    assert bool(expected) == bool(message)


def test_the_folder_of_a_run_that_was_killed_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / f"run-{2**22 + 1}-1f"  # Above the kernel's largest pid.
    folder.mkdir()
    touched(folder / BEAT, 1.0)

    assert trouble(tmp_path, 1000.0) == ""


def test_what_train_does_before_the_script_is_read_from_outside(tmp_path: Path, run: Path) -> None:
    scratch = tmp_path.with_name(f"{tmp_path.name[:-1]}")  # As one with a suffix for this user.
    assert state_of(tmp_path, 1) == "starting"
    assert state_of(tmp_path, os.getpid()) == "starting"
    liveness = Liveness(run)

    assert state_of(tmp_path, os.getpid()) == "running"
    with liveness.doing("installing"):
        assert state_of(scratch, os.getpid()) == "installing"
        with liveness.doing("waiting"):
            assert state_of(tmp_path, os.getpid()) == "waiting"
        assert state_of(tmp_path, os.getpid()) == "installing"
    assert state_of(tmp_path, os.getpid()) == "running"
