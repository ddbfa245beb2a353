"""Steps from the rings that the start-up hook writes, and from heartbeats."""

import os
import time
from pathlib import Path

import pytest

from toolkit.monitor.roster import Listed, Roster
from toolkit.monitor.step_reader import StepReader
from toolkit.rank.profiler.ring import StepRing
from toolkit.status_pages import layout as layout

MS = 1_000_000


def ring(folder: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> StepRing:
    monkeypatch.setattr(os, "getpid", lambda: pid)
    return StepRing(str(folder))


def test_every_step_is_drained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ring(tmp_path, monkeypatch, 4711)
    steps = StepReader(tmp_path, 2, 1000.0)
    steps.add(5, 4711)
    write(written, 1, 10 * MS)
    write(written, 2, 20 * MS)

    first = steps.drain()
    write(written, 3, 30 * MS)
    second = steps.drain()

    assert [(step.rank, step.attempt, step.step, step.end_s) for step in first] == [
        (5, 2, 1, 1000.01),
        (5, 2, 2, 1000.02),
    ]
    assert [step.step for step in second] == [3]
    assert (second[0].step_s, second[0].data_s, second[0].checkpoint_s) == (0.008, 0.001, None)
    assert steps.drain() == []


def test_of_a_ring_that_went_around_the_last_steps_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ring(tmp_path, monkeypatch, 4711)
    steps = StepReader(tmp_path, 1, 0.0)
    steps.add(0, 4711)
    for step in range(1, layout.STEPS_KEPT + 101):
        write(written, step, step * MS)

    drained = steps.drain()

    assert [step.step for step in drained] == list(range(101, layout.STEPS_KEPT + 101))


def test_the_steps_of_a_process_that_a_rank_started_are_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = os.getpid()
    written = ring(tmp_path, monkeypatch, pid)
    steps = StepReader(tmp_path, 1, 0.0)
    steps.add(0, 2**31 - 1)
    steps.add(1, os.getppid())
    write(written, 1, MS)

    assert [step.rank for step in steps.drain()] == [1]


def test_a_file_that_is_no_ring_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "steps-12").write_bytes(b"cut")
    (tmp_path / "steps-x").write_bytes(b"")
    steps = StepReader(tmp_path, 1, 0.0)
    steps.add(0, 12)

    assert steps.drain() == []
    assert StepReader(tmp_path / "gone", 1, 0.0).drain() == []


def test_heartbeats_are_steps_where_no_ring_is(tmp_path: Path) -> None:
    now_ns = time.monotonic_ns()
    body = layout.RANK_BODY.pack(2, 7, now_ns, 5 * MS, 7, float("nan"), 0, 0, 2) * 2
    (tmp_path / "rank-99").write_bytes((layout.RANK_HEAD.pack(layout.VERSION, 99) + body).ljust(layout.PAGE_BYTES))
    steps = StepReader(tmp_path, 1, 0.0)
    steps.add(4, 99)

    drained = steps.drain()

    assert [(step.rank, step.step, step.step_s) for step in drained] == [(4, 7, 0.005)]
    assert drained[0].end_s == pytest.approx(now_ns / 1e9)
    assert steps.drain() == []


def test_ranks_are_read_as_train_lists_them(tmp_path: Path) -> None:
    roster = Roster(tmp_path / "ranks")
    assert roster.new() == []

    (tmp_path / "ranks").write_text("0 0 100 7\n1 1 1")
    first = roster.new()
    (tmp_path / "ranks").write_text("0 0 100 7\n1 1 101 8\n2 -1 102 0\n")

    assert first == [Listed(0, 0, 100, 7)]
    assert roster.new() == [Listed(1, 1, 101, 8), Listed(2, -1, 102, 0)]


def test_the_places_of_pauses_are_read_once_each_time_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring(tmp_path, monkeypatch, 4711)
    steps = StepReader(tmp_path, 1, 0.0)
    steps.add(3, 4711)
    steps.drain()
    file = tmp_path / "pauses-4711.json"

    assert steps.read_pauses() is None
    file.write_text('{"samples": 4, "data_samples": 1, "stacks": [{"count": 3, "place": "train.py:41"}]}')
    first = steps.read_pauses()
    assert first is not None
    assert (first[3].samples, first[3].stacks[0].place) == (4, "train.py:41")
    assert steps.read_pauses() is None
    file.write_text('{"samples": ')
    os.utime(file, ns=(1, 1))
    assert steps.read_pauses() is None, "a damaged file tells nothing"


def write(to: StepRing, step: int, end_ns: int) -> None:
    unmeasured = [layout.NONE] * 9
    to.add(step, end_ns, 8 * MS, MS, 2 * MS, 3 * MS, 2 * MS, layout.NONE, MS, *unmeasured)
