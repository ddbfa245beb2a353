"""toolkit.commands.jobs.metrics gives every value of every host by time."""

import math
import sys
from pathlib import Path

import pytest

from tests.commands.jobs.folders import START_S, output, sample
from toolkit.commands import jobs
from toolkit.errors import UserError


def test_the_values_of_all_hosts_come_by_time(tmp_path: Path) -> None:
    output(tmp_path / "algo-1", metrics=(sample("loss", 3.0, 1.0, step=1), sample("loss", "NaN", 3.0, rank=0)))
    output(tmp_path / "algo-2", metrics=(sample("loss", 2.0, 2.0, host="algo-2", rank=1),))

    rows = jobs.metrics(tmp_path)

    assert [tuple(row) for row in rows] == [("timestamp", "metric_name", "value", "host", "rank", "step")] * 3
    assert rows[0] == {
        "timestamp": START_S + 1,
        "metric_name": "loss",
        "value": 3.0,
        "host": "algo-1",
        "rank": None,
        "step": 1,
    }
    assert [(row["host"], row["rank"]) for row in rows] == [("algo-1", None), ("algo-2", 1), ("algo-1", 0)]
    assert math.isnan(rows[2]["value"])


def test_a_job_without_metrics_gives_no_rows(tmp_path: Path) -> None:
    (output(tmp_path / "output") / "success").touch()

    assert jobs.metrics(str(tmp_path)) == []


def test_a_frame_without_pandas_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (output(tmp_path / "output") / "success").touch()
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(UserError, match="Install pandas"):
        jobs.metrics(tmp_path, frame=True)
