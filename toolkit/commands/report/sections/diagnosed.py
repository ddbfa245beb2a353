"""Reads and makes the findings of a job: the running monitor's, and those of the same rules over the files it left."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolkit.commands.jobs.data import HostData, JobData
from toolkit.diagnosis import configuration, files, slow_rank
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.job import diagnose, merge
from toolkit.diagnosis.rule import Configuration
from toolkit.diagnosis.unjudged import UnjudgedRules, count_judging, list_unjudged
from toolkit.errors import ContractError
from toolkit.files import read as read_document
from toolkit.records import Record
from toolkit.series import findings
from toolkit.series.debugger_names import files_of
from toolkit.series.finding import Finding

# The rules look at the newest attempts of a job; of earlier ones the page has what the monitors found while they ran.
MOST_ATTEMPTS = 8


def read_live_findings(job: JobData) -> tuple[Finding, ...]:
    """Return what the monitors of *job* found while it ran, by time."""
    return tuple(
        sorted(
            (finding for host in job.hosts for finding in _read_host_findings(host)),
            key=lambda finding: finding.start_s,
        )
    )


class DiagnosedJob(Record, frozen=True, kw_only=True):
    """The findings of a job, and the rules that could not judge it."""

    findings: tuple[Finding, ...] = ()
    """By time."""
    unjudged: tuple[UnjudgedRules, ...] = ()
    """The rules that could not judge the newest attempt."""
    judging: int = 0
    """The number of those that could."""


def diagnose_job(job: JobData) -> DiagnosedJob:
    """Return what the rules find in the files of *job*, and what the monitors found besides. Needs numpy."""
    measured = [host for host in job.hosts if host.is_measured or files_of(host.output)]
    if not measured:
        return DiagnosedJob()
    live_findings = read_live_findings(job)
    rules = _read_rules(measured[0].monitor / "monitor.json")
    attempts = _read_attempts(job, measured, live_findings)
    judged = {
        number: max(evidence.end_s for evidence in hosts) - min(evidence.start_s for evidence in hosts)
        for number, hosts in attempts.items()
        if all(evidence.is_over and (evidence.times_s or evidence.steps) for evidence in hosts)
    }
    newest = attempts[max(attempts)]
    failures: dict[str, str] = {}
    whole_findings = _apply(attempts, rules, failures)
    unjudged = list_unjudged(newest, rules, failures)
    silent = {rule for group in unjudged for rule in group.rules}
    return DiagnosedJob(
        findings=tuple(merge(whole_findings, live_findings, judged, silent)),
        unjudged=tuple(unjudged),
        judging=count_judging(rules, unjudged),
    )


def apply_rules(
    job: JobData, hosts: Sequence[HostData], rules: Sequence[Configuration]
) -> tuple[list[Finding], list[UnjudgedRules]]:
    """Return the findings of *rules* in the files of *hosts*, each attempt by itself, and which could not judge."""
    attempts = _read_attempts(job, hosts, ())
    failures: dict[str, str] = {}
    rule_findings = _apply(attempts, rules, failures)
    return rule_findings, list_unjudged(attempts[max(attempts)], rules, failures)


def _read_attempts(
    job: JobData, hosts: Sequence[HostData], live_findings: Sequence[Finding]
) -> dict[int, list[Evidence]]:
    """Return the evidence of each host in each attempt, by its number."""
    attempts = {}
    for attempt in _list_attempts(job)[-MOST_ATTEMPTS:]:
        live_then = (finding for finding in live_findings if finding.attempt == attempt.number)
        compared = dict(filter(None, map(slow_rank.pair, live_then)))
        attempts[attempt.number] = [_read_evidence(job, host, attempt, compared) for host in hosts]
        _name_neighbours(attempts[attempt.number])
    return attempts


def _name_neighbours(hosts: Sequence[Evidence]) -> None:
    """Tell each of *hosts* which others run on its machine, as those of `toolkit run` do: their use is the job's."""
    for evidence in hosts:
        boot_id = evidence.machine.boot_id
        evidence.neighbours = [
            other for other in hosts if other is not evidence and boot_id and other.machine.boot_id == boot_id
        ]


def _apply(
    attempts: Mapping[int, Sequence[Evidence]], rules: Sequence[Configuration], failures: dict[str, str]
) -> list[Finding]:
    return [
        msgspec.structs.replace(finding, attempt=number)
        for number, hosts in attempts.items()
        for finding in diagnose(hosts, rules, failures)
    ]


class _Attempt(Record, frozen=True, kw_only=True):
    """An attempt of the ranks, seconds since the epoch. `alone`: there was no other."""

    number: int = 0
    start_s: float | None = None
    end_s: float | None = None
    alone: bool = True


def _list_attempts(job: JobData) -> list[_Attempt]:
    """Return the attempts of *job*. Each but the last ended with its failure; the next began then, or later."""
    restarts = sorted((restart for restart in job.restarts if restart.failed_ns), key=lambda restart: restart.attempt)
    if not restarts:
        return [_Attempt()]
    ends_s = [restart.failed_ns / 1e9 for restart in restarts]
    numbers = [restarts[0].attempt - 1, *(restart.attempt for restart in restarts)]
    starts_s = [job.start_s, *ends_s]
    return [
        _Attempt(number=number, start_s=start_s, end_s=end_s, alone=False)
        for number, start_s, end_s in zip(numbers, starts_s, [*ends_s, None], strict=True)
    ]


def _read_host_findings(host: HostData) -> tuple[Finding, ...]:
    try:
        return findings.read(host.monitor / findings.NAME)
    except OSError:
        return ()  # The rules over the files find the same again.


def _read_evidence(job: JobData, host: HostData, attempt: _Attempt, compared: Mapping[int, int]) -> Evidence:
    began = (
        min((process.started_ns for process in host.outcome.exits if process.started_ns), default=0)
        if host.outcome
        else 0
    )
    is_last = attempt.end_s is None
    evidence = files.read(
        host.monitor,
        host.metrics,
        host=host.name,
        start_s=began / 1e9 if began and is_last else attempt.start_s,
        end_s=attempt.end_s,
        is_over=job.status != "running" or not is_last,
        attempt=None if attempt.alone else attempt.number,
    )
    evidence.host = evidence.host or host.name
    evidence.compared = compared
    return evidence


def _read_rules(path: Path) -> tuple[Configuration, ...]:
    """Return the rules that the job asked for, as monitor.json keeps them; else those that need no choice."""
    raw: Any = None
    try:
        document = msgspec.json.decode(read_document(path))
        raw = document.get("rules") if isinstance(document, dict) else None
        return configuration.read(raw or None, str(path)).configurations
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ContractError, RecursionError):
        return configuration.read(None, str(path)).configurations
