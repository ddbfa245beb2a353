"""What is wrong or wasteful: each finding with its numbers, what would refute it, and one change to try."""

from toolkit.report.model import Block, Column, Table, Tone, Words
from toolkit.report.sections import evidence
from toolkit.report.sections.material import Material
from toolkit.report.sections.words import duration, utc
from toolkit.series.finding import Finding, Number

NONE = "No rule found anything: the rules of docs/diagnosis.md looked at the samples, steps and metrics of this job."


def blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "findings"."""
    findings = material.findings
    if not findings:
        return [Words(text=NONE if material.samples or material.steps else material.why_unmeasured)]
    made: list[Block] = []
    for number, finding in enumerate(findings, 1):
        # Neighbouring words are one card: those of a finding stand together, its table ends it.
        made.append(_words(material, finding))
        if finding.refuted_by:
            made.append(Words(name="Refuted by", text=material.job.mask(finding.refuted_by)))
        if finding.note:
            made.append(Words(name="Note", text=material.job.mask(finding.note)))
        if finding.numbers:
            made.append(_table(number, finding))
        made += evidence.blocks(material, number, finding)
    return made


def label(finding: Finding) -> str:
    """Return "CPUBottleneck (cpu, host algo-1)"."""
    rank = "" if finding.rank is None else f"rank {finding.rank}"
    where = ", ".join(filter(None, (finding.subject, rank, f"host {finding.host}" if finding.host else "")))
    return f"{finding.rule} ({where})" if where else finding.rule


def tone(finding: Finding) -> Tone:
    """Return how a finding speaks: one that may stop a job is an error."""
    return {"record": "plain", "warn": "warn", "stop": "bad"}[finding.action]  # type: ignore[return-value]


def _words(material: Material, finding: Finding) -> Words:
    start_s = material.start_s
    window = f"from {utc(finding.start_s)}, for {duration(finding.end_s - finding.start_s)}"
    if start_s is not None and finding.start_s >= start_s:
        window += f" ({duration(finding.start_s - start_s)} after the start)"
    seen = "; found while the job ran" if finding.live else ""
    return Words(
        name=label(finding),
        text=f"{material.job.mask(finding.text)} (Window: {window}{seen}.)",
        tone=tone(finding),
        advice=finding.change,
    )


def _table(number: int, finding: Finding) -> Table:
    limited = any(each.limit is not None for each in finding.numbers)
    names = ("number", "value", "unit", *(("limit",) if limited else ()), "how it was made")
    return Table(
        id=f"finding-{number}",
        title=f"Numbers of {finding.rule}",
        columns=tuple(Column(name=name) for name in names),
        rows=tuple(_row(each, limited) for each in finding.numbers),
    )


def _row(number: Number, limited: bool) -> tuple[str | float | None, ...]:
    return number.name, number.value, number.unit, *((number.limit,) if limited else ()), number.formula
