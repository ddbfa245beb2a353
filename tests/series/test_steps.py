"""Steps come back as a table."""

import os
from pathlib import Path

import numpy as np
import pytest

from toolkit.series import step_records
from toolkit.series.step_records import StepRecord, StepTail, StepWriter


def test_steps_come_back_by_rank_ascending_in_time(tmp_path: Path) -> None:
    writer = step_records.StepWriter(tmp_path / "steps", warn=pytest.fail)
    writer.add([StepRecord(rank=1, step=1, end_s=11.5, step_s=1.5, data_s=0.5)])
    writer.add(
        [StepRecord(rank=0, step=1, end_s=11.0, step_s=1.0, forward_s=0.25), StepRecord(rank=0, step=2, end_s=12.0)]
    )
    writer.close()

    table = step_records.read(tmp_path / "steps")

    assert len(table) == 3
    assert table.ranks == (0, 1)
    assert table.end_s.tolist() == [11.0, 11.5, 12.0]
    assert table.of(1).data_s.tolist() == [0.5]
    assert table.of(0).forward_s.tolist()[0] == 0.25
    assert np.isnan(table.of(0).step_s).tolist() == [False, True]
    assert table.of(0).attempt.tolist() == [1, 1]


def test_a_second_attempt_appends(tmp_path: Path) -> None:
    for attempt in (1, 2):
        writer = step_records.StepWriter(tmp_path, warn=pytest.fail)
        writer.add([StepRecord(rank=0, step=7, end_s=10.0 * attempt, attempt=attempt)])
        writer.close()

    table = step_records.read(tmp_path)

    assert table.attempt.tolist() == [1, 2]
    assert table.where(table.attempt == 2).end_s.tolist() == [20.0]


def test_a_cut_file_keeps_its_whole_blocks(tmp_path: Path) -> None:
    writer = step_records.StepWriter(tmp_path, warn=pytest.fail)
    for number in range(5):
        writer.add([StepRecord(rank=0, step=number, end_s=float(number))])
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 3)

    assert step_records.read(tmp_path).step.tolist() == [0, 1, 2, 3]


def test_the_cap_drops_the_oldest(tmp_path: Path) -> None:
    writer = step_records.StepWriter(tmp_path, cap_bytes=100_000, warn=pytest.fail)
    for number in range(10_000):
        writer.add([StepRecord(rank=0, step=number, end_s=float(number))])
    writer.close()

    table = step_records.read(tmp_path)

    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 110_000
    assert table.step[-1] == 9999
    assert np.all(np.diff(table.step) == 1)


def test_what_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    messages: list[str] = []
    writer = step_records.StepWriter(tmp_path / "file/steps", warn=messages.append)

    for _ in range(3):
        writer.add([StepRecord(rank=0, step=1, end_s=1.0)])

    assert messages == [f"{tmp_path}/file/steps: Not a directory: no more steps are written there; the job goes on"]


def test_no_folder_and_no_steps_are_an_empty_table(tmp_path: Path) -> None:
    assert (len(step_records.read(tmp_path / "none")), step_records.table(()).ranks) == (0, ())


def test_the_speed_of_steps_that_are_still_written_is_that_of_the_newest_ones(tmp_path: Path) -> None:
    writer, tail = StepWriter(tmp_path), StepTail(tmp_path)
    tail.read_new()
    assert (tail.measure_speed(), tail.done) == (None, 0)

    writer.add([StepRecord(rank=rank, step=step, end_s=10.0 + step / 4) for step in range(1, 6) for rank in (0, 1)])
    tail.read_new()
    first = tail.measure_speed()
    writer.add(
        [StepRecord(rank=rank, step=step, end_s=11.25 + (step - 5) / 2) for step in range(6, 400) for rank in (0, 1)]
    )
    tail.read_new()

    assert first == 4.0
    assert (tail.measure_speed(), tail.done) == (2.0, 399)
    writer.close()
