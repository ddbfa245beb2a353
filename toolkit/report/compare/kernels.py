"""The top kernels, on a CPU operators, of each job that was traced, beside those of the native one."""

from collections.abc import Sequence

from toolkit.report.compare.measured import Measured
from toolkit.report.model import Block, Cell, Column, Table, Words
from toolkit.report.sections import traced
from toolkit.traces.figures import Operator, figures

TOP = 5
MISSING = '{jobs}: no trace was taken. Set TOOLKIT_PROFILE="steps 10-20" for the jobs.'


def blocks(jobs: Sequence[Measured]) -> list[Block]:
    """Return a table of the top kernels before and after, and what is missing for it."""
    ran = {job.label: _operators(job) for job in jobs}
    missing = [label for label, found in ran.items() if not found]
    made: list[Block] = [Words(text=MISSING.format(jobs=", ".join(missing)))] if missing else []
    if len(missing) == len(jobs):
        return made
    rows: list[tuple[Cell, ...]] = []
    for place in range(TOP):
        row: list[Cell] = [place + 1]
        for found in ran.values():
            each = found[place] if place < len(found) else None
            row += [each.name if each else "", None if each is None else round(100 * each.share, 2)]
        rows.append(tuple(row))
    columns = [Column(name="rank")]
    for job in jobs:
        columns += [
            Column(name=job.label),
            Column(name=f"share in {job.label}", unit="percent", formula="its time / time of all"),
        ]
    note = "By time, of the first rank of the newest trace: kernels, on a CPU operators less the operators within them."
    made.append(
        Table(id="top-kernels", title=f"The first {TOP} by time", columns=tuple(columns), rows=tuple(rows), note=note)
    )
    return made


def _operators(job: Measured) -> tuple[Operator, ...]:
    for trace in traced.read(job.job).traces:
        found = figures(trace).operators
        if found:
            return tuple(found)
    return ()
