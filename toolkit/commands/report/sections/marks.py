"""Lists the moments of a job that charts over time mark: restarts, findings, the failure."""

from collections.abc import Callable, Iterable

from toolkit.commands.report.model import Mark
from toolkit.commands.report.sections.headline import shorten_sentence, sort_findings
from toolkit.commands.report.sections.material import Material
from toolkit.diagnosis.folding import fold
from toolkit.job.report import seconds_of
from toolkit.series.finding import Finding

MOST_FINDINGS = 8
# Rules on steps, by a part of their names.
STEP_RULES = ("Step", "Data", "SlowRank", "Checkpoint", "Evaluation", "Collection", "Initialization")
# Rules on metrics.
METRIC_RULES = ("Loss", "Tensor", "Overfit", "Overtraining", "Stalled")


def list_marks(
    material: Material, *, elapsed: bool = True, is_shown: Callable[[Finding], bool] | None = None
) -> Iterable[Mark]:
    """Yield the marks of a time axis: seconds since the start if *elapsed*, else since the epoch.

    *is_shown*: whether the chart is about a finding; None: it is about none.
    """
    zero = (material.start_s or 0.0) if elapsed else 0.0
    for restart in material.job.restarts:
        if restart.failed_ns:
            yield Mark(start=restart.failed_ns / 1e9 - zero, text=f"restart, attempt {restart.attempt}", tone="warn")
    for number, interruption in enumerate(material.job.interruptions, 1):
        ended_s, resumed_s = seconds_of(interruption.end_time), seconds_of(interruption.resumed_time)
        if ended_s is not None:
            end_s = ended_s if resumed_s is None else resumed_s
            yield Mark(start=ended_s - zero, end=end_s - zero, text=f"spot interruption {number}", tone="warn")
    findings = [finding for finding in material.findings if is_shown is not None and is_shown(finding)]
    for group in sort_findings(fold(findings))[:MOST_FINDINGS]:
        start_s, end_s = min(finding.start_s for finding in group.all), max(finding.end_s for finding in group.all)
        text = material.job.mask(f"{group.finding.rule}: {shorten_sentence(group.finding.text)}")
        yield Mark(start=start_s - zero, end=end_s - zero, text=text, tone="warn")
    if material.failed_s is not None:
        yield Mark(start=material.failed_s - zero, text="failure", tone="bad")


def is_about_steps(finding: Finding) -> bool:
    """Return whether *finding* is about the steps of ranks."""
    return any(part in finding.rule for part in STEP_RULES)


def is_about_host(finding: Finding, host: str) -> bool:
    """Return whether *finding* is about what the samples of *host* show."""
    is_about_metric = any(part in finding.rule for part in METRIC_RULES)
    return finding.host in ("", host) and not is_about_metric and not is_about_steps(finding)
