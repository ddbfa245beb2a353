"""Traces of several ranks become one, with aligned clocks and processes that are named by their ranks."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.traces import chrome
from toolkit.traces.merging import RankTrace, write_merged

BASE_NS = 1_700_000_000_000_000_000


def write(folder: Path, rank: int, host: str, *, base_ns: int = BASE_NS, late_us: float = 0.0) -> RankTrace:
    """Write a trace of five steps of 1 ms; all ranks have the same process ID."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python3"}}
    ]
    for step in range(5):
        begin_us = 1000.0 * step + late_us
        name = f"ProfilerStep#{step}"
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 7, "ts": begin_us, "dur": 1000.0}
        )
        events.append({"ph": "s", "id": step, "name": "fwdbwd", "pid": 7, "tid": 7, "ts": begin_us, "cat": "fwdbwd"})
    path = folder / f"{host}_rank-{rank}.pt.trace.json.gz"
    document = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return RankTrace(path=path, host=host, rank=rank)


def merged(folder: Path, *traces: RankTrace) -> list[dict[str, Any]]:
    write_merged(traces, folder / "merged.json.gz")
    document = json.loads(gzip.decompress((folder / "merged.json.gz").read_bytes()))
    return document["traceEvents"]  # type: ignore[no-any-return]


def begins(events: list[dict[str, Any]], name: str = "ProfilerStep#2") -> list[float]:
    return [event["ts"] for event in events if event["name"] == name]


def test_each_process_has_the_name_of_its_rank_and_a_number_of_its_own(tmp_path: Path) -> None:
    events = merged(tmp_path, write(tmp_path, 1, "algo-2"), write(tmp_path, 0, "algo-1"))

    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == ["rank 0 of algo-1", "rank 1 of algo-2"]
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert len(arrows) == len(set(arrows)) == 10
    assert len(chrome.read(tmp_path / "merged.json.gz").events) == 10


def test_traces_that_count_from_different_times_stand_at_the_same_one(tmp_path: Path) -> None:
    other = write(tmp_path, 1, "algo-1", base_ns=BASE_NS + 2_000_000, late_us=-2000.0)

    first, second = begins(merged(tmp_path, write(tmp_path, 0, "algo-1"), other))

    assert first == pytest.approx(second)


def test_a_host_whose_clock_is_off_is_aligned_and_a_rank_of_the_same_host_is_not(tmp_path: Path) -> None:
    events = merged(
        tmp_path,
        write(tmp_path, 0, "algo-1"),
        write(tmp_path, 1, "algo-1", late_us=300.0),
        write(tmp_path, 2, "algo-2", late_us=250_000.0),
    )

    first, late, other = begins(events)
    assert late - first == pytest.approx(300.0)
    assert other == pytest.approx(first, abs=0.01)


def test_a_merged_file_is_whole_or_not_there(tmp_path: Path) -> None:
    trace = write(tmp_path, 0, "algo-1")
    trace.path.write_bytes(trace.path.read_bytes()[:50])

    with pytest.raises(Exception, match="cut off"):
        write_merged([trace], tmp_path / "merged.json.gz")

    assert [path.name for path in tmp_path.iterdir()] == [trace.path.name]
