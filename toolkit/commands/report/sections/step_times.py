"""Builds the section "steps": the distribution of step times, the outliers, and a heat map of ranks and steps."""

from typing import TYPE_CHECKING, Any

from toolkit.commands.report.model import Axis, Block, Cell, Chart, HeatMap, Line, Table, Words, make_table
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.thin import thin_line
from toolkit.commands.report.sections.words import format_duration
from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    from toolkit.series.step_records import StepTable

MISSING = (
    "No steps were measured. With the monitor on, steps are seen where the script uses a torch optimizer, Keras, "
    "smppy.annotate or toolkit.status.heartbeat (docs/status.md)."
)
BINS, COLUMNS, OUTLIERS, MOST_LINES = 40, 200, 10, 16
PARTS = (
    ("data_s", "data wait"),
    ("forward_s", "forward"),
    ("backward_s", "backward"),
    ("optimizer_s", "optimizer"),
    ("checkpoint_s", "checkpoint"),
)
OWN = "Step time less what the rank spent in backward and optimizer beyond the fastest rank of that step (its wait)."


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
    for rank, (host, table) in sorted(ranks.items()):
        measured_s = table.step_s[~np.isnan(table.step_s)]
        spread = np.quantile(measured_s, (0.5, 0.95, 1.0)).tolist() if len(measured_s) else [None] * 3
        means = [_measured_mean(getattr(table, name)) for name, _ in PARTS]
        rows.append((rank, host, len(table), *spread, *means))
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
            *((label, "s", "mean of the steps in which it was measured") for _, label in PARTS),
        ),
        rows,
        note="The parts are means of the steps in which each was measured.",
    )


def _build_chart(material: Material, ranks: "dict[int, tuple[str, StepTable]]") -> Chart:
    start_s = material.start_s or min(float(table.end_s[0]) for _, table in ranks.values())
    lines = [
        thin_line(
            f"rank {rank}",
            (table.end_s - start_s).tolist(),
            table.step_s.tolist(),
            source=f"monitor/steps of host {host}, rank {rank}",
        )
        for rank, (host, table) in sorted(ranks.items())[:MOST_LINES]
    ]
    return Chart(
        id="step-time",
        title="Step time",
        x=Axis(name="time since the start", unit="s", kind="elapsed"),
        y=Axis(name="step time", unit="s", low=0.0),
        lines=tuple(lines),
        cursor="elapsed",
        formula="From the end of a step to the end of the next, at the time of its end.",
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
    np = numpy()
    outliers: list[tuple[float, tuple[Cell, ...]]] = []
    start_s = material.start_s or 0.0
    for rank, (host, table) in ranks.items():
        is_measured = ~np.isnan(table.step_s)
        if is_measured.sum() < 5:
            continue
        median = float(np.median(table.step_s[is_measured]))
        # A part that was not measured in a step took none of its time: most steps save nothing.
        usual = {name: float(np.nan_to_num(getattr(table, name)).mean()) for name, _ in PARTS}
        for index in np.argsort(np.where(is_measured, -table.step_s, np.inf))[:OUTLIERS].tolist():
            took = float(table.step_s[index])
            if took < 2 * median:
                break
            row = (
                int(table.step[index]),
                rank,
                host,
                format_duration(float(table.end_s[index]) - start_s),
                took,
                took / median,
            )
            outliers.append((took, (*row, _find_longest_part(table, index, usual))))
    if not outliers:
        return [Words(text="No step took twice the median of its rank.")]
    outliers.sort(key=lambda outlier: -outlier[0])
    return [
        make_table(
            "step-outliers",
            "Steps that stand out",
            ("step", "rank", "host", "after the start", ("took", "s"), "x median", "longer by"),
            (row for _, row in outliers[:OUTLIERS]),
            note="Steps of twice the median of their rank or more; last, the part that took most beyond its mean.",
        )
    ]


def _find_longest_part(table: "StepTable", index: int, usual: dict[str, float]) -> str:
    """Return the part of a step that took most beyond its mean, with the seconds."""
    beyond = [(float(getattr(table, name)[index]) - usual[name], label) for name, label in PARTS]
    best = max((part for part in beyond if part[0] == part[0]), default=(0.0, ""))
    return f"{best[1]}, {format_duration(best[0])}" if best[0] > 0 else "what is not measured"


def _build_heat_map(ranks: "dict[int, tuple[str, StepTable]]") -> list[HeatMap]:
    np = numpy()
    steps = np.unique(np.concatenate([table.step for _, table in ranks.values()]))
    if len(steps) < 2:
        return []
    per = -(-len(steps) // COLUMNS)
    columns = steps[::per]
    grid = np.full((len(ranks), len(columns)), np.nan)
    own_s = _subtract_waits(ranks, steps)
    for row, rank in enumerate(sorted(ranks)):
        place = np.searchsorted(steps, ranks[rank][1].step) // per
        is_measured = ~np.isnan(own_s[rank])
        np.fmax.at(grid[row], place[is_measured], own_s[rank][is_measured])
    measured = grid[~np.isnan(grid)]
    if not len(measured):
        return []
    return [
        HeatMap(
            id="steps-by-rank",
            title="Own time of each rank by step",
            x=Axis(name="step", kind="step"),
            value=Axis(name="own time", unit="s"),
            rows=tuple(f"rank {rank}" for rank in sorted(ranks)),
            columns=tuple(map(float, columns.tolist())),
            values=tuple(tuple(None if value != value else value for value in row) for row in grid.tolist()),
            top=float(np.quantile(measured, 0.99)) or float(measured.max()),
            cursor="step",
            formula=OWN + (f" The longest of each {per} steps." if per > 1 else ""),
        )
    ]


def _subtract_waits(ranks: "dict[int, tuple[str, StepTable]]", steps: Any) -> "dict[int, Any]":
    """Return the step times of each rank, less what it waited for others in backward and optimizer."""
    np = numpy()
    least = np.full(len(steps), np.inf)
    late = {}
    for rank, (_, table) in ranks.items():
        late[rank] = np.nan_to_num(table.backward_s) + np.nan_to_num(table.optimizer_s)
        np.minimum.at(least, np.searchsorted(steps, table.step), late[rank])
    if len(ranks) < 2:
        return {rank: table.step_s for rank, (_, table) in ranks.items()}
    return {
        rank: table.step_s - (late[rank] - least[np.searchsorted(steps, table.step)])
        for rank, (_, table) in ranks.items()
    }


def _measured_mean(values: Any) -> float | None:
    np = numpy()
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if len(measured) else None
