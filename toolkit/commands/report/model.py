"""A report as data: sections of tables, charts, heat maps and log lines, which the renderers write in one shape each.

`toolkit report` and `toolkit compare` build a Page; html, text, markdown and JSON show the same one. Numbers are whole
here: a renderer rounds them for the eye, and the CSV of a chart or table has them unrounded.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import field

from toolkit.records import Record

# What the x of a chart counts. "time": seconds since the epoch; "elapsed": seconds since the job's start.
AxisKind = Literal["time", "elapsed", "step", "epoch", "value"]
# How a line speaks: of a finding or an outcome. "bad" and "warn" are shown with a word, not by colour alone.
Tone = Literal["plain", "good", "warn", "bad"]
Cell = str | float | int | None


class Axis(Record, frozen=True, kw_only=True):
    """`unit` "" where the quantity has none (a loss, a count). `low`, `high`: fixed ends, None: of the data."""

    name: str
    unit: str = ""
    kind: AxisKind = "value"
    low: float | None = None
    high: float | None = None


class Line(Record, frozen=True, kw_only=True):
    """One line of a chart: `mean[i]` is what was measured from `x[i]` on until the next.

    `low` and `high`, of the same length or empty: the least and the greatest value of that time. A gap is NaN.
    `source`: where the values can be read (file and column). `shown`: False: hidden until the reader asks for it.
    """

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    source: str = ""
    is_shown: bool = field(default=True, name="shown")


class Mark(Record, frozen=True, kw_only=True):
    """A moment or a span on the x axis of a chart: a finding's window, the failure, a restart."""

    start: float
    end: float | None = None
    text: str = ""
    tone: Tone = "plain"


class Chart(Record, frozen=True, kw_only=True, tag=True):
    """Lines over one x axis. Charts with the same `cursor` share cursor and zoom. `style` "bars": one bar for each x of
    each line. `formula`: how the values were made. `folded`: one of many that matter less: shown if the reader asks."""

    id: str
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    cursor: str = ""
    style: Literal["lines", "bars", "points"] = "lines"
    formula: str = ""
    folded: bool = False


class HeatMap(Record, frozen=True, kw_only=True, tag=True):
    """`values[row][column]`: of `rows[row]` from `x[column]` until the next; None: nothing measured. Darker is more.

    `top`: the value that is darkest.
    """

    id: str
    title: str
    x: Axis
    value: Axis
    rows: tuple[str, ...]
    columns: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]
    top: float
    marks: tuple[Mark, ...] = ()
    cursor: str = ""
    formula: str = ""


class Column(Record, frozen=True, kw_only=True):
    """`unit` is shown in the head; `formula`: how the numbers were made."""

    name: str
    unit: str = ""
    formula: str = ""


class Table(Record, frozen=True, kw_only=True, tag=True):
    """`rows`: as many cells as columns each. `total`: a last row of sums."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()
    note: str = ""


# A column of `make_table`: its name, or its name, unit and formula.
ColumnSpec = str | tuple[str, str] | tuple[str, str, str]


def make_table(
    id: str,
    title: str,
    columns: Iterable[ColumnSpec],
    rows: Iterable[tuple[Cell, ...]],
    *,
    total: tuple[Cell, ...] = (),
    note: str = "",
) -> Table:
    """Return the Table *id*, whose *columns* are written as ("step", "ms", "median of the traced steps") or "rank"."""
    heads = tuple(_make_column(*((spec,) if isinstance(spec, str) else spec)) for spec in columns)
    return Table(id=id, title=title, columns=heads, rows=tuple(rows), total=total, note=note)


def _make_column(name: str, unit: str = "", formula: str = "") -> Column:
    return Column(name=name, unit=unit, formula=formula)


class Part(Record, frozen=True, kw_only=True):
    """A share of a whole. `formula`: how `value` was made."""

    name: str
    value: float
    formula: str = ""
    tone: Tone = "plain"


class Shares(Record, frozen=True, kw_only=True, tag=True):
    """Parts that add up to `total`, as one divided bar and a table."""

    id: str
    title: str
    unit: str
    parts: tuple[Part, ...]
    total: float
    note: str = ""


class Box(Record, frozen=True, kw_only=True):
    """A box in row *row* of Boxes, from *start* to *end*. `kind`: a place in Boxes.kinds. `mark`: one character, for a
    terminal. `label`: what is written in it where it fits; `text`: more of it, for who points at it."""

    row: int
    start: float
    end: float
    kind: int = 0
    mark: str = "#"
    label: str = ""
    text: str = ""


class Boxes(Record, frozen=True, kw_only=True, tag=True):
    """Boxes in rows over one x axis, without scripts: what each device did when, or the parts of a whole by level.

    `kinds`: what the colours mean, seven at most. `key`: what the marks mean, for a terminal.
    """

    id: str
    title: str
    x: Axis
    rows: tuple[str, ...]
    boxes: tuple[Box, ...]
    kinds: tuple[str, ...] = ()
    key: str = ""
    note: str = ""
    formula: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The least start and the greatest end."""
        return min((box.start for box in self.boxes), default=0.0), max((box.end for box in self.boxes), default=0.0)


class Lines(Record, frozen=True, kw_only=True, tag=True):
    """Text with fixed width: a log's end, a traceback. Already masked."""

    id: str
    title: str
    lines: tuple[str, ...]


class Words(Record, frozen=True, kw_only=True, tag=True):
    """A paragraph, or a fact with its name ("Cause: ..."). `advice`: what to do about it."""

    text: str
    name: str = ""
    tone: Tone = "plain"
    advice: str = ""


Block = Chart | HeatMap | Boxes | Table | Shares | Lines | Words


class Section(Record, frozen=True, kw_only=True):
    """`id`: its anchor, stable between versions."""

    id: str
    title: str
    blocks: tuple[Block, ...]


class Page(Record, frozen=True, kw_only=True):
    """A whole report. `status`: the first word, "failed"; `summary`: what happened, in a sentence.

    `made_by`: toolkit and version. `live`: the job still runs; the page is asked for again every `refresh_s` seconds.
    """

    title: str
    status: str
    tone: Tone
    summary: str
    sections: tuple[Section, ...]
    made_by: str
    made_at_s: float
    live: bool = False
    refresh_s: float = 2.0
