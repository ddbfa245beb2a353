"""Builds the tables of the top kernels (on a CPU operators) and the collectives of the jobs, side by side."""

from collections.abc import Mapping, Sequence

from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Block, Cell, ColumnSpec, Words, make_table
from toolkit.commands.report.sections import traced
from toolkit.traces import names
from toolkit.traces.figures import TraceFigures, compute_figures

TOP = 5
MISSING = '{jobs}: no trace was taken. Set TOOLKIT_PROFILE="steps 10-20" for the jobs.'


def build_blocks(jobs: Sequence[ComparedJob]) -> list[Block]:
    """Return a table of the top kernels before and after, and a sentence on jobs without a trace."""
    traces = {job.label: _read_figures(job) for job in jobs}
    missing = [label for label, ran_operators in traces.items() if ran_operators is None]
    operators = {label: () if trace is None else trace.operators for label, trace in traces.items()}
    blocks: list[Block] = [Words(text=MISSING.format(jobs=", ".join(missing)))] if missing else []
    if len(missing) == len(jobs):
        return blocks
    rows: list[tuple[Cell, ...]] = []
    for place in range(TOP):
        row: list[Cell] = [place + 1]
        for trace in operators.values():
            operator = trace[place] if place < len(trace) else None
            row += [operator.name if operator else "", None if operator is None else round(100 * operator.share, 2)]
        rows.append(tuple(row))
    columns: list[ColumnSpec] = ["place"]
    for job in jobs:
        columns += [
            job.label,
            (f"share in {job.label}", "percent", "its time / time of all"),
        ]
    note = "By time, of the first rank of the newest trace: kernels, on a CPU operators less the operators within them."
    blocks.append(make_table("top-kernels", f"The first {TOP} by time", columns, rows, note=note))
    return [*blocks, *_build_collectives({label: trace for label, trace in traces.items() if trace is not None})]


def _build_collectives(traces: Mapping[str, TraceFigures]) -> list[Block]:
    """Return a table of the collectives of each job, which shows those that a change adds or saves."""
    calls = {label: _sum_communication(job_figures) for label, job_figures in traces.items()}
    collectives = sorted({name for job_calls in calls.values() for name in job_calls})
    if not collectives:
        return []
    columns: list[ColumnSpec] = ["collective"]
    for label in calls:
        columns += [f"a step in {label}", (f"time a step in {label}", "ms")]
    rows: list[tuple[Cell, ...]] = []
    for name in collectives:
        row: list[Cell] = [name]
        for job_calls in calls.values():
            row += job_calls.get(name, (0, None))
        rows.append(tuple(row))
    note = "Of the same traces. Gloo's and NCCL's time holds the wait for the other ranks."
    return [make_table("collectives", "Collectives", columns, rows, note=note)]


def _sum_communication(job_figures: TraceFigures) -> dict[str, tuple[float, float]]:
    """Return calls and milliseconds a step, by collective: of the kernels, or where there are none of annotations."""
    steps = len(job_figures.steps) or 1
    timed = [
        (operator.name, operator.calls, operator.total_s) for operator in job_figures.operators if operator.communicates
    ]
    timed = timed or [
        (annotation.name, len(annotation.durations_s), annotation.total_s)
        for annotation in job_figures.annotations
        if names.communicates(annotation.name)
    ]
    calls: dict[str, list[float]] = {}
    for name, count, total_s in timed:
        of_name = calls.setdefault(names.normalize_collective(name), [0, 0.0])
        of_name[0] += count / steps
        of_name[1] += 1000 * total_s / steps
    return {name: (round(count, 2), round(total_ms, 3)) for name, (count, total_ms) in calls.items()}


def _read_figures(job: ComparedJob) -> TraceFigures | None:
    """Return the figures of the first rank's newest trace, None without one."""
    for trace in traced.read_traces(job.job).traces:
        trace_figures = compute_figures(trace)
        if trace_figures.operators:
            return trace_figures
    return None
