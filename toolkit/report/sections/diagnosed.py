"""The findings of a job: those of the running monitor, and those of the same rules over the files that it left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolkit.diagnosis import configuration, files, slow_rank
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.job import diagnose, merged
from toolkit.diagnosis.rule import Configuration
from toolkit.errors import ContractError
from toolkit.jobs.data import HostData, JobData
from toolkit.series import findings
from toolkit.series.debugger_names import files_of
from toolkit.series.finding import Finding


def live(job: JobData) -> tuple[Finding, ...]:
    """Return what the monitors of *job* found while it ran, by time."""
    return tuple(sorted((each for host in job.hosts for each in _live(host)), key=lambda each: each.start_s))


def after_the_fact(job: JobData) -> tuple[Finding, ...]:
    """Return what the rules find in the files of *job*, and what the monitors found besides, by time. Needs numpy."""
    measured = [host for host in job.hosts if host.monitor.is_dir() or host.metrics.is_file() or files_of(host.output)]
    if not measured:
        return ()
    rules = _rules(measured[0].monitor / "monitor.json")
    found = live(job)
    compared = dict(filter(None, map(slow_rank.pair, found)))
    return tuple(merged(diagnose([_evidence(host, compared) for host in measured], rules), found))


def _live(host: HostData) -> tuple[Finding, ...]:
    try:
        return findings.read(host.monitor / findings.NAME)
    except OSError:
        return ()  # The rules over the files find the same again.


def _evidence(host: HostData, compared: Mapping[int, int]) -> Evidence:
    began = min((each.started_ns for each in host.outcome.exits if each.started_ns), default=0) if host.outcome else 0
    evidence = files.read(host.monitor, host.metrics, host=host.name, start_s=began / 1e9 if began else None)
    evidence.host = evidence.host or host.name
    evidence.compared = compared
    return evidence


def _rules(path: Path) -> tuple[Configuration, ...]:
    """Return the rules that the job asked for, as monitor.json keeps them; else those that need no choice."""
    raw: Any = None
    try:
        told = msgspec.json.decode(path.read_bytes())
        raw = told.get("rules") if isinstance(told, dict) else None
        return configuration.read(raw or None, str(path)).configurations
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ContractError):
        return configuration.read(None, str(path)).configurations
