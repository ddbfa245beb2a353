"""The sections of a job's page, in their order. A section without blocks is left out: it concerns other jobs."""

from collections.abc import Callable

from toolkit import __version__
from toolkit.commands.jobs.data import JobData
from toolkit.commands.report.model import Block, Page, Section
from toolkit.commands.report.sections import (
    compiler,
    findings,
    kernels,
    last_minutes,
    log_tail,
    memory,
    metrics,
    modelparallel,
    outcome,
    step_times,
    system,
    timeline,
    where,
)
from toolkit.commands.report.sections.material import Material

MADE_BY = f"toolkit {__version__}"
Maker = Callable[[Material], list[Block]]
SECTIONS: tuple[tuple[str, str, Maker], ...] = (
    ("outcome", "Outcome", outcome.blocks),
    ("last-minutes", "The last two minutes", last_minutes.blocks),
    ("where-time-went", "Where the time went", where.blocks),
    ("findings", "Findings", findings.blocks),
    ("metrics", "Metrics", metrics.blocks),
    ("steps", "Steps", step_times.blocks),
    ("compiler", "Compiler", compiler.blocks),
    ("modelparallel", "Model parallelism", modelparallel.blocks),
    ("system", "System", system.blocks),
    ("kernels", "Kernels", kernels.blocks),
    ("memory", "Memory operations", memory.blocks),
    ("timeline", "Timeline", timeline.blocks),
    ("log", "Log", log_tail.blocks),
)


def build(job: JobData, *, now_s: float, price: float | None = None) -> Page:
    """Return the page of *job*. *now_s*: seconds since the epoch. *price*: of one host for an hour, in any currency."""
    material = Material(job, now_s=now_s, price=price)

    def made(row: tuple[str, str, Maker]) -> Section:
        return Section(id=row[0], title=row[1], blocks=tuple(row[2](material)))

    return Page(
        title=job.name,
        status=job.status,
        tone=outcome.TONES[job.status],
        summary=outcome.summary(material),
        sections=tuple(section for section in map(made, SECTIONS) if section.blocks),
        made_by=MADE_BY,
        made_at_s=now_s,
        live=job.status == "running",
    )
