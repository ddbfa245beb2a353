"""The parts of a rule: a name, typed parameters with defaults, and a function that looks at evidence."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.span import EvidenceSpan
from toolkit.records import Record
from toolkit.series.finding import Finding, FindingAction, Number

# Where a rule is from: the Debugger's profiler rules, our own, the Debugger's rules on a loss.
Group = Literal["profiler", "toolkit", "loss"]

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Above = Annotated[float, msgspec.Meta(gt=0)]
SCAN_INTERVAL_US = 60_000_000


class RuleParameters(Record, frozen=True, kw_only=True):
    """The parameters of every rule. `scan_interval_us`: the least time between two looks at a running job."""

    scan_interval_us: Positive = SCAN_INTERVAL_US


# (evidence, parameters, names of the parameters that the user gave)
RuleFunction = Callable[[Evidence, Any, frozenset[str]], Iterator[Finding]]


class DiagnosisRule(Record, frozen=True, kw_only=True):
    """A row of the table of rules."""

    name: str  # As jobs name it.
    group: Group  # Where the rule is from.
    parameters: type[RuleParameters]  # A Record with the defaults.
    find: RuleFunction  # Yields the findings.
    default: bool = True  # ProfilerReport runs it.


class Configuration(Record, frozen=True, kw_only=True):
    """A rule that a job asked for. `user_set`: which parameters the user set."""

    rule: DiagnosisRule
    parameters: RuleParameters
    user_set: frozenset[str] = frozenset()
    action: FindingAction = "warn"


def number(name: str, value: float, formula: str = "", *, unit: str = "", limit: float | None = None) -> Number:
    """Return a measured value for a finding."""
    return Number(name=name, value=value, unit=unit, formula=formula, limit=limit)


def percent(name: str, value: float, formula: str, *, limit: float | None = None) -> Number:
    """Return a measured percentage for a finding."""
    return number(name, value, formula, unit="percent", limit=limit)


def make_finding(
    rule: str,
    evidence: Evidence,
    span: EvidenceSpan | None,
    text: str,
    *,
    numbers: Sequence[Number],
    refuted_by: str,
    change: str,
    subject: str = "",
    rank: int | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
    note: str = "",
    lost_s: float | None = None,
) -> Finding:
    """Return a finding about *span*, or about *start_s* to *end_s*, of the host of *evidence*; it cost *lost_s*."""
    notes = (note, span.note if span else "")
    return Finding(
        rule=rule,
        text=text,
        start_s=start_s if start_s is not None else span.start_s if span else evidence.start_s,
        end_s=end_s if end_s is not None else span.end_s if span else evidence.end_s,
        subject=subject,
        host=evidence.host,
        rank=rank,
        numbers=tuple(number for number in numbers if math.isfinite(number.value)),  # JSON has no NaN.
        refuted_by=refuted_by,
        change=change,
        lost_s=max(lost_s, 0.0) if lost_s is not None and math.isfinite(lost_s) else None,
        note=" ".join(note for note in notes if note),
    )
