"""Reading the system metrics that SageMaker Debugger wrote, or our writer in its place, as samples of each node."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.records import Record
from toolkit.series.arrays import numpy
from toolkit.series.column import SampleColumn
from toolkit.series.debugger_names import Metric, column_of
from toolkit.series.sample_reader import Samples, of_arrays

# The service's agent measured CPU, memory, disks and network up to 14 ms apart (a job of 2024): one sample is what lies
# within this time. Its shortest interval is 100 ms.
_TOGETHER_S = 0.05


class _Line(Record, frozen=True, kw_only=True, rename="pascal"):
    """A line of the service's agent."""

    type: str
    dimension: str
    value: float
    node_id: str
    """The host, as "algo-1"."""
    timestamp: float
    """Seconds since the epoch."""
    name: str | None = None
    """The metric, or the device, as "cpu0"."""


def read(folder: Path) -> dict[str, Samples]:
    """Return the samples of each node ("algo-1") in the files below *folder*, the profiler's output.

    *folder* is LocalPath, or the "profiler-output" of a job; "system" is found in it. A line that is no metric, as the
    last one of a file that was cut off, is skipped. A folder without files has no nodes.

    Raises:
        UserError: numpy is not installed.
    """
    numpy()
    nodes: dict[str, _Node] = {}
    documents = (
        Path(entry.path) for entry in folders.walk(folder, folders.named_elsewhere) if entry.name.endswith(".json")
    )
    for path in sorted(documents, key=lambda path: path.name):
        if "system" in path.relative_to(folder.parent).parts:
            for line in _lines(path):
                nodes.setdefault(line.node_id, _Node()).add(line)
    return {name: nodes[name].samples() for name in sorted(nodes, key=_by_number)}


def _lines(path: Path) -> Iterator[_Line]:
    try:
        content = files.read(path, files.RECORDS_BYTES)
    except OSError:  # Deleted since it was found.
        return
    try:
        yield from msgspec.json.Decoder(_Line).decode_lines(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _good_lines(content)


def _good_lines(content: bytes) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    for line in content.splitlines():
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue


class _Node:
    """The samples of one node: a row for what was measured together."""

    def __init__(self) -> None:
        self._places: dict[Metric, int] = {}
        self._times = array("d")
        self._rows: list[array[float]] = []

    def add(self, line: _Line) -> None:
        metric = Metric(line.type, line.name or "", line.dimension)
        place = self._places.setdefault(metric, len(self._places))
        row = self._rows[-1] if self._rows else None
        apart = row is None or abs(line.timestamp - self._times[-1]) > _TOGETHER_S
        if row is None or apart or (place < len(row) and row[place] == row[place]):
            row = array("f")
            self._rows.append(row)
            self._times.append(line.timestamp)
        if place >= len(row):
            row.extend([math.nan] * (place + 1 - len(row)))
        row[place] = line.value

    def samples(self) -> Samples:
        np = numpy()
        values = np.full((len(self._rows), len(self._places)), np.nan, "<f4")
        for number, row in enumerate(self._rows):
            values[number, : len(row)] = row
        column_names = [column_of(metric) for metric in self._places]
        columns = [SampleColumn(name=name, unit=unit) for name, unit in column_names]
        for metric in ("used_percent", "iowait_percent"):
            cores = [
                place for place, (name, _) in enumerate(column_names) if re.fullmatch(rf"cpu/core\d+/{metric}", name)
            ]
            if cores:
                # The Debugger has no value of all cores. A row without any core is NaN, which nanmean would warn about.
                measured = np.count_nonzero(~np.isnan(values[:, cores]), axis=1)
                sums = np.nansum(values[:, cores], axis=1)
                mean = np.where(measured > 0, sums / np.maximum(measured, 1), np.nan)
                values = np.column_stack((values, mean.astype("f4")))
                columns.append(SampleColumn(name=f"cpu/all/{metric}", unit="%"))
        return of_arrays(columns, np.array(self._times), values)


def _by_number(node: str) -> tuple[Sequence[str], int]:
    head, _, number = node.rpartition("-")
    return ((head,), int(number)) if number.isdecimal() else ((node,), 0)
