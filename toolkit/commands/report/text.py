"""A page for a terminal: plain lines of a given width."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone

from toolkit.commands.report.folded import split_folded
from toolkit.commands.report.model import (
    Axis,
    Block,
    Boxes,
    Cell,
    Chart,
    Column,
    HeatMap,
    Line,
    Lines,
    Mark,
    Page,
    Shares,
    Table,
    Words,
)

# From nothing to the most, for lines and for heat maps.
BARS, SHADES = "▁▂▃▄▅▆▇█", " ░▒▓█"
PLAIN_BARS, PLAIN_SHADES = "_.:-=+*#", " .:-=+*#"
LEAST_WIDTH = 40
LABEL = 24  # Characters for the name of a line or row, where there is room.
MOST_ROWS = 24
MOST_TABLE_ROWS = 60
LEAST_ROOM = 16  # Characters that the last column needs, if it has as many.
SIZES = ("bytes", "KiB", "MiB", "GiB", "TiB")
# Units whose values are shown with a unit that fits their size, and what follows that.
SCALED = {"bytes": "", "bytes/s": "/s"}
UNITS = {"percent": "%"}
# An exception's text or a metric's name must not steer the terminal.
CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")


class TextWriter:
    """Writes pages in lines of at most *width* characters. *plain*: with ASCII characters only in charts."""

    def __init__(self, *, width: int = 100, plain: bool = False) -> None:
        self._width = max(width, LEAST_WIDTH)
        self._said: set[Mark] = set()  # A section's charts share most marks: each is named once.
        self._label = min(LABEL, self._width // 3)
        self._bars, self._shades = (PLAIN_BARS, PLAIN_SHADES) if plain else (BARS, SHADES)

    def page(self, page: Page) -> str:
        """Return the whole *page*, which ends with a newline."""
        lines = [*self._wrapped(f"{page.title}: {page.status.upper()}"), *self._wrapped(page.summary)]
        for section in page.sections:
            self._said.clear()
            lines += ["", section.title.upper(), ""] if section.id != "outcome" else [""]
            blocks, folded_note = split_folded(section.blocks)
            for number, block in enumerate(blocks):
                if number and not (isinstance(block, Words) and isinstance(blocks[number - 1], Words)):
                    lines.append("")
                lines += self.block(block)
            if folded_note:
                lines += ["", *self._wrapped(folded_note)]
        made_at = datetime.fromtimestamp(page.made_at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        lines += ["", *self._wrapped(f"Made by {page.made_by} at {made_at}. Times are UTC.")]
        return "\n".join(line.rstrip().translate(CONTROLS) for line in lines) + "\n"

    def block(self, block: Block) -> list[str]:
        """Return the lines of one *block*."""
        if isinstance(block, Words):
            return self._words(block)
        if isinstance(block, Table):
            cut = ""
            if len(block.rows) > MOST_TABLE_ROWS:
                cut = f"The first {MOST_TABLE_ROWS} of {len(block.rows)} rows: --format json has all."
            return [
                *self._wrapped(block.title),
                *self._table(block),
                *self._wrapped(f"{cut} {block.note}".strip(), "  "),
            ]
        if isinstance(block, Shares):
            return [*self._wrapped(block.title), *self._shares(block), *self._wrapped(block.note, "  ")]
        if isinstance(block, Chart):
            return self._chart(block)
        if isinstance(block, HeatMap):
            return self._heat_map(block)
        if isinstance(block, Boxes):
            return self.boxes(block)
        return [*self._wrapped(block.title), *self._lines(block)]

    def _words(self, words: Words) -> list[str]:
        text = f"{words.name}: {words.text}" if words.name else words.text
        if words.tone in ("warn", "bad") and not words.name:
            text = f"{'Warning' if words.tone == 'warn' else 'Error'}: {text}"
        lines = [line for part in text.splitlines() for line in self._wrapped(part, rest="  ")]
        return lines + (self._wrapped(f"What to do: {words.advice}", rest="  ") if words.advice else [])

    def _table(self, table: Table) -> list[str]:
        if not table.rows:
            return ["  (empty)"]
        rows = self._format_rows(table)
        names = [column.name for column in table.columns]
        heads = [format_head(column) for column in table.columns]
        units = [head[len(name) + 2 : -1] for head, name in zip(heads, names, strict=True)]
        is_number = [
            all(isinstance(row[number], int | float | None) for row in table.rows)
            for number in range(len(table.columns))
        ]
        for head_lines in ([heads], [names, units]):  # The units on a line of their own make it narrower.
            widths = [max(map(len, cells)) for cells in zip(*head_lines, *rows, strict=True)]
            room = self._width - 2 - sum(widths[:-1]) - 2 * (len(widths) - 1)
            if room >= min(widths[-1], LEAST_ROOM):
                widths[-1] = min(widths[-1], room)
                return [line for row in (*head_lines, *rows) for line in _lay_out(row, widths, is_number)]
        return self._records(heads, rows)

    def _format_rows(self, table: Table) -> list[list[str]]:
        """Return the cells of *table* as text, all but the last of a row cut to a third of the width."""
        longest = max(self._width // 3, LABEL)  # One long name must not make the table too wide.
        rows = []
        for row in (*table.rows[:MOST_TABLE_ROWS], *([table.total] if table.total else [])):
            cells = [format_cell(cell, column.unit) for cell, column in zip(row, table.columns, strict=True)]
            rows.append([*(_shorten(cell, longest) for cell in cells[:-1]), cells[-1]])
        return rows

    def _records(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        """Return a table that is too wide: a few lines for each row."""
        return [
            line
            for row in rows
            for line in self._wrapped(
                "; ".join(f"{head}: {cell}" for head, cell in zip(heads, row, strict=True) if cell), "  ", "    "
            )
        ]

    def _shares(self, shares: Shares) -> list[str]:
        name = max((len(part.name) for part in shares.parts), default=0)
        digits = max(0, 3 - math.floor(math.log10(abs(shares.total)))) if shares.total else 0
        lines = []
        for part in (*shares.parts, None):
            value = round(shares.total if part is None else part.value, digits)
            share = value / shares.total if shares.total else 0.0
            bar = "" if part is None else "#" * round(share * 20)
            label = "total" if part is None else part.name
            line = f"  {label:<{name}}  {format_cell(value):>10} {shares.unit}  {share:>6.1%}  {bar}".rstrip()
            lines.append(line if len(line) <= self._width else line.rstrip("# "))
        return lines

    def _chart(self, chart: Chart) -> list[str]:
        lines = self._wrapped(add_unit(chart.title, chart.y))
        room = self._width - self._label - 4
        if chart.style == "bars" and all(len(line.x) == 1 for line in chart.lines):
            return [*lines, *self._bar_each(chart, room)]
        ends = _find_ends(x for line in chart.lines for x in line.x)
        visible = [line for line in chart.lines if line.is_shown]
        for line in visible[:MOST_ROWS]:
            name = f"  {_shorten(line.name, self._label - 1):<{self._label}}"
            always = _find_only_value(line)
            if always is not None:
                lines.append(f"{name}always {format_cell(always, chart.y.unit)}")
                continue
            lines.append(name + self._spark(line, ends, room))
            lines += self._under(_describe_range(line, chart.y.unit))
        if len(visible) > MOST_ROWS:
            lines.append(f"  ({len(visible) - MOST_ROWS} more lines)")
        if ends and ends[0] != ends[1]:
            lines += self._under(_describe_axis(chart.x, ends))
        return lines + self._marks(chart.marks, chart.x)

    def _bar_each(self, chart: Chart, room: int) -> Iterator[str]:
        """Yield a lying bar for each line of one value, all from 0 and to the same scale."""
        top = max((line.mean[0] for line in chart.lines), default=0.0)
        for line in chart.lines:
            value = line.mean[0]
            cells = round(value / top * (room - 12)) if top > 0 and value > 0 else 0
            name = _shorten(line.name, self._label - 1)
            yield f"  {name:<{self._label}}{self._bars[-1] * cells} {format_cell(value)}"

    def _spark(self, line: Line, ends: tuple[float, float] | None, room: int) -> str:
        """Return *line* as a row of bars, each the greatest value of its part of the x axis."""
        tops = line.high or line.mean
        values = [value for value in (*tops, *(line.low or line.mean)) if math.isfinite(value)]
        if ends is None or not values:
            return "(nothing measured)"
        low, high = min(values), max(values)
        cells = [math.nan] * room
        for x, value in zip(line.x, tops, strict=True):
            index = _find_cell(x, ends, room)
            cells[index] = value if cells[index] != cells[index] else max(cells[index], value)
        return "".join(_choose_mark(value, low, high, self._bars) for value in _fill_gaps(cells))

    def _heat_map(self, heat: HeatMap) -> list[str]:
        lines = self._wrapped(add_unit(heat.title, heat.value))
        ends = _find_ends(heat.columns)
        if ends is None or not heat.rows:
            return [*lines, "  (nothing measured)"]
        room = min(self._width - self._label - 4, max(len(heat.columns), 1))
        order = range(len(heat.rows))
        if len(heat.rows) > MOST_ROWS:
            busiest = sorted(order, key=lambda row: -_sum_measured(heat.values[row]))[:MOST_ROWS]
            order = sorted(busiest)  # type: ignore[assignment]
        for row in order:
            cells = [math.nan] * room
            for number, value in enumerate(heat.values[row]):
                index = number * room // len(heat.columns)
                if value is not None:
                    cells[index] = value if cells[index] != cells[index] else max(cells[index], value)
            shades = "".join(_choose_mark(value, heat.value.low or 0.0, heat.top, self._shades) for value in cells)
            lines.append(f"  {_shorten(heat.rows[row], self._label - 1):<{self._label}}{shades}")
        if len(heat.rows) > MOST_ROWS:
            lines.append(f"  ({MOST_ROWS} of {len(heat.rows)} rows: those with the greatest sums)")
        key = (
            f"darkest: {format_cell(heat.top, heat.value.unit)} {UNITS.get(heat.value.unit, heat.value.unit)}".rstrip()
        )
        return [*lines, *self._under(f"{_describe_axis(heat.x, ends)}; {key}"), *self._marks(heat.marks, heat.x)]

    def boxes(self, block: Boxes) -> list[str]:
        """Return the lines of *block*: a row of marks for each row, "." where it has no box."""
        lines = self._wrapped(add_unit(block.title, block.x))
        low, high = block.ends
        if low == high:
            return [*lines, "  (nothing recorded)"]
        room = self._width - self._label - 4
        for number, name in enumerate(block.rows[:MOST_ROWS]):
            cells = ["."] * room
            for box in block.boxes:
                if box.row == number:
                    first = _find_cell(box.start, (low, high), room)
                    last = max(first + 1, min(room, round((box.end - low) / (high - low) * room)))
                    cells[first:last] = box.mark * (last - first)
            lines.append(f"  {_shorten(name, self._label - 1):<{self._label}}{''.join(cells)}")
        if len(block.rows) > MOST_ROWS:
            lines.append(f"  ({MOST_ROWS} of {len(block.rows)} rows)")
        if block.x.kind != "value" or block.x.unit:
            unit = UNITS.get(block.x.unit, block.x.unit)
            ends = f"from {format_cell(low, block.x.unit)} to {format_cell(high, block.x.unit)} {unit}"
            lines += self._under(ends.removesuffix(" bytes"))
        return [*lines, *self._under(block.key), *self._wrapped(block.note, "  ")]

    def _under(self, text: str) -> list[str]:
        """Return *text* below a line or a heat map, behind the labels."""
        return self._wrapped(text, " " * (2 + self._label))

    def _marks(self, marks: Iterable[Mark], axis: Axis) -> list[str]:
        lines = []
        for mark in marks:
            if mark in self._said:
                continue
            self._said.add(mark)
            end = f" to {format_x(mark.end, axis)}" if mark.end is not None else ""
            lines += self._wrapped(f"{format_x(mark.start, axis)}{end}: {mark.text}", "  ", "    ")
        return lines

    def _lines(self, block: Lines) -> list[str]:
        return [line for text in block.lines for line in self._wrapped(text, "  | ", "  |   ", keep=True)]

    def _wrapped(self, text: str, first: str = "", rest: str | None = None, *, keep: bool = False) -> list[str]:
        if keep and len(first) + len(text) <= self._width:
            return [first + text]
        return textwrap.wrap(
            text,
            self._width,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_on_hyphens=False,
            replace_whitespace=not keep,
            drop_whitespace=not keep,
        )


def _lay_out(row: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> list[str]:
    """Return the lines of one *row* of a table: numbers to the right; the last cell, if it is text, is folded."""
    aligned = [
        cell.rjust(width) if numeric else cell.ljust(width)
        for cell, width, numeric in zip(row, widths, is_number, strict=True)
    ]
    start = "  " + "".join(f"{cell}  " for cell in aligned[:-1])
    last = [aligned[-1]] if is_number[-1] else textwrap.wrap(row[-1], max(widths[-1], 1)) or [""]
    return [start + last[0], *(" " * len(start) + part for part in last[1:])]


def format_cell(cell: Cell, unit: str = "") -> str:
    """Return *cell* for the eye: four digits, a *unit* of SCALED with its size, None as nothing."""
    if cell is None:
        return ""
    if isinstance(cell, bool | str):
        return str(cell)
    if unit in SCALED and math.isfinite(cell):
        power = min(int(math.log2(abs(cell)) // 10), len(SIZES) - 1) if abs(cell) >= 1 else 0
        return f"{cell / 1024**power:.4g} {SIZES[power]}{SCALED[unit]}"
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    if math.isfinite(cell) and abs(cell) >= 10_000:
        return f"{cell:,.0f}"
    return f"{cell:.4g}"


def format_x(x: float, axis: Axis) -> str:
    """Return *x* of *axis* for the eye: a time of day in UTC, a duration, or a number."""
    if axis.kind == "time":
        return datetime.fromtimestamp(x, timezone.utc).strftime("%H:%M:%S")
    if axis.kind == "elapsed":
        seconds = int(x)
        return f"{x:.1f} s" if x < 60 else f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{axis.name} {format_cell(x)}" if axis.kind in ("step", "epoch") else format_cell(x)


def add_unit(title: str, axis: Axis) -> str:
    """Return *title* with the unit in which `shown` writes values of *axis*."""
    return f"{title} ({UNITS.get(axis.unit, axis.unit)})" if axis.unit and axis.unit not in SCALED else title


def format_head(column: Column) -> str:
    """Return the head of *column*, with its unit."""
    if not column.unit or column.unit in SCALED:
        return column.name
    return f"{column.name} ({UNITS.get(column.unit, column.unit)})"


def _describe_axis(axis: Axis, ends: tuple[float, float]) -> str:
    zone = " UTC" if axis.kind == "time" else ""
    return f"from {format_x(ends[0], axis)} to {format_x(ends[1], axis)}{zone}"


def _find_only_value(line: Line) -> float | None:
    """Return the only value that *line* has, None if it has several or none."""
    values = {value for value in (*line.mean, *line.low, *line.high) if value == value}
    return values.pop() if len(values) == 1 else None


def _describe_range(line: Line, unit: str) -> str:
    finite = [value for value in line.mean if math.isfinite(value)]
    if not finite:
        return ""
    low = min(value for value in (*finite, *line.low) if value == value)
    high = max(value for value in (*finite, *line.high) if value == value)
    return f"least {format_cell(low, unit)}, greatest {format_cell(high, unit)}, last {format_cell(finite[-1], unit)}"


def _find_ends(values: Iterable[float]) -> tuple[float, float] | None:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


def _find_cell(x: float, ends: tuple[float, float], room: int) -> int:
    return min(int((x - ends[0]) / ((ends[1] - ends[0]) or 1.0) * room), room - 1)


def _fill_gaps(cells: Sequence[float]) -> Iterator[float]:
    """Yield *cells*; an empty one between two values continues the one before: a line of few points stays a line."""
    measured = [number for number, value in enumerate(cells) if value == value]
    last = measured[-1] if measured else -1
    previous = math.nan
    for number, value in enumerate(cells):
        previous = value if value == value else previous
        yield previous if number <= last else math.nan


def _choose_mark(value: float, low: float, high: float, ramp: str) -> str:
    if value != value:
        return " "
    share = (value - low) / (high - low) if high > low else 0.0
    return ramp[max(0, min(int(share * len(ramp)), len(ramp) - 1))]


def _sum_measured(values: Sequence[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)


def _shorten(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..."
