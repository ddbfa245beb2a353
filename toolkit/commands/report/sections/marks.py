"""Lists the moments of a job that charts over time mark: restarts, findings, the failure."""

from collections.abc import Iterable

from toolkit.commands.report.model import Mark
from toolkit.commands.report.sections.material import Material
from toolkit.diagnosis.folding import fold
from toolkit.job.report import seconds_of

MOST_FINDINGS = 8


def list_marks(material: Material, *, elapsed: bool = True) -> Iterable[Mark]:
    """Yield the marks of a time axis: seconds since the start if *elapsed*, else since the epoch."""
    zero = (material.start_s or 0.0) if elapsed else 0.0
    for restart in material.job.restarts:
        if restart.failed_ns:
            yield Mark(start=restart.failed_ns / 1e9 - zero, text=f"restart, attempt {restart.attempt}", tone="warn")
    for number, interruption in enumerate(material.job.interruptions, 1):
        ended_s, resumed_s = seconds_of(interruption.end_time), seconds_of(interruption.resumed_time)
        if ended_s is not None:
            end_s = ended_s if resumed_s is None else resumed_s
            yield Mark(start=ended_s - zero, end=end_s - zero, text=f"spot interruption {number}", tone="warn")
    for group in fold(material.findings)[:MOST_FINDINGS]:
        start_s, end_s = min(finding.start_s for finding in group.all), max(finding.end_s for finding in group.all)
        yield Mark(start=start_s - zero, end=end_s - zero, text=group.finding.rule, tone="warn")
    if material.failed_s is not None:
        yield Mark(start=material.failed_s - zero, text="failure", tone="bad")
