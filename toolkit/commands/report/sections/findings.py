"""Builds the section "findings": each finding with its numbers, what would refute it, and one change to try."""

from toolkit.commands.report.model import Block, Table, Tone, Words, make_table
from toolkit.commands.report.sections import slow_rank_traces
from toolkit.commands.report.sections.headline import describe_share, sort_findings
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import count_words, format_duration, format_utc
from toolkit.diagnosis.folding import FoldedFinding, fold
from toolkit.diagnosis.units import format_value
from toolkit.series.finding import Finding, Number

ONE_OF_SEVERAL = "The sentence is that of {host}; the table has the numbers of all these hosts."
NONE = "No rule found anything: {count} of docs/diagnosis.md looked at the samples, steps and metrics of this job."
NONE_WHILE_IT_RUNS = "No rule has found anything so far (docs/diagnosis.md)."
NONE_COULD = "No rule could judge this job (docs/diagnosis.md)."


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "findings"."""
    findings = sort_findings(fold(material.findings))
    if not findings:
        return [_describe_nothing(material), *_describe_unjudged(material)]
    blocks: list[Block] = []
    for number, group in enumerate(findings, 1):
        finding = group.finding
        # Neighbouring words are one card: those of a finding stand together, its table ends it.
        blocks.append(_describe_finding(material, group))
        if finding.refuted_by:
            blocks.append(Words(name="Refuted by", text=material.job.mask(finding.refuted_by)))
        notes = (ONE_OF_SEVERAL.format(host=finding.host) if group.others else "", material.job.mask(finding.note))
        if any(notes):
            blocks.append(Words(name="Note", text=" ".join(filter(None, notes))))
        if finding.numbers:
            blocks.append(_build_numbers_table(number, group))
        blocks += slow_rank_traces.build_blocks(material, number, finding)
    return [*blocks, *_describe_unjudged(material)]


def label_finding(group: FoldedFinding, *, restarted: bool = False) -> str:
    """Return "CPUBottleneck (cpu, host algo-1)", "DataWait (loader, hosts algo-1, algo-2)".

    The attempt stands with it if the job was *restarted*.
    """
    finding = group.finding
    rank = "" if finding.rank is None else f"rank {finding.rank}"
    attempt = f"attempt {finding.attempt}" if restarted or finding.attempt else ""
    details = ", ".join(filter(None, (finding.subject, rank, group.hosts, attempt)))
    return f"{finding.rule} ({details})" if details else finding.rule


def choose_tone(finding: Finding) -> Tone:
    """Return the tone of a finding; one that may stop a job is an error."""
    return {"record": "plain", "warn": "warn", "notify": "warn", "stop": "bad"}[finding.action]  # type: ignore[return-value]


def _describe_nothing(material: Material) -> Words:
    """Return that no rule found anything, or why none could look."""
    if not material.samples and not material.steps:
        return Words(text=material.why_unmeasured)
    if material.job.status == "running":
        return Words(text=NONE_WHILE_IT_RUNS)
    judging = material.diagnosis.judging
    return Words(text=NONE.format(count=count_words(judging, "rule")) if judging else NONE_COULD)


def _describe_unjudged(material: Material) -> list[Block]:
    """Return which rules could not judge the job, and why."""
    groups = material.diagnosis.unjudged
    if not groups or not (material.samples or material.steps):
        return []
    reasons = "; ".join(f"{', '.join(group.rules)}: {group.reason}" for group in groups)
    return [Words(name="Could not judge", text=f"{reasons}.")]


def _describe_finding(material: Material, group: FoldedFinding) -> Words:
    finding, start_s = group.finding, material.start_s
    window = f"from {format_utc(finding.start_s)}, for {format_duration(finding.end_s - finding.start_s)}"
    if start_s is not None and finding.start_s >= start_s:
        window += f" ({format_duration(finding.start_s - start_s)} after the start)"
    duration_s = None if start_s is None or material.end_s is None else material.end_s - start_s
    share = describe_share(group, duration_s)
    cost = f" It cost {share}." if share else ""
    live_note = "; found while the job ran" if any(folded_finding.live for folded_finding in group.all) else ""
    return Words(
        name=label_finding(group, restarted=bool(material.job.restarts)),
        text=f"{material.job.mask(finding.text)}{cost} (Window: {window}{live_note}.)",
        tone=choose_tone(finding),
        advice=finding.change,
    )


def _build_numbers_table(number: int, group: FoldedFinding) -> Table:
    finding = group.finding
    limited = any(number.limit is not None for number in finding.numbers)
    ends = ("least", "greatest") if group.others else ()
    names = ("number", "value", *ends, *(("limit",) if limited else ()), "how it was made")
    return make_table(
        f"finding-{number}",
        f"Numbers of {finding.rule}",
        names,
        (_build_row(group, finding_number, limited) for finding_number in finding.numbers),
        note=f"Value: of {finding.host}. Least and greatest: of {group.hosts}." if group.others else "",
    )


def _build_row(group: FoldedFinding, number: Number, limited: bool) -> tuple[str | None, ...]:
    values = group.of_all(number)
    ends = (min(values), max(values)) if group.others else ()
    cells = [format_value(value, number.unit) for value in (number.value, *ends)]
    limit = None if number.limit is None else format_value(number.limit, number.unit)
    return number.name, *cells, *((limit,) if limited else ()), number.formula
