"""Builds the section "steps": the distribution of step times, the outliers, and a heat map of ranks and steps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolkit.commands.report.model import Axis, Block, Cell, Chart, HeatMap, Line, Table, Words, make_table
from toolkit.commands.report.sections.marks import is_about_steps, list_marks
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.thin import POINTS, thin_line
from toolkit.commands.report.sections.words import format_duration
from toolkit.records import Record
from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    from toolkit.series.step_records import StepTable

MISSING = (
    "No steps were measured. With the monitor on, steps are seen where the script uses a torch optimizer, Keras, "
    "smppy.annotate or toolkit.status.heartbeat (docs/status.md)."
)
BINS, COLUMNS, OUTLIERS, MOST_LINES = 40, 200, 10, 16
# Of the heat map: the least and the greatest ratio to the median that have shades of their own.
LEAST_RATIO, TOP_RATIO, MOST_TOP = 0.75, 2.0, 4.0
PARTS = (
    ("data_s", "data wait"),
    ("forward_s", "forward"),
    ("backward_s", "backward"),
    ("optimizer_s", "optimizer"),
    ("checkpoint_s", "checkpoint"),
    ("evaluation_s", "evaluation"),
    ("collection_s", "garbage collection"),
    ("pause_s", "other pauses"),
)
# Of every job there is a column for these; for the others only where they took this share of a rank's steps.
USUAL_PARTS = 5
LEAST_SHARE = 0.01
OWN = (
    "Own time: step time less checkpoints, and less what the rank spent in backward and optimizer beyond the fastest "
    "rank of that step (its wait)."
)


OUTLIER_NOTE = (
    "One row for each step that took twice the median of its rank or more; longer by: the part that took most beyond "
    "its mean, on the rank with the longest own time."
)
FEWEST_STEPS = 5  # Of a rank: of fewer, a median says little.
STEP_FORMULA = "From the end of a step to the end of the next; a mean counts each step once."


class _Outlier(Record, frozen=True, kw_only=True):
    """A step of one rank that took twice the median of the rank or more."""

    rank: int
    """The rank."""
    attempt: int
    """Its attempt."""
    step: int
    """The number of the step."""
    index: int
    """Its index in the rank's table."""
    took_s: float
    """How long it took."""
    ratio: float
    """The same, divided by the median."""


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "steps"."""
    if not material.steps:
        return [Words(text=MISSING if material.samples else material.why_unmeasured)]
    ranks = material.ranks
    blocks: list[Block] = [_build_table(ranks), _build_chart(material, ranks)]
    blocks += _build_distribution(ranks)
    blocks += _build_outliers(material, ranks)
    blocks += _build_heat_map(ranks)
    return blocks


def _build_table(ranks: "dict[int, tuple[str, StepTable]]") -> Table:
    np = numpy()
    rows: list[tuple[Cell, ...]] = []
    parts = [
        part
        for number, part in enumerate(PARTS)
        if number < USUAL_PARTS or any(_takes_time(table, part[0]) for _, table in ranks.values())
    ]
    for rank, (host, table) in sorted(ranks.items()):
        measured_s = table.step_s[~np.isnan(table.step_s)]
        spread = np.quantile(measured_s, (0.5, 0.95, 1.0)).tolist() if len(measured_s) else [None] * 3
        rows.append((rank, host, len(table), *spread, *_divide_mean(table, [name for name, _ in parts])))
    return make_table(
        "step-times",
        "Step times",
        (
            "rank",
            "host",
            "steps",
            ("median", "s"),
            ("95 %", "s"),
            ("longest", "s"),
            ("mean", "s", "of all steps but the first of each attempt"),
            *((label, "s", "its part of the mean") for _, label in parts),
            ("rest", "s", "of the mean, what no part explains"),
        ),
        rows,
        note="The parts and the rest add up to the mean, which leaves out the first step of each attempt.",
    )


def _build_chart(material: Material, ranks: "dict[int, tuple[str, StepTable]]") -> Chart:
    start_s = material.start_s or min(float(table.end_s[0]) for _, table in ranks.values())
    lines = [
        build_step_line(rank, host, table, zero_s=start_s) for rank, (host, table) in sorted(ranks.items())[:MOST_LINES]
    ]
    return Chart(
        id="step-time",
        title="Step time",
        x=Axis(name="time since the start", unit="s", kind="elapsed"),
        y=Axis(name="step time", unit="s", low=0.0),
        lines=tuple(lines),
        marks=tuple(list_marks(material, is_shown=is_about_steps)),
        cursor="elapsed",
        style="stepped",
        formula=STEP_FORMULA,
    )


def build_step_line(rank: int, host: str, table: "StepTable", *, zero_s: float, points: int = POINTS) -> Line:
    """Return the step times of *rank* from the begin of each step, in seconds since *zero_s*."""
    measured = table.where(table.step_s == table.step_s)
    return thin_line(
        f"rank {rank}",
        (measured.end_s - measured.step_s - zero_s).tolist(),
        measured.step_s.tolist(),
        points=points,
        source=f"monitor/steps of host {host}, rank {rank}",
    )


def _build_distribution(ranks: "dict[int, tuple[str, StepTable]]") -> list[Chart]:
    np = numpy()
    every = np.concatenate([table.step_s for _, table in ranks.values()])
    every = every[~np.isnan(every)]
    if len(every) < 2:
        return []
    # A few very long steps would squeeze all others into one bar: they stand in the last one.
    top = min(float(every.max()), 4 * float(np.median(every)))
    counts, edges = np.histogram(
        np.minimum(every, top), bins=BINS, range=(float(every.min()), max(top, float(every.min()) * 1.001 + 1e-9))
    )
    beyond = int((every > top).sum())
    more = f" The last bar holds {beyond} steps that are longer still." if beyond else ""
    return [
        Chart(
            id="step-distribution",
            title="Distribution of step times",
            x=Axis(name="step time", unit="s"),
            y=Axis(name="steps", low=0.0),
            lines=(Line(name="steps", x=tuple(edges[:-1].tolist()), mean=tuple(map(float, counts))),),
            style="bars",
            formula=f"Number of steps of all ranks in each of {BINS} spans of equal width.{more}",
        )
    ]


def _build_outliers(material: Material, ranks: "dict[int, tuple[str, StepTable]]") -> list[Block]:
    """Return the table of the steps that took longest, one row for each, whatever number of ranks it kept waiting."""
    outliers: dict[tuple[int, int], list[_Outlier]] = {}
    for rank, (_, table) in ranks.items():
        for outlier in _list_outliers(rank, table):
            outliers.setdefault((outlier.attempt, outlier.step), []).append(outlier)
    if not outliers:
        return [Words(text="No step took twice the median of its rank.")]
    longest = sorted(outliers.values(), key=lambda same: -max(outlier.took_s for outlier in same))[:OUTLIERS]
    own_s = _subtract_waits(ranks, _list_step_numbers(ranks))
    return [
        make_table(
            "step-outliers",
            "Steps that stand out",
            (
                "step",
                "ranks",
                ("longest own time", "", f"the rank whose own time was longest. {OWN}"),
                "host",
                "after the start",
                ("took", "s"),
                "x median",
                "longer by",
            ),
            (_build_outlier_row(same, ranks, own_s, material.start_s or 0.0) for same in longest),
            note=OUTLIER_NOTE,
        )
    ]


def _list_outliers(rank: int, table: "StepTable") -> "Iterator[_Outlier]":
    """Yield the longest steps of *rank* that took twice its median or more."""
    np = numpy()
    is_measured = ~np.isnan(table.step_s)
    if is_measured.sum() < FEWEST_STEPS:
        return
    median_s = float(np.median(table.step_s[is_measured]))
    if median_s <= 0:
        return
    for index in np.argsort(np.where(is_measured, -table.step_s, np.inf))[:OUTLIERS].tolist():
        took_s = float(table.step_s[index])
        if took_s < 2 * median_s:
            return
        yield _Outlier(
            rank=rank,
            attempt=int(table.attempt[index]),
            step=int(table.step[index]),
            index=index,
            took_s=took_s,
            ratio=took_s / median_s,
        )


def _build_outlier_row(
    same: "list[_Outlier]", ranks: "dict[int, tuple[str, StepTable]]", own_s: "dict[int, Any]", start_s: float
) -> tuple[Cell, ...]:
    """Return the row of one step, which stood out on the ranks *same*: what the rank with the most own time did."""
    worst = max(same, key=lambda outlier: float(numpy().nan_to_num(own_s[outlier.rank][outlier.index])))
    host, table = ranks[worst.rank]
    # A part that was not measured in a step took none of its time: most steps save nothing.
    usual = {name: float(numpy().nan_to_num(getattr(table, name)).mean()) for name, _ in PARTS}
    return (
        worst.step,
        f"{len(same)} of {len(ranks)}",
        f"rank {worst.rank}",
        host,
        format_duration(float(table.end_s[worst.index]) - start_s),
        worst.took_s,
        worst.ratio,
        _find_longest_part(table, worst.index, usual),
    )


def _find_longest_part(table: "StepTable", index: int, usual: dict[str, float]) -> str:
    """Return the part of a step that took most beyond its mean, with the seconds."""
    beyond = [(float(getattr(table, name)[index]) - usual[name], label) for name, label in PARTS]
    best = max((part for part in beyond if part[0] == part[0]), default=(0.0, ""))
    return f"{best[1]}, {format_duration(best[0])}" if best[0] > 0 else "what is not measured"


def _build_heat_map(ranks: "dict[int, tuple[str, StepTable]]") -> list[HeatMap]:
    """Return the own time of each rank against the median of all ranks in the same steps: a rank that is slow for a
    while is seen beside steps that are long for all. A single rank is compared with its own median."""
    np = numpy()
    steps = _list_step_numbers(ranks)
    if len(steps) < 2:
        return []
    per = -(-len(steps) // COLUMNS)
    columns = steps[::per]
    sums, counts = np.zeros((2, len(ranks), len(columns)))
    own_s = _subtract_waits(ranks, steps)
    for row, rank in enumerate(sorted(ranks)):
        place = np.searchsorted(steps, ranks[rank][1].step) // per
        is_measured = ~np.isnan(own_s[rank])
        np.add.at(sums[row], place[is_measured], own_s[rank][is_measured])
        np.add.at(counts[row], place[is_measured], 1)
    with np.errstate(all="ignore"):
        grid = sums / np.where(counts > 0, counts, np.nan)
        if not np.isfinite(grid).any():
            return []
        is_measured_column = np.isfinite(grid).any(axis=0)
        usual = np.full(len(columns), np.nan)
        usual[is_measured_column] = (
            np.nanmedian(grid[:, is_measured_column], axis=0) if len(ranks) > 1 else np.nanmedian(grid)
        )
        grid = grid / np.where(usual > 0, usual, np.nan)
    measured = grid[np.isfinite(grid)]
    if not len(measured):
        return []
    against = "the median of all ranks in the same steps" if len(ranks) > 1 else "the median of all steps"
    return [
        HeatMap(
            id="steps-by-rank",
            title=f"Own time of each rank by step, against {against}",
            x=Axis(name="step", kind="step"),
            value=Axis(name="own time", unit="x median", low=LEAST_RATIO),
            rows=tuple(f"rank {rank}" for rank in sorted(ranks)),
            columns=tuple(map(float, columns.tolist())),
            values=tuple(tuple(value if np.isfinite(value) else None for value in row) for row in grid.tolist()),
            top=min(max(TOP_RATIO, float(np.quantile(measured, 0.99))), MOST_TOP),
            cursor="step",
            formula=f"{OWN} Divided by {against}." + (f" The mean of each {per} steps." if per > 1 else ""),
        )
    ]


def _list_step_numbers(ranks: "dict[int, tuple[str, StepTable]]") -> Any:
    np = numpy()
    return np.unique(np.concatenate([table.step for _, table in ranks.values()]))


def _subtract_waits(ranks: "dict[int, tuple[str, StepTable]]", steps: Any) -> "dict[int, Any]":
    """Return the step times of each rank, less checkpoints and what it waited for others in backward and optimizer."""
    np = numpy()
    least = np.full(len(steps), np.inf)
    late = {}
    for rank, (_, table) in ranks.items():
        late[rank] = np.nan_to_num(table.backward_s) + np.nan_to_num(table.optimizer_s)
        np.minimum.at(least, np.searchsorted(steps, table.step), late[rank])
    own_s = {}
    for rank, (_, table) in ranks.items():
        wait_s = late[rank] - least[np.searchsorted(steps, table.step)] if len(ranks) > 1 else 0.0
        own_s[rank] = np.maximum(table.step_s - np.nan_to_num(table.checkpoint_s) - wait_s, 0.0)
    return own_s


def _takes_time(table: "StepTable", name: str) -> bool:
    np = numpy()
    return bool(np.nansum(getattr(table, name)) > LEAST_SHARE * np.nansum(table.step_s))


def _divide_mean(table: "StepTable", parts: list[str]) -> list[float | None]:
    """Return the mean of the steps of *table* but the first of each attempt, how long each of *parts* took of it, and
    the rest; None: not measured. A part that was not measured in a step took none of its time."""
    np = numpy()
    is_counted = ~np.isnan(table.step_s)
    is_counted &= np.append(False, table.attempt[1:] == table.attempt[:-1])
    if not is_counted.any():
        return [None] * (len(parts) + 2)
    mean_s = float(table.step_s[is_counted].mean())
    part_s: list[float | None] = []
    for name in parts:
        seconds = getattr(table, name)[is_counted]
        part_s.append(None if np.isnan(seconds).all() else float(np.nan_to_num(seconds).mean()))
    return [mean_s, *part_s, max(mean_s - sum(seconds or 0.0 for seconds in part_s), 0.0)]
