"""Fewer points for a line, with the least and the greatest value kept."""

import itertools
import math
from collections.abc import Sequence

from toolkit.commands.report.model import Line

POINTS = 600  # Of a line: a chart is about so many pixels wide.


def thin_line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    points: int = POINTS,
    source: str = "",
    is_shown: bool = True,
) -> Line:
    """Return the line of *y* over *x* (ascending) with at most *points* points.

    Where there are more values, each point stands for as many neighbours: their mean, with their least and greatest
    value beside it. Infinity and NaN are gaps.
    """
    values = [value if math.isfinite(value) else math.nan for value in y]
    if len(values) <= points:
        return Line(name=name, x=tuple(map(float, x)), mean=tuple(values), source=source, is_shown=is_shown)
    edges = [number * len(values) // points for number in range(points + 1)]
    points_kept = [
        (x[start], [value for value in values[start:end] if value == value])
        for start, end in itertools.pairwise(edges)
        if end > start
    ]
    return Line(
        name=name,
        x=tuple(float(first_x) for first_x, _ in points_kept),
        mean=tuple(
            math.fsum(neighbours) / len(neighbours) if neighbours else math.nan for _, neighbours in points_kept
        ),
        low=tuple(min(neighbours, default=math.nan) for _, neighbours in points_kept),
        high=tuple(max(neighbours, default=math.nan) for _, neighbours in points_kept),
        source=source,
        is_shown=is_shown,
    )
