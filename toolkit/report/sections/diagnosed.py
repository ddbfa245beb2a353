"""The findings of a job: those of the running monitor, and those of the same rules over the files that it left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from toolkit import diagnosis
from toolkit.diagnosis import configuration, files
from toolkit.errors import ContractError
from toolkit.jobs.data import HostData, JobData
from toolkit.series import findings
from toolkit.series.finding import Finding


def live(job: JobData) -> tuple[Finding, ...]:
    """Return what the monitors of *job* found while it ran, by time."""
    return _by_time(each for host in job.hosts for each in _live(host))


def after_the_fact(job: JobData) -> tuple[Finding, ...]:
    """Return what the rules find in the files of *job*, and what the monitors found besides, by time.

    A finding about the same as a live one takes its place: it has seen the whole job. Needs numpy.
    """
    return _by_time(each for host in job.hosts for each in _of_host(host))


def _of_host(host: HostData) -> Iterator[Finding]:
    found = {_subject(each): each for each in _live(host)}
    for each in _diagnosed(host):
        before = found.get(_subject(each))
        found[_subject(each)] = msgspec.structs.replace(
            each, host=each.host or host.name, live=before is not None and before.live
        )
    yield from found.values()


def _live(host: HostData) -> tuple[Finding, ...]:
    try:
        return findings.read(host.monitor / findings.NAME)
    except OSError:
        return ()  # The rules over the files find the same again.


def _diagnosed(host: HostData) -> list[Finding]:
    if not host.monitor.is_dir() and not host.metrics.is_file():
        return []
    began = min((each.started_ns for each in host.outcome.exits if each.started_ns), default=0) if host.outcome else 0
    evidence = files.read(host.monitor, host.metrics, start_s=began / 1e9 if began else None)
    return diagnosis.run(evidence, _rules(host.monitor / "monitor.json"))


def _rules(path: Path) -> "tuple[configuration.Configuration, ...]":
    """Return the rules that the job asked for, as monitor.json keeps them; else those that need no choice."""
    raw: Any = None
    try:
        told = msgspec.json.decode(path.read_bytes())
        raw = told.get("rules") if isinstance(told, dict) else None
        return configuration.read(raw or None, str(path)).configurations
    except (OSError, msgspec.DecodeError, ContractError):
        return configuration.read(None, str(path)).configurations


def _subject(finding: Finding) -> tuple[str, str, int | None]:
    return finding.rule, finding.subject, finding.rank


def _by_time(found: Iterator[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda each: (each.start_s, each.rule)))
