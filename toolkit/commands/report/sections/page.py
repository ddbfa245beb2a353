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
BlocksBuilder = Callable[[Material], list[Block]]
SECTIONS: tuple[tuple[str, str, BlocksBuilder], ...] = (
    ("outcome", "Outcome", outcome.build_blocks),
    ("last-minutes", "The last two minutes", last_minutes.build_blocks),
    ("where-time-went", "Where the time went", where.build_blocks),
    ("findings", "Findings", findings.build_blocks),
    ("metrics", "Metrics", metrics.build_blocks),
    ("steps", "Steps", step_times.build_blocks),
    ("compiler", "Compiler", compiler.build_blocks),
    ("modelparallel", "Model parallelism", modelparallel.build_blocks),
    ("system", "System", system.build_blocks),
    ("kernels", "Kernels", kernels.build_blocks),
    ("memory", "Memory operations", memory.build_blocks),
    ("timeline", "Timeline", timeline.build_blocks),
    ("log", "Log", log_tail.build_blocks),
)


def build_page(job: JobData, *, now_s: float, price: float | None = None) -> Page:
    """Return the page of *job*. *now_s*: seconds since the epoch. *price*: of one host for an hour, in any currency."""
    material = Material(job, now_s=now_s, price=price)

    def made(row: tuple[str, str, BlocksBuilder]) -> Section:
        return Section(id=row[0], title=row[1], blocks=tuple(row[2](material)))

    return Page(
        title=job.name,
        status=job.status,
        tone=outcome.TONES[job.status],
        summary=outcome.summarise(material),
        sections=tuple(section for section in map(made, SECTIONS) if section.blocks),
        made_by=MADE_BY,
        made_at_s=now_s,
        live=job.status == "running",
    )
