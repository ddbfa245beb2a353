"""The sections of a job's page, in their order. A section without blocks is left out: it concerns other jobs."""

from collections.abc import Callable

from msgspec.structs import replace

from toolkit import __version__
from toolkit.commands.jobs.damage import find_damage
from toolkit.commands.jobs.data import JobData
from toolkit.commands.report.model import Block, Page, Phrase, Section, Shares, Words
from toolkit.commands.report.sections import (
    compiler,
    findings,
    headline,
    job_figures,
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
LAST_MINUTES = "last-minutes"
SECTIONS: tuple[tuple[str, str, BlocksBuilder], ...] = (
    ("outcome", "Outcome", outcome.build_blocks),
    (LAST_MINUTES, "The last two minutes", last_minutes.build_blocks),
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
    # Half a line of a job that still writes is no damage.
    damage = () if job.status == "running" else tuple(find_damage(job))
    job = replace(job, notes=(*job.notes, *damage))
    material = Material(job, now_s=now_s, price=price)

    def made(row: tuple[str, str, BlocksBuilder]) -> Section:
        return Section(id=row[0], title=row[1], blocks=tuple(row[2](material)))

    sections = _order_sections([section for section in map(made, SECTIONS) if section.blocks], job.status)
    unexplained_share = _find_unexplained_share(sections)
    figures = replace(
        job_figures.measure_job(material), unexplained_share=unexplained_share, damaged_records=len(damage)
    )
    phrases = headline.describe_headline(figures, _list_anchors(sections))
    phrases = tuple(Phrase(text=job.mask(phrase.text), link=phrase.link) for phrase in phrases)
    return Page(
        title=job.name,
        status=job.status,
        tone=outcome.TONES[job.status],
        summary="".join(phrase.text for phrase in phrases),
        sections=sections,
        made_by=MADE_BY,
        made_at_s=now_s,
        headline=phrases,
        live=job.status == "running",
    )


def _order_sections(sections: list[Section], status: str) -> tuple[Section, ...]:
    """Return *sections* in the order of the page: the last minutes of a job that succeeded stand at the end."""
    if status != "succeeded":
        return tuple(sections)
    return tuple(sorted(sections, key=lambda section: section.id == LAST_MINUTES))


def _find_unexplained_share(sections: tuple[Section, ...]) -> float:
    """Return the share of the time that the ledger in *sections* cannot explain, 0 without a ledger."""
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Shares) and block.id == "ledger" and block.total:
                return sum(part.value for part in block.parts if part.name == where.UNEXPLAINED) / block.total
    return 0.0


def _list_anchors(sections: tuple[Section, ...]) -> list[str]:
    """Return the anchors of *sections* and their blocks."""
    blocks = [block for section in sections for block in section.blocks]
    return [section.id for section in sections] + [block.id for block in blocks if not isinstance(block, Words)]
