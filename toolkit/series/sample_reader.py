"""Reading samples: any column as a series, from the finest values that were kept.

Plan of a read: the files of a folder are grouped into segments (one writer, one list of columns). Opening a folder
reads only block heads and times. Which rows of which level answer a question is decided once for all columns, so every
series of the same window has the same x; then a column's values are unpacked, with those of the 31 columns beside it,
which are kept for the next question.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from toolkit.series.arrays import numpy
from toolkit.series.column import SampleColumn
from toolkit.series.levels import GROUP, LEVELS
from toolkit.series.reduction import Grid, gaps, order, uncovered
from toolkit.series.segments import ArrayTable, Rows, Segment, load

if TYPE_CHECKING:
    from toolkit.series.reduction import Floats

_ANSWERS = 4  # Windows whose unpacked columns are kept.
_LEVELS = (0, *LEVELS)


class Series(NamedTuple):
    """`mean[i]` was measured from `x[i]` (seconds since the epoch) on; `low` and `high`: its least and greatest sample.

    NaN: not measured. Four arrays of float64, of the same length.
    """

    x: "Floats"
    low: "Floats"
    mean: "Floats"
    high: "Floats"


class Samples:
    """The samples that a folder held when it was opened."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._answers: dict[tuple[float, float, int], _Answer] = {}
        columns = {column.name: column for segment in segments for column in segment.columns}
        self.columns: tuple[SampleColumn, ...] = tuple(columns.values())

    def span(self) -> tuple[float, float] | None:
        """Return when the first and the last sample were, None if there is none. Exact to the finest level there."""
        spans = [span for span in map(_span, self._segments) if span is not None]
        return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None

    def series(
        self, name: str, start_s: float | None = None, end_s: float | None = None, *, points: int | None = None
    ) -> Series:
        """Return the column *name* between two times, from the finest level that was kept.

        *points*: at most so many buckets of equal width, with their least and greatest sample, and a row of NaN where
        nothing was measured for a while. All columns have the same x for the same window and points.

        Raises:
            KeyError: there is no such column.
        """
        np = numpy()
        if not any(column.name == name for column in self.columns):
            raise KeyError(name)
        span = self.span()
        empty = np.empty(0)
        if span is None:
            return Series(empty, empty, empty, empty)
        start, end = span[0] if start_s is None else start_s, span[1] if end_s is None else end_s
        finest = (
            0 if points is None else max((level for level in _LEVELS if level <= (end - start) / points), default=0)
        )
        answer = self._answer(start, end, finest)
        mean, low, high = (part.astype(float) for part in answer.column(name))
        if points is None or not len(answer.x):
            return Series(answer.x, low, mean, high)
        x, usual = answer.x, answer.usual_s
        if len(x) > points:
            grid = Grid(x, answer.weights, start, end, points)
            mean, low, high = grid.reduce(mean, low, high)
            x, usual = grid.starts, grid.largest(usual)
        starts = gaps(x, usual)
        return Series(
            np.insert(x, starts, x[starts - 1] + usual[starts - 1]),
            *(np.insert(part, starts, np.nan) for part in (low, mean, high)),
        )

    def _answer(self, start_s: float, end_s: float, finest: int) -> "_Answer":
        key = (start_s, end_s, finest)
        if key not in self._answers:
            if len(self._answers) >= _ANSWERS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = _Answer(self._segments, start_s, end_s, finest)
        return self._answers[key]


def read(folder: Path) -> Samples:
    """Return the samples in *folder*, which may still be written. A folder that is not there has none.

    Raises:
        UserError: numpy is not installed.
    """
    numpy()
    return Samples(load(folder))


def of_arrays(columns: Sequence[SampleColumn], times: "Floats", values: "Any") -> Samples:
    """Return samples that are in memory: `values[row][column]` was measured at `times[row]`, in seconds."""
    np = numpy()
    segment = Segment(tuple(columns))
    segment.tables[0] = ArrayTable(np.asarray(times, "f8"), np.asarray(values, "<f4").reshape(len(times), -1))
    return Samples([segment])


class _Answer:
    """The rows that answer for a window, ascending, and the columns that were unpacked last."""

    def __init__(self, segments: list[Segment], start_s: float, end_s: float, finest: int) -> None:
        np = numpy()
        self._picked: list[tuple[Segment, Rows, Any]] = []
        self._unpacked: dict[int, tuple[int, Any]] = {}
        times, weights, usual = [], [], []
        for segment in segments:
            chosen: list[tuple[int, Any]] = []
            for level in order(finest, tuple(segment.tables)):
                table = segment.tables[level]
                starts = table.times()
                inside = np.flatnonzero(((starts + level > start_s) | (starts >= start_s)) & (starts <= end_s))
                inside = inside[uncovered(starts[inside], level, chosen)]
                if not len(inside):
                    continue
                self._picked.append((segment, table, inside))
                chosen.append((level, starts[inside]))
                times.append(starts[inside])
                weights.append(table.counts()[inside])
                usual.append(np.full(len(inside), max(level, _interval(starts))))
        joined = np.concatenate(times) if times else np.empty(0)
        self._order = np.argsort(joined, kind="stable")
        self.x: Floats = joined[self._order]
        self.weights: Floats = np.concatenate(weights)[self._order] if times else np.empty(0)
        self.usual_s: Floats = np.concatenate(usual)[self._order] if times else np.empty(0)

    def column(self, name: str) -> "Any":
        """Return float32 [mean, low, high][row] of the column *name*, NaN where a segment does not have it."""
        np = numpy()
        parts = []
        for number, (segment, table, rows) in enumerate(self._picked):
            place = segment.index.get(name)
            if place is None:
                parts.append(np.full((3, len(rows)), np.nan, "<f4"))
                continue
            group, column = divmod(place, GROUP)
            if self._unpacked.get(number, (-1, None))[0] != group:
                self._unpacked[number] = (group, table.values(group, rows))
            parts.append(self._unpacked[number][1][column])
        return np.concatenate(parts, axis=1)[:, self._order] if parts else np.empty((3, 0), "<f4")


def _span(segment: Segment) -> tuple[float, float] | None:
    """Return the first and the last time of *segment*. Coarse buckets begin before the first sample and end after the
    last: of the levels that reach to either end, the finest tells it."""
    ends = [
        (float(times.min()), float(times.max()), level)
        for level, table in segment.tables.items()
        if len(times := table.times())
    ]
    if not ends:
        return None
    first, last = min(end[0] for end in ends), max(end[1] + end[2] for end in ends)
    _, start = min((level, low) for low, _, level in ends if low < first + 60)
    level, end = min((level, high) for _, high, level in ends if high + level > last - 60)
    return start, end + level


def _interval(times: "Floats") -> float:
    """Return the usual time between two rows, in seconds."""
    np = numpy()
    return float(np.median(np.abs(np.diff(times)))) if len(times) > 1 else 0.0
