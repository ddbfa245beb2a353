"""Converts the blocks of a Page to what the templates and the scripts of the HTML page take."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from toolkit.commands.report.html import quantities
from toolkit.commands.report.html.packing import Floats, Store
from toolkit.commands.report.model import (
    Axis,
    AxisKind,
    Boxes,
    Cell,
    Chart,
    Column,
    HeatMap,
    Line,
    Mark,
    Page,
    Shares,
    Table,
    Words,
)

# Beyond so many values, a page rounds: to five digits of the greatest value of a line, three of a heat map's.
EXACT_VALUES = 60_000
LINE_DIGITS, MAP_DIGITS = 5, 3
SHORT_CELL = 28  # Characters: a time with its zone, the name of a host.
_X_NAMES: dict[AxisKind, str] = {"time": "UTC", "elapsed": "h:mm:ss", "step": "", "epoch": "", "value": ""}


def iterate_blocks(page: Page) -> Iterator[Any]:
    """Yield every block of *page*."""
    for section in page.sections:
        yield from section.blocks


def is_large(page: Page) -> bool:
    """Return whether the numbers of *page* are rounded, to keep the file small."""
    return sum(_count_values(block) for block in iterate_blocks(page)) > EXACT_VALUES


def _count_values(block: Any) -> int:
    if isinstance(block, Chart):
        return sum(len(line.x) + len(line.mean) + len(line.low) + len(line.high) for line in block.lines)
    return len(block.rows) * len(block.columns) if isinstance(block, HeatMap) else 0


def describe_plot(block: Chart | HeatMap, store: Store, *, large: bool) -> dict[str, Any]:
    """Return what the page's scripts need to draw *block*; its arrays go into *store*."""
    return _describe_chart(block, store, large) if isinstance(block, Chart) else _describe_heat_map(block, store, large)


def _describe_chart(chart: Chart, store: Store, large: bool) -> dict[str, Any]:
    arrays = [np.asarray(part, np.float64) for line in chart.lines for part in (line.mean, line.high, line.low) if part]
    unit = quantities.scale(chart.y.unit, max((_find_top(array) for array in arrays), default=0.0))
    digits = LINE_DIGITS if large else None

    def line(chart_line: Line) -> dict[str, Any]:
        band = (
            {"low": store.add(chart_line.low, digits), "high": store.add(chart_line.high, digits)}
            if chart_line.low
            else {}
        )
        return {
            "name": chart_line.name,
            "x": store.add(chart_line.x),
            "mean": store.add(chart_line.mean, digits),
            "source": chart_line.source,
            "shown": chart_line.is_shown,
            **band,
        }

    return {
        "type": "chart",
        "id": chart.id,
        "title": chart.title,
        "style": chart.style,
        "cursor": chart.cursor,
        "x": _describe_axis(chart.x, quantities.Scale(label=_X_NAMES[chart.x.kind] or chart.x.unit)),
        "y": _describe_axis(chart.y, unit),
        "lines": [line(chart_line) for chart_line in chart.lines],
        "marks": [_describe_mark(mark) for mark in chart.marks],
    }


def _describe_heat_map(chart: HeatMap, store: Store, large: bool) -> dict[str, Any]:
    unit = quantities.scale(chart.value.unit, chart.top)
    cells = np.asarray(chart.values, dtype=np.float64).reshape(-1)
    return {
        "type": "heatmap",
        "id": chart.id,
        "title": chart.title,
        "cursor": chart.cursor,
        "x": _describe_axis(chart.x, quantities.Scale(label=_X_NAMES[chart.x.kind] or chart.x.unit)),
        "y": _describe_axis(chart.value, unit),
        "rows": list(chart.rows),
        "columns": store.add(chart.columns),
        "values": store.add(cells, MAP_DIGITS if large else None),
        "top": chart.top,
        "marks": [_describe_mark(mark) for mark in chart.marks],
    }


def _describe_axis(axis: Axis, unit: quantities.Scale) -> dict[str, Any]:
    return {
        "name": axis.name,
        "unit": axis.unit,
        "label": unit.label,
        "divisor": unit.divisor,
        "kind": axis.kind,
        "low": axis.low,
        "high": axis.high,
    }


def _describe_mark(mark: Mark) -> dict[str, Any]:
    return {"start": mark.start, "end": mark.end, "text": mark.text, "tone": mark.tone}


def _find_top(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))


def summary(chart: Chart | HeatMap) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and rows of the table that a screen reader reads in place of the drawing."""
    if isinstance(chart, Chart):
        unit, kind = chart.y, chart.x.kind
        series = [(line.name, line.x, line.low or line.mean, line.mean, line.high or line.mean) for line in chart.lines]
    else:
        unit, kind = chart.value, chart.x.kind
        series = [
            (name, chart.columns, *((tuple(float("nan") if cell is None else cell for cell in row),) * 3))
            for name, row in zip(chart.rows, chart.values, strict=True)
        ]
    tops = [_find_top(np.asarray(high, np.float64)) for *_, high in series]
    scaled = quantities.scale(unit.unit, max(tops, default=0.0))
    name = f"{unit.name} ({scaled.label})" if scaled.label else unit.name
    head = (name, "mean", "least", "least at", "greatest", "greatest at", "last")
    return head, [_build_summary_row(*figures_of_line, kind, scaled.divisor) for figures_of_line in series]


def _build_summary_row(
    name: str,
    x: Sequence[float],
    low: Sequence[float],
    mean: Sequence[float],
    high: Sequence[float],
    kind: AxisKind,
    divisor: float,
) -> tuple[str, ...]:
    lows, means, highs = (np.asarray(values, np.float64) for values in (low, mean, high))
    if not np.isfinite(means).any():
        return (name, *(["nothing measured"] + [""] * 5))
    least, most = int(np.nanargmin(lows)), int(np.nanargmax(highs))
    last = means[np.isfinite(means)][-1]
    values = (float(number / divisor) for number in (np.nanmean(means), lows[least], highs[most], last))
    average, lowest, highest, final = (quantities.number(value) for value in values)
    return name, average, lowest, place(x[least], kind), highest, place(x[most], kind), final


def place(x: float, kind: AxisKind) -> str:
    """Return a place on an x axis in words."""
    if kind == "time":
        return quantities.moment(x)
    if kind == "elapsed":
        return quantities.clock(x)
    return f"{kind} {quantities.number(x)}" if kind in ("step", "epoch") else quantities.number(x)


def head(table: Table) -> list[dict[str, Any]]:
    """Return the columns of *table*: name, unit, formula, divisor, and whether they hold numbers."""
    return [_describe_column(column, [row[index] for row in table.rows]) for index, column in enumerate(table.columns)]


def _describe_column(column: Column, cells: Sequence[Cell]) -> dict[str, Any]:
    numbers = [float(cell) for cell in cells if isinstance(cell, int | float)]
    unit = quantities.scale(column.unit, max((abs(number) for number in numbers), default=0.0))
    numeric = bool(numbers) or (bool(column.unit) and not any(isinstance(cell, str) for cell in cells))
    return {
        "name": column.name,
        "unit": unit.label,
        "raw_unit": column.unit,
        "divisor": unit.divisor,
        "formula": column.formula,
        "numeric": numeric,
    }


def cell(value: Cell, divisor: float = 1.0) -> str:
    """Return a cell of a table as text."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else quantities.number(value / divisor if divisor != 1.0 else value)


def is_short(value: Cell) -> bool:
    """Return whether a cell stays on one line."""
    return not isinstance(value, str) or len(value) <= SHORT_CELL


def part_value(value: float, total: float) -> str:
    """Return a part of *total* as text, with five digits of the total at most."""
    top = abs(total)
    return quantities.number(round(value, max(0, 4 - math.floor(math.log10(top)))) if top else value)


# Of parts without a tone (blocks.css: share-0 to share-6), and of parts of one colour (again-0 to again-5).
COLOURS, PATTERNS = 7, 6
# Of the parts of a bar in the head of a page: the least percentage, and the number.
LEAST_SHARE, MOST_SHARES = 1.0, 5


def shares(block: Shares) -> list[dict[str, Any]]:
    """Return the parts of *block* with their percentages; a negative part has no width in the bar. `again`: how many
    parts before it have the same colour, so that a pattern tells them apart."""
    positive_total = sum(max(part.value, 0.0) for part in block.parts) or 1.0
    toned: Counter[str] = Counter()
    rows = []
    for index, part in enumerate(block.parts):
        again = (toned[part.tone] if part.tone != "plain" else index // COLOURS) % PATTERNS
        toned[part.tone] += 1
        share = 100 * part.value / block.total if block.total else 0.0
        width = 100 * max(part.value, 0.0) / positive_total
        rows.append({"part": part, "index": index, "width": width, "share": share, "again": again})
    return rows


def list_ledgers(page: Page) -> list[Shares]:
    """Return the ledger of *page*, as far as it has one, for its head."""
    return [block for block in iterate_blocks(page) if isinstance(block, Shares) and block.id == "ledger"]


def largest_shares(block: Shares) -> list[dict[str, Any]]:
    """Return the parts of *block* that a summary names, the largest first."""
    named = [row for row in shares(block) if row["share"] >= LEAST_SHARE]
    return sorted(named, key=lambda row: -row["share"])[:MOST_SHARES]


def boxed(block: Boxes) -> list[dict[str, Any]]:
    """Return the rows of *block*: name, boxes with left edge and width in percent, and the share that boxes cover."""
    low, high = block.ends
    span = (high - low) or 1.0
    rows: list[dict[str, Any]] = [{"name": name, "boxes": [], "covered": 0.0} for name in block.rows]
    for box in block.boxes:
        left, width = 100 * (box.start - low) / span, 100 * (box.end - box.start) / span
        rows[box.row]["boxes"].append({"box": box, "left": left, "width": width})
        rows[box.row]["covered"] += width
    return rows


def grouped(blocks: Sequence[Any]) -> list[tuple[str, Any, bool]]:
    """Return (kind, block, whether its marks are listed) for the templates.

    Facts that follow one another become one list ("facts", words), and so do folded charts ("more", charts). Marks are
    listed once for the plots that share them.
    """
    groups: list[tuple[str, Any, bool]] = []
    listed: set[Any] = set()
    for block in blocks:
        is_fact = isinstance(block, Words) and bool(block.name)
        if is_fact and groups and groups[-1][0] == "facts":
            groups[-1][1].append(block)
        elif is_fact:
            groups.append(("facts", [block], False))
        elif isinstance(block, Chart) and block.folded:
            if not groups or groups[-1][0] != "more":
                groups.append(("more", [], False))
            groups[-1][1].append(block)
        else:
            marks = getattr(block, "marks", ())
            groups.append((type(block).__name__.lower(), block, marks not in listed))
            listed.add(marks)
    return groups
