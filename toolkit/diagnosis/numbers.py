"""Statistics over lists of floats in which NaN means "not measured"."""

import math
from collections.abc import Iterable, Sequence


def measured(values: Iterable[float]) -> list[float]:
    """Return *values* without NaN and infinity."""
    return [value for value in values if math.isfinite(value)]


def mean(values: Iterable[float]) -> float:
    """Return the mean of the measured *values*, NaN if there is none."""
    finite = measured(values)
    return math.fsum(finite) / len(finite) if finite else math.nan


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which *share* (0 to 1) of the measured *values* lie, between neighbours in proportion."""
    finite = sorted(measured(values))
    if not finite:
        return math.nan
    position = share * (len(finite) - 1)
    low = int(position)
    high = min(low + 1, len(finite) - 1)
    return finite[low] + (finite[high] - finite[low]) * (position - low)


def median(values: Iterable[float]) -> float:
    """Return the median of the measured *values*, NaN if there is none."""
    return quantile(values, 0.5)


def deviation(values: Iterable[float]) -> float:
    """Return the standard deviation of the measured *values* around their mean."""
    finite = measured(values)
    if len(finite) < 2:
        return math.nan
    middle = math.fsum(finite) / len(finite)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in finite) / len(finite))


def means(columns: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean of *columns* at each time."""
    rows = list(zip(*columns, strict=True))
    sums = list(map(math.fsum, rows))
    return [total / len(row) if total == total else mean(row) for total, row in zip(sums, rows, strict=True)]


def share(flags: Sequence[bool]) -> float:
    """Return the percentage of *flags* that are true, NaN of none."""
    return 100.0 * sum(flags) / len(flags) if flags else math.nan


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return slope, value at x = 0 and R squared of the straight line that fits best (least squares).

    NaN, all three, with fewer than three points or with one x.
    """
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    if len(points) < 3:
        return math.nan, math.nan, math.nan
    middle_x, middle_y = mean(a for a, _ in points), mean(b for _, b in points)
    xx = math.fsum((a - middle_x) ** 2 for a, _ in points)
    xy = math.fsum((a - middle_x) * (b - middle_y) for a, b in points)
    yy = math.fsum((b - middle_y) ** 2 for _, b in points)
    if xx == 0:
        return math.nan, math.nan, math.nan
    tilt = xy / xx
    return tilt, middle_y - tilt * middle_x, (xy * xy / (xx * yy) if yy else 0.0)


def histogram(values: Iterable[float], *, top: float = 100.0, bins: int = 10) -> list[float]:
    """Return which share (0 to 1) of the measured *values* lies in each of *bins* equal parts of 0 to *top*."""
    counts = [0] * bins
    finite = measured(values)
    for value in finite:
        counts[min(max(int(value / top * bins), 0), bins - 1)] += 1
    return [count / len(finite) for count in counts] if finite else [0.0] * bins
