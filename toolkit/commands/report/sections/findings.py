"""What is wrong or wasteful: each finding with its numbers, what would refute it, and one change to try."""

from toolkit.commands.report.model import Block, Column, Table, Tone, Words
from toolkit.commands.report.sections import evidence
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import format_duration, format_utc
from toolkit.diagnosis.folding import FoldedFinding, fold
from toolkit.series.finding import Finding, Number

ONE_OF_SEVERAL = "The sentence is that of {host}; the table has the numbers of all these hosts."
NONE = "No rule found anything: the rules of docs/diagnosis.md looked at the samples, steps and metrics of this job."


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "findings"."""
    findings = fold(material.findings)
    if not findings:
        return [Words(text=NONE if material.samples or material.steps else material.why_unmeasured)]
    made: list[Block] = []
    for number, each in enumerate(findings, 1):
        finding = each.finding
        # Neighbouring words are one card: those of a finding stand together, its table ends it.
        made.append(_describe_finding(material, each))
        if finding.refuted_by:
            made.append(Words(name="Refuted by", text=material.job.mask(finding.refuted_by)))
        notes = (ONE_OF_SEVERAL.format(host=finding.host) if each.others else "", material.job.mask(finding.note))
        if any(notes):
            made.append(Words(name="Note", text=" ".join(filter(None, notes))))
        if finding.numbers:
            made.append(_build_numbers_table(number, each))
        made += evidence.build_blocks(material, number, finding)
    return made


def label_finding(each: FoldedFinding, *, restarted: bool = False) -> str:
    """Return "CPUBottleneck (cpu, host algo-1)", "DataWait (loader, hosts algo-1, algo-2)".

    The attempt stands with it if the job was *restarted*.
    """
    finding = each.finding
    rank = "" if finding.rank is None else f"rank {finding.rank}"
    attempt = f"attempt {finding.attempt}" if restarted or finding.attempt else ""
    where = ", ".join(filter(None, (finding.subject, rank, each.hosts, attempt)))
    return f"{finding.rule} ({where})" if where else finding.rule


def choose_tone(finding: Finding) -> Tone:
    """Return how a finding speaks: one that may stop a job is an error."""
    return {"record": "plain", "warn": "warn", "stop": "bad"}[finding.action]  # type: ignore[return-value]


def _describe_finding(material: Material, each: FoldedFinding) -> Words:
    finding, start_s = each.finding, material.start_s
    window = f"from {format_utc(finding.start_s)}, for {format_duration(finding.end_s - finding.start_s)}"
    if start_s is not None and finding.start_s >= start_s:
        window += f" ({format_duration(finding.start_s - start_s)} after the start)"
    seen = "; found while the job ran" if any(one.live for one in each.all) else ""
    return Words(
        name=label_finding(each, restarted=bool(material.job.restarts)),
        text=f"{material.job.mask(finding.text)} (Window: {window}{seen}.)",
        tone=choose_tone(finding),
        advice=finding.change,
    )


def _build_numbers_table(number: int, each: FoldedFinding) -> Table:
    finding = each.finding
    limited = any(one.limit is not None for one in finding.numbers)
    ends = ("least", "greatest") if each.others else ()
    names = ("number", "value", *ends, "unit", *(("limit",) if limited else ()), "how it was made")
    return Table(
        id=f"finding-{number}",
        title=f"Numbers of {finding.rule}",
        columns=tuple(Column(name=name) for name in names),
        rows=tuple(_build_row(each, one, limited) for one in finding.numbers),
        note=f"Value: of {finding.host}. Least and greatest: of {each.hosts}." if each.others else "",
    )


def _build_row(each: FoldedFinding, number: Number, limited: bool) -> tuple[str | float | None, ...]:
    values = each.of_all(number)
    ends = (min(values), max(values)) if each.others else ()
    return number.name, number.value, *ends, number.unit, *((number.limit,) if limited else ()), number.formula
