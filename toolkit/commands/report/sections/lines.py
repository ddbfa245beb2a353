"""Builds charts and heat maps of samples: the measured columns, as lines over the time of day."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from toolkit.commands.report.model import Axis, Chart, HeatMap, Line, Mark
from toolkit.commands.report.sections.words import format_size

if TYPE_CHECKING:
    from toolkit.series.sample_reader import Samples

TIME = Axis(name="time", unit="", kind="time")
# Of a line over a whole job, and of a heat map.
POINTS, CELLS = 500, 400
# A limit of more than this many times the greatest value would flatten the curve.
FLATTENING = 2.0
Window = tuple[float, float]


def build_line(
    samples: "Samples",
    column: str,
    name: str,
    window: Window,
    *,
    points: int | None = POINTS,
    source: str = "",
    is_shown: bool = True,
) -> Line | None:
    """Return *column* as a line, None if it was never measured in *window*. *points* None: every value."""
    try:
        series = samples.series(column, *window, points=points)
    except KeyError:
        return None
    if not len(series.x) or bool((series.mean != series.mean).all()):
        return None
    bare = bool(((series.low == series.high) | (series.mean != series.mean)).all())
    return Line(
        name=name,
        x=tuple(series.x.tolist()),
        mean=tuple(series.mean.tolist()),
        low=() if bare else tuple(series.low.tolist()),
        high=() if bare else tuple(series.high.tolist()),
        source=source,
        is_shown=is_shown,
    )


def label_limit(used: Line | None, limit: Line | None) -> list[Line | None]:
    """Return the lines of what is *used* and its *limit*. Where the limit is so far above that it would flatten the
    curve, it is no line, but stands in the name of the other one."""
    if used is None or limit is None:
        return [used, limit]
    greatest = max(value for value in (used.high or used.mean) if value == value)
    least_limit = min(value for value in limit.mean if value == value)
    if least_limit <= FLATTENING * greatest:
        return [used, limit]
    return [structs.replace(used, name=f"{used.name} (limit {format_size(least_limit)})")]


def build_chart(
    name: str,
    title: str,
    unit: str,
    lines: Iterable[Line | None],
    *,
    cursor: str,
    marks: Sequence[Mark] = (),
    formula: str = "",
) -> list[Chart]:
    """Return a chart of those of *lines* that were measured, none if no line was."""
    measured = tuple(measured_line for measured_line in lines if measured_line is not None)
    if not measured:
        return []
    axis = Axis(name=title, unit=unit, low=0.0, high=100.0 if unit == "percent" and _fits_percent(measured) else None)
    return [
        Chart(id=name, title=title, x=TIME, y=axis, lines=measured, marks=tuple(marks), cursor=cursor, formula=formula)
    ]


def build_heat_map(
    name: str,
    title: str,
    samples: "Samples",
    rows: Sequence[tuple[str, str]],
    window: Window,
    *,
    cursor: str,
    marks: Sequence[Mark] = (),
) -> list[HeatMap]:
    """Return the heat map of *rows*, (label, column) of percentages; none if nothing was measured."""
    labels, x, values = [], (), []
    for label, column in rows:
        series = samples.series(column, *window, points=CELLS)
        x = x or tuple(series.x.tolist())
        labels.append(label)
        values.append(tuple(None if value != value else value for value in series.mean.tolist()))
    if not x:
        return []
    return [
        HeatMap(
            id=name,
            title=title,
            x=TIME,
            value=Axis(name="busy", unit="percent"),
            rows=tuple(labels),
            columns=x,
            values=tuple(values),
            top=100.0,
            marks=tuple(marks),
            cursor=cursor,
            formula="The mean of each span; what stands out more is busier. The lines above show the extremes.",
        )
    ]


def _fits_percent(lines: Sequence[Line]) -> bool:
    return all(value <= 100.0 for line in lines for value in (line.high or line.mean) if value == value)
