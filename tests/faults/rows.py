"""The measured rows of the fault matrix (docs/lab/faults.csv), and their summary in docs/lab/faults.md."""

import csv
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.launchers import ALL
from tests.faults.table import BY_NAME, FAULTS
from toolkit.records import Record

DOCS = Path(__file__).parents[2] / "docs/lab"
DATA = DOCS / "faults.csv"
PAGE = DOCS / "faults.md"
SUMMARY = re.compile(r"(?<=<!-- summary -->\n).*(?=<!-- /summary -->)", re.S)


class Row(Record, frozen=True, kw_only=True):
    """One fault under one launcher on so many hosts: *right* of *rounds* went right. Times are in seconds, None where
    there is nothing to measure; *busy*: other work shared the cores. *left_over*: processes, over all rounds."""

    fault: str
    launcher: str
    busy: bool
    hosts: int
    rounds: int
    right: int
    exit_codes: str
    named_after_s: float | None
    named_after_worst_s: float | None
    ended_after_s: float | None
    ended_after_worst_s: float | None
    left_over: int

    @property
    def key(self) -> tuple[str, str, bool, int]:
        """Return the key by which a newer row replaces this one."""
        return (self.fault, self.launcher, self.busy, self.hosts)


def format_row(row: Row) -> str:
    """Return the row as a line of a Markdown table with HEAD on top."""
    cells = (
        row.fault,
        row.launcher + ", busy" * row.busy,
        str(row.hosts),
        f"{row.right} of {row.rounds}",
        row.exit_codes,
        _spread(row.named_after_s, row.named_after_worst_s, row.rounds),
        _spread(row.ended_after_s, row.ended_after_worst_s, row.rounds),
        str(row.left_over or "none"),
    )
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| fault | launcher | hosts | right | exit codes | named after | all ended after | left over |",
    "|---|---|---|---|---|---|---|---|",
)


def read(path: Path = DATA) -> list[Row]:
    """Return the rows of the file, as they stand in it."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(cells) for cells in csv.DictReader(file)]


def write(new: Iterable[Row], machine: str) -> None:
    """Put *new* into the data file, in place of older rows with the same key, and the summary into the page."""
    rows = {row.key: row for row in (*read(), *new)}
    names = list(BY_NAME)
    order = sorted(
        (row for row in rows.values() if row.fault in BY_NAME), key=lambda row: (names.index(row.fault), row.key)
    )
    with DATA.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Row.__struct_fields__)
        table.writerows([_cell(getattr(row, name)) for name in Row.__struct_fields__] for row in order)
    body = f"Newest rows: {machine}.\n\n{summary(order)}"
    PAGE.write_text(SUMMARY.sub(lambda _: body, PAGE.read_text()))


def summary(rows: Sequence[Row]) -> str:
    """Return two Markdown tables: the rows by launcher, and by fault."""
    return "\n".join((*_by_launcher(rows), "", *_by_fault(rows), ""))


def _by_launcher(rows: Sequence[Row]) -> Iterable[str]:
    times = "named after: median, s | worst, s | all ended after: median, s | worst, s"
    yield f"| launcher | faults | rounds | right | {times} | left over |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for launcher in ALL:
        of = [row for row in rows if row.launcher == launcher]
        cells = (
            launcher,
            str(len({row.fault for row in of})),
            str(sum(row.rounds for row in of)),
            str(sum(row.right for row in of)),
            _seconds(_median([row.named_after_s for row in of])),
            _seconds(worst(row.named_after_worst_s for row in of)),
            _seconds(_median([row.ended_after_s for row in of])),
            _seconds(worst(row.ended_after_worst_s for row in of)),
            str(sum(row.left_over for row in of) or "none"),
        )
        yield f"| {' | '.join(cells)} |"


def _by_fault(rows: Sequence[Row]) -> Iterable[str]:
    yield f"| fault | what happens | right | {' | '.join(ALL)} |"
    yield f"|---|---|---|{'---|' * len(ALL)}"
    for fault in FAULTS:
        of = [row for row in rows if row.fault == fault.name]
        worsts = (worst(row.named_after_worst_s for row in of if row.launcher == launcher) for launcher in ALL)
        right = f"{sum(row.right for row in of)} of {sum(row.rounds for row in of)}"
        yield f"| `{fault.name}` | {fault.text} | {right} | {' | '.join(_seconds(worst) for worst in worsts)} |"


def worst(seconds: Iterable[float | None]) -> float | None:
    """Return the largest of *seconds* that was measured, None if none was."""
    return max((value for value in seconds if value is not None), default=None)


def _median(seconds: Iterable[float | None]) -> float | None:
    measured = [value for value in seconds if value is not None]
    return statistics.median(measured) if measured else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(median: float | None, most: float | None, rounds: int) -> str:
    """Return "0.05 s (worst 0.07)", "" where there is nothing to measure."""
    worst_round = f" (worst {most:.2f})" if most is not None and rounds > 1 else ""
    return "" if median is None else f"{median:.2f} s{worst_round}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _row(cells: dict[str, str]) -> Row:
    times = {name: float(cells[name]) if cells[name] else None for name in cells if name.endswith("_s")}
    counts = {name: int(cells[name]) for name in ("hosts", "rounds", "right", "left_over")}
    names = {name: cells[name] for name in ("fault", "launcher", "exit_codes")}
    return Row(busy=cells["busy"] == "yes", **names, **counts, **times)  # type: ignore[arg-type]
