"""Pure: a job's progress as one line, and as the rows of a live table that fits the screen."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from toolkit.commands.report.speed import describe_left, format_speed
from toolkit.commands.simulate.report import last_values, value_text
from toolkit.metrics.sample import Sample
from toolkit.records import Record

Style = Literal["", "bold", "dim", "green", "cyan", "yellow", "bold red"]
Span = tuple[str, Style]
Row = tuple[Span, ...]

BARS = 8
GAP = "  "
_STYLES: dict[str, Style] = {
    "starting": "dim",
    "installing": "cyan",
    "waiting": "dim",
    "running": "green",
    "stopping": "yellow",
    "ended with 0": "cyan",
}


class HostProgress(Record, frozen=True, kw_only=True):
    """One host's progress."""

    name: str  # The host's name.
    state: str  # "starting", "running", "ended with 0", ...
    samples: tuple[Sample, ...] = ()  # The newest sample of each metric.
    error: str = ""  # The cause of its failure, "" if there is none.
    followed: bool = False  # The host ended because another one had failed.
    bars: tuple[str, ...] = ()  # The states of its progress bars.
    steps_per_s: float | None = None  # The steps of one of its ranks in a second.
    left_s: float | None = None  # The seconds until it has done the steps or epochs that its hyperparameters ask for.
    findings: tuple[str, ...] = ()  # The rules that found something, in order of time.


class JobProgress(Record, frozen=True, kw_only=True):
    """The progress of all hosts of a job."""

    name: str
    elapsed_s: float
    hosts: tuple[HostProgress, ...]
    limit_left_s: float | None = None  # The seconds until max-run ends it, None: it has no such limit.


def clock(seconds: float) -> str:
    """Return 75.2 as "1:15"."""
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts algo-2 before algo-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def status_line(progress: JobProgress) -> str:
    """Return *progress* as one line."""
    hosts = sorted(progress.hosts, key=lambda host: natural(host.name))
    states = ", ".join(f"{host.name} {host.state}" for host in hosts)
    samples = sorted((sample for host in hosts for sample in host.samples), key=lambda sample: sample.time_s)
    newest = last_values(samples)
    metrics = " ".join(f"{name}={value_text(sample.value)}" for name, sample in newest.items())
    speed = describe_speed(progress)
    return " | ".join(part for part in (clock(progress.elapsed_s), states, speed, metrics) if part)


def describe_speed(progress: JobProgress) -> str:
    """Return "4.77 steps/s, about 3:20 left, found DataWait": the slowest host's, and what the rules have found."""
    speeds = [host.steps_per_s for host in progress.hosts if host.steps_per_s]
    left = [host.left_s for host in progress.hosts if host.left_s is not None]
    is_running = any(host.state == "running" for host in progress.hosts)
    rules = dict.fromkeys(rule for host in progress.hosts for rule in host.findings)
    parts = (
        format_speed(min(speeds)) if speeds else "",
        describe_left(max(left, default=None), progress.limit_left_s, clock) if is_running else "",
        f"found {', '.join(rules)}" if rules else "",
    )
    return ", ".join(part for part in parts if part)


def rows(progress: JobProgress, *, width: int, height: int) -> list[Row]:
    """Return *progress* as rows for a screen of *width* columns and *height* rows; at most half of the rows are used.

    Each host has a row. If there are more hosts than rows, failed hosts are preferred, and the last row counts the
    others. Progress bars come last.
    """
    hosts = sorted(progress.hosts, key=lambda host: natural(host.name))
    room = max(height // 2 - 2, 1)
    bars = [text for host in hosts for text in host.bars]
    visible, folded = _folded(hosts, max(room - min(len(bars), 2), 1))
    lines = [_title(progress, hosts), *_table(visible, width)]
    if folded:
        lines.append((("... ", "dim"), (f"{len(folded)} more: {_counted(folded)}", "dim")))
    remaining = min(room - (len(lines) - 2), BARS)
    if bars and remaining > 0:
        visible_bars = bars if len(bars) <= remaining else bars[: remaining - 1]
        lines += [((text, "cyan"),) for text in visible_bars]
        if len(visible_bars) < len(bars):
            lines.append(((f"... {len(bars) - len(visible_bars)} more progress bars", "dim"),))
    return [_cut(line, width) for line in lines][: max(height - 1, 1)]


def style_of(host: HostProgress) -> Style:
    """Return the style of a host's state: red for its own failure, yellow if it only followed another host."""
    return _STYLES.get(host.state, "yellow" if host.followed else "bold red")


def _title(progress: JobProgress, hosts: Sequence[HostProgress]) -> Row:
    count = f"{GAP}{len(hosts)} hosts: {_counted(hosts)}" if len(hosts) > 1 else ""
    speed = describe_speed(progress)
    return (
        (progress.name, "bold"),
        (f"{GAP}{clock(progress.elapsed_s)}{count}", ""),
        (f"{GAP}{speed}" if speed else "", "cyan"),
    )


def _counted(hosts: Sequence[HostProgress]) -> str:
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host.state] = counts.get(host.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _folded(hosts: list[HostProgress], room: int) -> tuple[list[HostProgress], list[HostProgress]]:
    """Return (the hosts to show, the others), each in the given order; failed hosts are shown before others."""
    if len(hosts) <= room:
        return hosts, []
    by_need = sorted(hosts, key=lambda host: style_of(host) != "bold red")
    chosen = by_need[: max(room - 1, 0)]
    return [host for host in hosts if host in chosen], [host for host in hosts if host not in chosen]


def _table(hosts: Sequence[HostProgress], width: int) -> Iterator[Row]:
    """Yield a row of headings and one row for each host, with as many metrics as fit beside the error."""
    steps = [_step(host) for host in hosts]
    names = list(dict.fromkeys(sample.name for host in hosts for sample in host.samples if sample.name != "step"))
    columns = [["host", *(host.name for host in hosts)], ["state", *(host.state for host in hosts)]]
    if any(steps):
        columns.append(["step", *steps])
    columns += [[name, *(_value(host, name) for host in hosts)] for name in names]
    widths = [max(map(len, column)) for column in columns]
    error_width = min(max((len(host.error) for host in hosts), default=0), width // 2)
    while len(columns) > 2 and sum(widths) + len(GAP) * len(widths) + error_width > width:
        columns.pop()
        widths.pop()
    styles = ["dim", *(style_of(host) for host in hosts)]
    errors = ["", *(host.error for host in hosts)]
    for row, error in enumerate(errors):
        cells = [column[row].ljust(wide) for column, wide in zip(columns, widths, strict=True)]
        head: Style = "" if row else "dim"
        values = GAP.join(("", *cells[2:])) if cells[2:] else ""
        yield (cells[0] + GAP, head), (cells[1], styles[row]), (values, head), (error and GAP + error, "bold red")


def _step(host: HostProgress) -> str:
    steps = [int(sample.value) for sample in host.samples if sample.name == "step" and sample.step is None]
    steps += [sample.step for sample in host.samples if sample.step is not None]
    return str(max(steps)) if steps else ""


def _value(host: HostProgress, name: str) -> str:
    return next((value_text(sample.value) for sample in host.samples if sample.name == name), "")


def _cut(line: Row, width: int) -> Row:
    """Return *line* without unprintable characters, cut at *width*."""
    cut: list[Span] = []
    remaining = width
    for text, style in line:
        printable = "".join(character for character in text if character.isprintable())
        if len(printable) > remaining:
            printable = printable[: max(remaining - 1, 0)] + ("…" if remaining else "")
        if printable:
            cut.append((printable, style))
        remaining -= len(printable)
    return tuple(cut)
