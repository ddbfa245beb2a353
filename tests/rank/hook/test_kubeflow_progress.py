"""The sidecar of a TrainJob reads progress and metrics, and makes a status of them.

tests/train/test_kubeflow_progress.py has it post."""

import json
import math
import os
from pathlib import Path

import pytest

from toolkit.metrics.file import SampleFile
from toolkit.metrics.sample import Sample
from toolkit.rank.hook.kubeflow_progress import MOST_METRICS, Metrics, Pace, format_value, read_progress, trainer_status
from toolkit.status_pages import layout as layout


def page(folder: Path, pid: int, fraction: float, *, version: int = layout.VERSION, torn: bool = False) -> None:
    """Write what a process leaves that told *fraction*."""
    body = layout.RANK_BODY.pack(7, 3, 0, 0, 1, fraction, 0, 0, 8 if torn else 7)
    (folder / (layout.RANK_NAME % pid)).write_bytes(layout.RANK_HEAD.pack(version, pid) + body * 2)


def sample(name: str, value: float, rank: int | None = 0) -> Sample:
    return Sample(name=name, value=value, time_s=1.0, host="algo-1", rank=rank)


def metrics(path: Path, *samples: Sample, offset: int = 0) -> dict[str, str]:
    SampleFile(path, warn=pytest.fail).append(samples)
    metrics = Metrics(str(path), offset)
    metrics.read()
    return metrics.values


def test_progress_is_the_lowest_that_a_rank_told(tmp_path: Path) -> None:
    for pid, fraction in ((10, 0.75), (11, 0.5), (12, math.nan)):
        page(tmp_path, pid, fraction)

    assert read_progress(str(tmp_path)) == 0.5


@pytest.mark.parametrize(("written", "expected"), [(1.5, 1.0), (-3.0, 0.0), (math.inf, 1.0)])
def test_progress_stays_between_nothing_and_all(tmp_path: Path, written: float, expected: float) -> None:
    page(tmp_path, 10, written)

    assert read_progress(str(tmp_path)) == expected


def test_what_is_no_rank_s_page_is_passed_over(tmp_path: Path) -> None:
    page(tmp_path, 10, 0.1, version=layout.VERSION + 1)
    page(tmp_path, 11, 0.2, torn=True)
    (tmp_path / "rank-12").write_bytes(b"short")
    (tmp_path / "rank-13").mkdir()
    (tmp_path / "rank-14").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "rank-15")

    assert read_progress(str(tmp_path)) is None
    assert read_progress(str(tmp_path / "nowhere")) is None


def test_the_latest_sample_counts_and_rank_0_s_before_others(tmp_path: Path) -> None:
    values = metrics(
        tmp_path / "metrics.jsonl",
        sample("loss", 0.5, rank=0),
        sample("loss", 0.25, rank=0),
        sample("loss", 9.0, rank=1),
        sample("tokens", 5.0, rank=3),
        sample("tokens", 7.0, rank=2),
        sample("acc", math.nan, rank=None),
    )

    assert values == {"loss": "0.25", "tokens": "7", "acc": "NaN"}


def test_only_what_came_since_this_round_began_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics(path, sample("loss", 0.5), sample("earlier", 1.0))

    assert metrics(path, sample("loss", 0.25), offset=path.stat().st_size) == {"loss": "0.25"}


def test_a_line_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = json.dumps({"name": "loss", "value": 0.5, "time_s": 1.0, "host": "h", "rank": 0, "step": None})
    path.write_text('{"cut": \n[]\n' + line[:20])
    metrics = Metrics(str(path), 0)
    metrics.read()
    assert metrics.values == {}

    with path.open("a") as file:
        file.write(line[20:] + "\n")
    metrics.read()

    assert metrics.values == {"loss": "0.5"}


def test_a_file_that_is_not_there_yet_is_no_metric(tmp_path: Path) -> None:
    metrics = Metrics(str(tmp_path / "metrics.jsonl"), 0)

    metrics.read()

    assert metrics.values == {}


@pytest.mark.parametrize(
    ("value", "written"), [(120.0, "120"), (0.1, "0.1"), (1e300, "1e+300"), (-0.5, "-0.5"), ("Infinity", "Infinity")]
)
def test_values_are_written_as_people_write_them(value: float | str, written: str) -> None:
    assert format_value(value) == written


def test_the_time_left_is_counted_from_the_first_progress_that_was_told() -> None:
    pace = Pace()

    answers = [
        pace.remaining_s(fraction, now_s) for fraction, now_s in ((None, 0.0), (0.5, 100.0), (0.75, 110.0), (1, 120))
    ]

    assert answers == [None, None, 10, 0]


def test_progress_that_goes_back_begins_the_count_anew() -> None:
    pace = Pace()

    answers = [
        pace.remaining_s(fraction, now_s) for fraction, now_s in ((0.2, 0.0), (0.4, 10.0), (0.1, 20.0), (0.2, 21.0))
    ]

    assert answers == [None, 30, None, 8]


def test_no_progress_to_speak_of_is_no_number_that_kubernetes_would_refuse() -> None:
    pace = Pace()
    pace.remaining_s(0.0, 0.0)

    assert pace.remaining_s(1e-12, 1e6) == 2**31 - 1


def test_a_status_has_what_is_known_and_no_more() -> None:
    status = trainer_status(0.29, 7, {"loss": "0.5"})
    assert status is not None
    assert str(status.pop("lastUpdatedTime")).endswith("Z")

    assert status == {
        "progressPercentage": 29,
        "estimatedRemainingSeconds": 7,
        "metrics": [{"name": "loss", "value": "0.5"}],
    }
    assert set(trainer_status(0.0, None, {}) or ()) == {"lastUpdatedTime", "progressPercentage"}
    assert set(trainer_status(None, None, {"loss": "1"}) or ()) == {"lastUpdatedTime", "metrics"}
    assert trainer_status(None, None, {}) is None


def test_a_status_keeps_to_kubernetes_limits() -> None:
    status = trainer_status(None, None, {"n" * 99: "1", **{str(i): "2" for i in range(999)}})

    assert status is not None
    sent = status["metrics"]
    assert isinstance(sent, list)
    assert (len(sent), sent[0]["name"]) == (MOST_METRICS, "n" * 64)
