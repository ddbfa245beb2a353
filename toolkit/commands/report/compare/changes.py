"""Pure: compares findings: those that another job cleared, those still there, and those that are new."""

from collections.abc import Sequence

from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Block, Words, make_table
from toolkit.diagnosis.folding import FoldedFinding
from toolkit.folders import is_file, named_elsewhere
from toolkit.series.finding import Finding

Key = tuple[str, str]
NO_MONITOR = "{job} has no findings file: its monitor was off (TOOLKIT_MONITOR=1 turns it on)."


def build_blocks(first: ComparedJob, others: Sequence[ComparedJob]) -> list[Block]:
    """Return the table of findings, by rule and subject."""
    jobs = (first, *others)
    blocks: list[Block] = [Words(text=NO_MONITOR.format(job=job.label)) for job in jobs if not _was_monitored(job)]
    first_findings = _fold_by_key(first.findings)
    rows: list[tuple[str | float | int | None, ...]] = []
    for other in others:
        other_findings = _fold_by_key(other.findings)
        for key in sorted(first_findings.keys() | other_findings.keys()):
            gone = "cleared" if _could_show(other) else "not known"
            state = (
                "still there"
                if key in first_findings and key in other_findings
                else gone
                if key in first_findings
                else "new"
            )
            folded = other_findings.get(key) or first_findings[key]
            source = other if key in other_findings else first
            hosts = f" ({folded.hosts})" if len(source.job.hosts) > 1 and folded.hosts else ""
            rows.append((other.label, " ".join(key).strip(), state, folded.finding.text + hosts))
    if rows:
        columns = ("job", "finding", "state", "what was found")
        note = (
            f"Findings are the same if rule and subject are. Cleared: only {first.label} has it, and the text is from"
            " there. Not known: the job was not monitored, made no steps, or did not succeed."
        )
        blocks.append(make_table("findings-table", "Findings", columns, rows, note=note))
    elif not blocks:
        blocks.append(Words(text="Neither job has a finding.", tone="good"))
    return blocks


def list_cleared_rules(first: ComparedJob, other: ComparedJob) -> list[str]:
    """Return the rules whose findings only *first* has, sorted; none where *other* could not show them."""
    if not _could_show(other):
        return []
    after = _fold_by_key(other.findings)
    return sorted({rule for rule, subject in _fold_by_key(first.findings) if (rule, subject) not in after})


def _could_show(job: ComparedJob) -> bool:
    """Return whether a finding that *job* lacks is really gone: rules look at a monitored job that made its steps."""
    return _was_monitored(job) and bool(job.step_s) and job.job.status == "succeeded"


def _was_monitored(job: ComparedJob) -> bool:
    return any(is_file(host.monitor / "monitor.json", named_elsewhere) for host in job.job.hosts)


def _fold_by_key(findings: Sequence[Finding]) -> dict[Key, FoldedFinding]:
    """Return the newest finding of each rule and subject, with those of other hosts."""
    same: dict[Key, list[Finding]] = {}
    for finding in findings:
        same.setdefault((finding.rule, finding.subject), []).insert(0, finding)
    return {key: FoldedFinding(finding=newest, others=tuple(others)) for key, (newest, *others) in same.items()}
