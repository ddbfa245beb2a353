"""Pure arithmetic of reading series: which level answers for which time, and fewer points with their extremes kept."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


def order(finest: int, levels: Sequence[int]) -> list[int]:
    """Return *levels* in the order in which they may answer: *finest*, then finer ones, then coarser ones."""
    finer = [level for level in sorted(levels, reverse=True) if level < finest]
    return (
        [level for level in [finest] if level in levels]
        + finer
        + [coarser for coarser in sorted(levels) if coarser > finest]
    )


def uncovered(starts: "Floats", level: int, chosen: Sequence[tuple[int, "Floats"]]) -> "Any":
    """Return which rows of *level* lie in no bucket that a row of *chosen* (level, starts) answers for already."""
    np = numpy()
    free = np.ones(len(starts), bool)
    for other, others in chosen:
        seconds = max(level, other, 1)
        free &= ~np.isin(np.floor_divide(starts, seconds), np.floor_divide(others, seconds))
    return free


class Grid:
    """At most *points* buckets of equal width from *start_s* to *end_s*, over rows whose starts are *x*, ascending."""

    def __init__(self, x: "Floats", weights: "Floats", start_s: float, end_s: float, points: int) -> None:
        np = numpy()
        self._weights = weights
        self.width_s = max((end_s - start_s) / points, 1e-6)
        bucket = np.minimum(np.floor_divide(x - start_s, self.width_s), points - 1)
        self._edges = np.flatnonzero(np.diff(bucket, prepend=-np.inf)) if len(x) else np.empty(0, int)
        self.starts: Floats = start_s + bucket[self._edges] * self.width_s
        if len(x):
            self.starts[0] = max(self.starts[0], x[0])

    def reduce(self, mean: "Floats", low: "Floats", high: "Floats") -> "tuple[Floats, Floats, Floats]":
        """Return mean (weighted), least and greatest of each bucket that has a row; NaN where no row was measured."""
        np = numpy()
        if not len(self._edges):
            return mean, low, high
        measured = ~np.isnan(mean)
        weights = self._weights * measured
        totals = np.add.reduceat(np.where(measured, mean, 0.0) * weights, self._edges)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = totals / np.add.reduceat(weights, self._edges)
        return means, np.fmin.reduceat(low, self._edges), np.fmax.reduceat(high, self._edges)

    def largest(self, usual_s: "Floats") -> "Floats":
        """Return the usual distance of the rows in each bucket, at least the bucket's width."""
        np = numpy()
        largest: Floats = np.maximum(np.maximum.reduceat(usual_s, self._edges), self.width_s)
        return largest


def gaps(x: "Floats", usual_s: "Floats") -> "Integers":
    """Return before which of *x* a gap ends: the row before it is more than three times *usual_s* away."""
    np = numpy()
    starts: Integers = 1 + np.flatnonzero(np.diff(x) > 3 * np.maximum(usual_s[1:], usual_s[:-1]))
    return starts
