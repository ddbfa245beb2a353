"""Reports use without judgement: OverallSystemUsage (columns), OverallFrameworkMetrics (phases of the steps)."""

from collections.abc import Iterator
from typing import Any

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.numbers import measured, quantile
from toolkit.diagnosis.phases import phases
from toolkit.records import Record
from toolkit.series.finding import Finding

_RESOURCES = (
    "cpu/all/used_percent",
    "cpu/all/iowait_percent",
    "memory/container/used_percent",
    "network/all/received_bytes_per_s",
    "network/all/sent_bytes_per_s",
    "disk/all/read_bytes_per_s",
    "disk/all/write_bytes_per_s",
)
_OF_GPUS = ("used_percent", "memory_used_percent", "sm_active_percent")


class Usage(Record, frozen=True, kw_only=True):
    """Distribution of the values of one quantity."""

    name: str
    """A column of the samples or a part of a step; the figures have its unit."""
    max: float
    p99: float
    p95: float
    p50: float
    min: float
    total: float
    """The sum of all values."""
    count: int
    """The number of values."""


def find_nothing(_evidence: Evidence, _parameters: Any, _given: frozenset[str]) -> Iterator[Finding]:
    """Find nothing: these rules measure, and never trigger (as in smdebug-rulesconfig 1.0.1)."""
    return iter(())


def system_usage(evidence: Evidence) -> list[Usage]:
    """Return how much of each resource was used, of GPUs by number."""
    columns = {name: evidence.column(name) for name in _RESOURCES}
    for metric in _OF_GPUS:
        columns.update({f"gpu/{name}/{metric}": values for name, values in evidence.columns("gpu", metric).items()})
    return [_usage(name, measured(values)) for name, values in columns.items() if measured(values)]


def framework_metrics(evidence: Evidence) -> list[Usage]:
    """Return how long each phase of a step took, over all steps of all ranks."""
    by_name: dict[str, list[float]] = {}
    for phase in phases(evidence):
        by_name.setdefault(phase.name, []).extend(measured(phase.seconds))
    return [_usage(name, seconds) for name, seconds in by_name.items() if seconds]


def _usage(name: str, values: list[float]) -> Usage:
    return Usage(
        name=name,
        max=max(values),
        p99=quantile(values, 0.99),
        p95=quantile(values, 0.95),
        p50=quantile(values, 0.5),
        min=min(values),
        total=sum(values),
        count=len(values),
    )
