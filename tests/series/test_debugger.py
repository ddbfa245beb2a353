"""The Debugger's system metrics, as the service wrote them and as the writer does."""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from toolkit.series import debugger_reader, debugger_writer, measured, sample_writer
from toolkit.series.column import SampleColumn
from toolkit.series.debugger_names import Metric, column_of, metric_of

MINUTE = 1_591_748_100  # 2020-06-10 00:15:00 UTC
# A job of December 2024 on ml.m5.large, in the keys' order of a trace of 2020: public notebooks show both.
REAL = """\
{"Type":"memory","Name":"MemoryUsedPercent","Dimension":"","Value":6.18,"NodeId":"algo-1","Timestamp":1733636919.508406}
{"Type":"i/o","Name":"IOPS","Dimension":"","Value":0.0,"NodeId":"algo-1","Timestamp":1733636920.00899}
{"Type":"i/o","Name":"ReadThroughputInBytesPerSecond","Dimension":"","Value":0.0,"NodeId":"algo-1","Timestamp":1733636920.00899}
{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":98.0,"NodeId":"algo-1","Timestamp":1733636920.00909}
{"Type":"cpu","Name":"cpu0","Dimension":"I/OWaitPercentage","Value":14.0,"NodeId":"algo-1","Timestamp":1733636920.00909}
{"Type":"cpu","Name":"cpu1","Dimension":"CPUUtilization","Value":89.58,"NodeId":"algo-1","Timestamp":1733636920.00909}
{"Type":"memory","Name":"MemoryUsedPercent","Dimension":"","Value":6.75,"NodeId":"algo-1","Timestamp":1733636920.009163}
{"Type":"network","Name":"ReceiveBytesPerSecond","Dimension":"Algorithm","Value":0.0,"NodeId":"algo-1","Timestamp":1733636920.013693}
{"Type":"network","Name":"ReceiveBytesPerSecond","Dimension":"Platform","Value":66775126.66,"NodeId":"algo-1","Timestamp":1733636920.013693}
{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":98.04,"NodeId":"algo-1","Timestamp":1733636920.508563}
{"Type":"cpu","Name":"cpu1","Dimension":"CPUUtilization","Value":100.0,"NodeId":"algo-1","Timestamp":1733636920.508563}
"""
COLUMNS = tuple(
    SampleColumn(name=name)
    for name in (
        "cpu/core0/used_percent",
        "cpu/core0/iowait_percent",
        "cpu/all/used_percent",  # The Debugger does not have it.
        "gpu/0/used_percent",
        "gpu/0/memory_used_percent",
        "memory/container/used_percent",
        "network/all/received_bytes_per_s",
        "disk/all/write_bytes_per_s",
    )
)


def write(folder: Path, seconds: float, *, node: str = "algo-1", start_s: float = MINUTE, **options: float) -> None:
    """Write *seconds* of two samples each, whose first value is the number of the sample."""
    writer = debugger_writer.DebuggerWriter(folder, node, COLUMNS, warn=pytest.fail, **options)  # type: ignore[arg-type]
    for number in range(int(seconds * 2)):
        writer.add(start_s + number / 2, values(number))
    writer.close()


def values(number: float) -> Sequence[float]:
    return (number, 1.5, 77.0, 99.0, 50.25, 12.0, 1e6, 2e6)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_lines_and_names_are_those_of_the_service(tmp_path: Path) -> None:
    write(tmp_path, 0.5)

    assert files(tmp_path) == [f"system/incremental/2020061000/{MINUTE}.algo-1.json"]
    lines = (tmp_path / files(tmp_path)[0]).read_text().splitlines()
    assert lines[0] == (
        '{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":0.00,"NodeId":"algo-1",'
        '"Timestamp":1591748100.000000}'
    )
    assert [(event["Type"], event["Name"], event["Dimension"], event["Value"]) for event in map(json.loads, lines)] == [
        ("cpu", "cpu0", "CPUUtilization", 0),
        ("cpu", "cpu0", "I/OWaitPercentage", 1.5),
        ("gpu", "gpu0", "GPUUtilization", 99),
        ("gpu", "gpu0", "GPUMemoryUtilization", 50.25),
        ("memory", "MemoryUsedPercent", "", 12),
        ("network", "ReceiveBytesPerSecond", "Algorithm", 1e6),
        ("i/o", "WriteThroughputInBytesPerSecond", "", 2e6),
    ]


def test_a_file_is_closed_with_its_minute_and_folders_with_their_hour(tmp_path: Path) -> None:
    write(tmp_path, 150, start_s=MINUTE + 43 * 60 + 30)

    assert files(tmp_path) == [
        "system/incremental/2020061000/1591750680.algo-1.json",
        "system/incremental/2020061000/1591750740.algo-1.json",
        "system/incremental/2020061001/1591750800.algo-1.json",
    ]


def test_a_file_that_is_large_enough_is_closed_within_its_minute(tmp_path: Path) -> None:
    write(tmp_path, 30, most_bytes=10_000)

    names = [Path(name).name for name in files(tmp_path)]
    assert names[:2] == [f"{MINUTE}.algo-1.json", f"{MINUTE + 1}.algo-1.json"]
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.json")]
    assert max(sizes) < 11_000
    assert list(debugger_reader.read(tmp_path)["algo-1"].series(COLUMNS[0].name).mean) == list(range(60))


def test_the_cap_deletes_the_oldest_files(tmp_path: Path) -> None:
    write(tmp_path, 1200, cap_bytes=500_000)

    assert sum(path.stat().st_size for path in tmp_path.rglob("*.json")) <= 500_000
    assert debugger_reader.read(tmp_path)["algo-1"].series(COLUMNS[0].name).mean[-1] == 2399


def test_what_was_not_measured_has_no_line(tmp_path: Path) -> None:
    writer = debugger_writer.DebuggerWriter(tmp_path, "algo-2", COLUMNS[:2], warn=pytest.fail)
    writer.add(MINUTE, (math.nan, 3.0))
    writer.add(MINUTE + 1, (4.0, math.inf))
    writer.add(MINUTE + 2, (math.nan, math.nan))
    writer.close()

    lines = [json.loads(line) for line in (tmp_path / files(tmp_path)[0]).read_text().splitlines()]
    assert [(line["Dimension"], line["Value"]) for line in lines] == [("I/OWaitPercentage", 3), ("CPUUtilization", 4)]


def test_what_is_written_comes_back_as_samples(tmp_path: Path) -> None:
    write(tmp_path, 90)
    write(tmp_path, 10, node="algo-2")
    write(tmp_path, 10, node="algo-10")

    by_host = debugger_reader.read(tmp_path)

    assert list(by_host) == ["algo-1", "algo-2", "algo-10"]
    names = {"cpu/all/iowait_percent", *(column.name for column in COLUMNS)}
    assert {column.name for column in by_host["algo-1"].columns} == names
    assert by_host["algo-1"].span() == (MINUTE, MINUTE + 89.5)
    series = by_host["algo-1"].series("cpu/core0/used_percent", points=30)
    assert series.high.max() == 179
    assert set(by_host["algo-2"].series("network/all/received_bytes_per_s").mean) == {1e6}


def test_the_service_s_own_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "profiler-output/system/incremental/2024120805"
    folder.mkdir(parents=True)
    (folder / "1733636880.algo-1.json").write_text(REAL)
    (folder / "1733636940.algo-1.json").write_text(REAL.replace("17336369", "17336370")[:-40])

    samples = debugger_reader.read(tmp_path / "profiler-output")["algo-1"]

    assert samples.series("cpu/core0/used_percent").mean[1:3].tolist() == pytest.approx([98.0, 98.04])
    assert samples.series("memory/container/used_percent").mean[:2].tolist() == pytest.approx([6.18, 6.75])
    assert samples.series("cpu/all/used_percent").mean[1] == pytest.approx((98 + 89.58) / 2)
    assert samples.series("cpu/core1/used_percent").mean[-1] != 100  # Its line was cut off.
    assert np.nanmax(samples.series("network/Platform/ReceiveBytesPerSecond").mean) == pytest.approx(66775126.66)
    assert len(samples.series("disk/all/operations_per_s").x) == 6


def test_a_killed_writer_s_file_gets_its_name_from_the_next(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom toolkit.series import debugger_reader, debugger_writer\n"
        "from toolkit.series.column import SampleColumn\n"
        "columns = [SampleColumn(name='gpu/0/used_percent')]\n"
        "writer = debugger_writer.DebuggerWriter(Path(sys.argv[1]), 'algo-1', columns)\n"
        f"for number in range(30): writer.add({MINUTE} + number, [50.0])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in files(tmp_path) if name.endswith(".json")] == []

    write(tmp_path, 5, start_s=MINUTE + 40)

    assert [Path(name).name for name in files(tmp_path)] == [f"{MINUTE}.algo-1.json", f"{MINUTE + 1}.algo-1.json"]
    assert len(debugger_reader.read(tmp_path)["algo-1"].series("gpu/0/used_percent").x) == 40


def test_a_full_disk_is_one_warning_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "system").write_text("")
    messages: list[str] = []
    writer = debugger_writer.DebuggerWriter(tmp_path, "algo-1", COLUMNS, warn=messages.append)

    for number in range(3):
        writer.add(MINUTE + number, values(number))
    writer.close()

    assert len(messages) == 1
    assert messages[0].endswith("no more of the Debugger's files are written; the job goes on")


def test_a_host_of_another_name_writes_as_a_node_that_readers_take(tmp_path: Path) -> None:
    write(tmp_path, 1, node="worker-7")

    assert list(debugger_reader.read(tmp_path)) == ["algo-1"]


def test_every_metric_has_a_column_of_its_own() -> None:
    for name in ("cpu/core12/used_percent", "gpu/3/memory_used_percent", *(column.name for column in COLUMNS[3:])):
        metric = metric_of(name)
        assert metric is not None
        assert column_of(metric)[0] == name
    assert metric_of("cpu/all/used_percent") is None
    assert column_of(Metric("gpu", "gpu2", "Temperature"))[0] == "gpu/Temperature/gpu2"


def test_a_host_without_a_monitor_has_the_debugger_s_samples(tmp_path: Path) -> None:
    for node in ("algo-1", "algo-2"):
        write(tmp_path / "profiler", 10, node=node)
    first = tmp_path / "one"
    write(first / "profiler", 10)

    assert measured.of_host(tmp_path / "monitor", "algo-2").span() == (MINUTE, MINUTE + 9.5)
    assert measured.of_host(tmp_path / "monitor", "algo-3").span() is None
    assert measured.of_host(first / "monitor", "host 1").span() == (MINUTE, MINUTE + 9.5)

    sample_writer.SampleWriter(first / "monitor/samples", COLUMNS).add(5.0, values(1))
    assert measured.of_host(first / "monitor", "host 1").span() == (5, 5)


def test_a_folder_without_files_has_no_nodes(tmp_path: Path) -> None:
    assert debugger_reader.read(tmp_path / "none") == {}
    assert list(tmp_path.iterdir()) == []
