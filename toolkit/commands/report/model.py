"""A report as data: sections of tables, charts, heat maps and log lines, which the renderers write in one shape each.

`toolkit report` and `toolkit compare` build a Page; html, text, markdown and JSON show the same one. Numbers are not
rounded here: a renderer rounds them for the eye, and the CSV of a chart or table has them as they are.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import field

from toolkit.records import Record

# The quantity on the x axis of a chart. "time": seconds since the epoch; "elapsed": seconds since the job's start.
AxisKind = Literal["time", "elapsed", "step", "epoch", "value"]
# The colour of a finding or an outcome. "bad" and "warn" are shown with a word, not by colour alone.
Tone = Literal["plain", "good", "warn", "bad"]
Cell = str | float | int | None


class Axis(Record, frozen=True, kw_only=True):
    """An axis of a chart: a quantity with its unit and, if they are fixed, its ends."""

    name: str
    """The quantity, as it is written beside the axis."""
    unit: str = ""
    """Empty if the quantity has none (a loss, a count)."""
    kind: AxisKind = "value"
    """The form in which its values are written: as times, durations, steps, epochs or numbers."""
    low: float | None = None
    """The fixed lower end; None: the least value."""
    high: float | None = None
    """The fixed upper end; None: the greatest value."""


class Line(Record, frozen=True, kw_only=True):
    """One line of a chart. A gap is NaN."""

    name: str
    """Its name in the legend."""
    x: tuple[float, ...]
    """The begin of each value, ascending."""
    mean: tuple[float, ...]
    """`mean[i]` is the mean of what was measured from `x[i]` on until `x[i + 1]`."""
    low: tuple[float, ...] = ()
    """The least value of each span, or empty."""
    high: tuple[float, ...] = ()
    """The greatest value of each span, or empty."""
    source: str = ""
    """The file and column where the values can be read."""
    is_shown: bool = field(default=True, name="shown")
    """False: the line is hidden until the reader asks for it."""


class Mark(Record, frozen=True, kw_only=True):
    """A moment or a span on the x axis of a chart: a finding's window, the failure, a restart."""

    start: float
    end: float | None = None
    text: str = ""
    tone: Tone = "plain"


class Chart(Record, frozen=True, kw_only=True, tag=True):
    """Lines over one x axis."""

    id: str
    """Its anchor in the page."""
    title: str
    """Its heading."""
    x: Axis
    """The horizontal axis."""
    y: Axis
    """The vertical axis."""
    lines: tuple[Line, ...]
    """The lines, in the order of the legend."""
    marks: tuple[Mark, ...] = ()
    """Moments and spans that are marked on the x axis."""
    cursor: str = ""
    """Charts with the same value share cursor and zoom."""
    style: Literal["lines", "stepped", "bars", "points"] = "lines"
    """The form of a line; "bars": as one bar for each x; "stepped": each value holds until the next x, and counts once
    in a mean, however long it held."""
    formula: str = ""
    """The way in which the values were made."""
    folded: bool = False
    """True: one of many charts that matter less, shown if the reader asks for it."""


class HeatMap(Record, frozen=True, kw_only=True, tag=True):
    """A grid of values over one x axis. Darker is more."""

    id: str
    """Its anchor in the page."""
    title: str
    """Its heading."""
    x: Axis
    """The horizontal axis."""
    value: Axis
    """The quantity of the cells."""
    rows: tuple[str, ...]
    """The names of the rows."""
    columns: tuple[float, ...]
    """The begin of each column, ascending."""
    values: tuple[tuple[float | None, ...], ...]
    """`values[row][column]`: of `rows[row]`, from `columns[column]` until the next; None: nothing measured."""
    top: float
    """The value that is darkest."""
    marks: tuple[Mark, ...] = ()
    """Moments and spans that are marked on the x axis."""
    cursor: str = ""
    """Charts and heat maps with the same value share cursor and zoom."""
    formula: str = ""
    """The way in which the values were made."""


class Column(Record, frozen=True, kw_only=True):
    """The head of a column of a table. `unit` is shown in it; `formula`: how the numbers were made."""

    name: str
    unit: str = ""
    formula: str = ""


class Table(Record, frozen=True, kw_only=True, tag=True):
    """Rows of cells, as many in each as there are columns."""

    id: str
    """Its anchor in the page."""
    title: str
    """Its heading."""
    columns: tuple[Column, ...]
    """The heads."""
    rows: tuple[tuple[Cell, ...], ...]
    """The cells. Numbers are not rounded: a renderer does that."""
    total: tuple[Cell, ...] = ()
    """A last row of sums, or empty."""
    note: str = ""
    """A sentence below the table."""


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
    """Its anchor in the page."""
    title: str
    """Its heading."""
    unit: str
    """The unit of the parts and of the total."""
    parts: tuple[Part, ...]
    """The parts, in the order of the bar."""
    total: float
    """The sum of the parts."""
    note: str = ""
    """A sentence below the table."""


class Box(Record, frozen=True, kw_only=True):
    """A box in Boxes."""

    row: int
    """The index of its row in `Boxes.rows`."""
    start: float
    """Its left end on the x axis."""
    end: float
    """Its right end on the x axis."""
    kind: int = 0
    """The index of its colour in `Boxes.kinds`."""
    mark: str = "#"
    """One character for each of its cells on a terminal."""
    label: str = ""
    """The text in the box, where it fits."""
    text: str = ""
    """A longer text, for who points at it."""


class Boxes(Record, frozen=True, kw_only=True, tag=True):
    """Boxes in rows over one x axis, drawn without scripts.

    They show what each device did when, or the parts of a whole by level.
    """

    id: str
    """Its anchor in the page."""
    title: str
    """Its heading."""
    x: Axis
    """The horizontal axis."""
    rows: tuple[str, ...]
    """The names of the rows."""
    boxes: tuple[Box, ...]
    """The boxes of all rows."""
    kinds: tuple[str, ...] = ()
    """The meanings of the colours, seven at most."""
    key: str = ""
    """The meanings of the marks, for a terminal."""
    note: str = ""
    """A sentence below the drawing."""
    formula: str = ""
    """The way in which the ends were made."""

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


class Phrase(Record, frozen=True, kw_only=True):
    """A part of the headline. `link`: the anchor of the block or section that shows it, or empty."""

    text: str
    link: str = ""


class Page(Record, frozen=True, kw_only=True):
    """A whole report."""

    title: str
    """The job's name, or the names of the jobs that are compared."""
    status: str
    """The first word: "failed", "cheaper"."""
    tone: Tone
    """The colour of the status."""
    summary: str
    """The headline: what happened, in one or two sentences."""
    sections: tuple[Section, ...]
    """The sections, in their order."""
    made_by: str
    """The toolkit and its version."""
    made_at_s: float
    """When the page was made, in seconds since the epoch."""
    headline: tuple[Phrase, ...] = ()
    """`summary` in phrases, which joined are its text; empty: it leads nowhere."""
    live: bool = False
    """True: the job still runs, and the browser asks for the page again."""
    refresh_s: float = 2.0
    """Seconds until it asks again."""
