"""The system metrics of SageMaker Debugger, and the columns that hold the same.

Names, units and layout are those of files that the service wrote: the traces in the tests of
https://github.com/awslabs/sagemaker-debugger (tests/profiler/resources/test_traces/system) and a job of December 2024
in a public notebook, both seen in November 2026. smdebug 1.0.34 reads what is written by these names.
"""

import re
from pathlib import Path
from typing import NamedTuple

from toolkit import folders


class Metric(NamedTuple):
    """`kind` is the key "Type". `dimension` "" for memory and disks, as the service wrote it."""

    kind: str
    name: str
    dimension: str


# Column -> metric; N stands for the number of a core or GPU. Rates are bytes a second, the others percent.
_TABLE = (
    ("cpu/coreN/used_percent", Metric("cpu", "cpuN", "CPUUtilization"), "%"),
    ("cpu/coreN/iowait_percent", Metric("cpu", "cpuN", "I/OWaitPercentage"), "%"),
    ("gpu/N/used_percent", Metric("gpu", "gpuN", "GPUUtilization"), "%"),
    ("gpu/N/memory_used_percent", Metric("gpu", "gpuN", "GPUMemoryUtilization"), "%"),
    ("memory/container/used_percent", Metric("memory", "MemoryUsedPercent", ""), "%"),
    ("disk/all/operations_per_s", Metric("i/o", "IOPS", ""), "1/s"),
    ("disk/all/read_bytes_per_s", Metric("i/o", "ReadThroughputInBytesPerSecond", ""), "bytes/s"),
    ("disk/all/write_bytes_per_s", Metric("i/o", "WriteThroughputInBytesPerSecond", ""), "bytes/s"),
    # "Algorithm": of the container; "Platform", which the service had beside it: of its own agents.
    ("network/all/received_bytes_per_s", Metric("network", "ReceiveBytesPerSecond", "Algorithm"), "bytes/s"),
    ("network/all/sent_bytes_per_s", Metric("network", "TransmitBytesPerSecond", "Algorithm"), "bytes/s"),
)
_METRICS = {column: metric for column, metric, _ in _TABLE}
_COLUMNS = {metric: (column, unit) for column, metric, unit in _TABLE}


def metric_of(column: str) -> Metric | None:
    """Return the metric of *column*, None for a column that the Debugger does not have."""
    match = re.fullmatch(r"(cpu/core|gpu/)(\d+)(/.*)", column)
    if match is None:
        return _METRICS.get(column)
    metric = _METRICS.get(f"{match[1]}N{match[3]}")
    return None if metric is None else metric._replace(name=metric.name.replace("N", match[2]))


def column_of(metric: Metric) -> tuple[str, str]:
    """Return name and unit of the column that holds *metric*; one that is not known gets a name made of its own."""
    match = re.fullmatch(r"(cpu|gpu)(\d+)", metric.name)
    name = _COLUMNS.get(metric._replace(name=f"{match[1]}N") if match else metric)
    if name is not None:
        return name[0].replace("N", match[2]) if match else name[0], name[1]
    return f"{metric.kind.replace('/', '')}/{metric.dimension.replace('/', '') or 'all'}/{metric.name}", ""


def files_of(output: Path) -> dict[str, tuple[Path, ...]]:
    """Return the files of each node, by time, that lie in a job's *output*, in a copy of its folder in S3 (there
    "profiler-output"), or in "profiler-output" itself."""
    files: dict[str, list[Path]] = {}
    for folder in (output / "profiler", output / "profiler-output", output):
        hours = folders.matching(folder / "system" / "incremental", "*", folders.named_elsewhere)
        paths = (path for hour in hours for path in folders.matching(hour, "*.json", folders.named_elsewhere))
        for path in sorted(paths, key=lambda path: path.name):
            if match := re.fullmatch(r"\d+\.(.+)\.json", path.name):
                files.setdefault(match[1], []).append(path)
        if files:
            break
    return {node: tuple(files[node]) for node in files}
