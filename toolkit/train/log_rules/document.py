"""Reads a document of log rules in TOML, JSON or YAML (docs/rules.md).

The keys follow the log monitoring of the HyperPod training operator (`logMonitoringConfiguration`,
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-eks-operator-usage.html, seen 2026-11), the
actions those of the log policies of Determined 0.38.
"""

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from toolkit.errors import ContractError, did_you_mean
from toolkit.job.file.text_formats import parse
from toolkit.records import Record, convert
from toolkit.train.log_rules.event import Action

Operator = Literal["gt", "gteq", "lt", "lteq", "eq"]
# The upper end, 115 days, is above every platform's limit for a job.
Seconds = Annotated[float, msgspec.Meta(gt=0, le=10_000_000)]
Text = Annotated[str, msgspec.Meta(min_length=1)]

# By key: which values it takes, as errors say it.
EXPECTED = {
    "name": "a text",
    "pattern": "a regular expression as a text",
    "expected_start_within_s": "seconds, above 0, at most 10,000,000",
    "expected_again_every_s": "seconds, above 0, at most 10,000,000",
    "threshold": "a number",
    "operator": "one of 'gt', 'gteq', 'lt', 'lteq', 'eq'",
    "data_points": "a whole number, 1 or more",
    "fault_on_match": "true or false",
    "stop_pattern": "a regular expression as a text",
    "action": "one of 'label', 'warn', 'stop', 'no-retry'",
    "message": "a text",
}
# Keys of HyperPod job documents, and our keys for them.
_HYPERPOD = {
    "logPattern": "pattern",
    "expectedStartCutOffInSeconds": "expected_start_within_s",
    "expectedRecurringFrequencyInSeconds": "expected_again_every_s",
    "metricThreshold": "threshold",
    "metricEvaluationDataPoints": "data_points",
    "faultOnMatch": "fault_on_match",
    "stopPattern": "stop_pattern",
}
_SHAPE_HINT = "Write [[rules]] tables in TOML, or a list of objects in JSON or YAML."


class Rule(Record, frozen=True, kw_only=True):
    """One rule, checked: its patterns compile, and it checks something. docs/rules.md explains each key.

    `fault_on_match` None: not given; it is then true if the rule has no other check.
    """

    name: Text
    pattern: Text
    expected_start_within_s: Seconds | None = None
    expected_again_every_s: Seconds | None = None
    threshold: float | None = None
    operator: Operator | None = None
    data_points: Annotated[int, msgspec.Meta(ge=1)] = 1
    fault_on_match: bool | None = None
    stop_pattern: Text | None = None
    action: Action = "warn"
    message: str = ""

    @property
    def has_times(self) -> bool:
        """True if the rule has a deadline."""
        return self.expected_start_within_s is not None or self.expected_again_every_s is not None

    @property
    def faults(self) -> bool:
        """True if a match alone is an event."""
        if self.fault_on_match is None:
            return not self.has_times and self.threshold is None
        return self.fault_on_match


def read(content: bytes, source: str) -> tuple[Rule, ...]:
    """Return the rules of the document *content*: JSON or YAML by the name *source*, else TOML.

    Raises:
        ContractError: it is no such document, or a rule of it is not valid; the text names file, rule and key.
    """
    document = parse(content, PurePath(source))
    rules = tuple(_rule(entry, number, source) for number, entry in enumerate(_entries(document, source), 1))
    names = [rule.name for rule in rules]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ContractError(f"rule {name!r}: expected one rule of this name, found two", where=source)
    return rules


def compiled(regex: str) -> re.Pattern[str]:
    """Return *regex* compiled.

    Raises:
        re.error: it is no regular expression (OverflowError, RecursionError: a repeat too large, a nesting too deep).
    """
    import warnings

    with warnings.catch_warnings():
        # "Possible nested set" and the like would be noise on stderr.
        warnings.simplefilter("ignore")
        return re.compile(regex)


def _entries(document: Any, source: str) -> list[Any]:
    if isinstance(document, dict):
        for key in map(str, document):
            if key != "rules":
                hint = did_you_mean(key, ("rules",)) or _SHAPE_HINT
                raise ContractError(f"expected the key 'rules' alone, found {key!r}", where=source, hint=hint)
        document = document.get("rules", [])
    if not isinstance(document, list):
        raise ContractError(f"expected a list of rules, found {_kind(document)}", where=source, hint=_SHAPE_HINT)
    if not document:
        raise ContractError("expected at least one rule, found none", where=source, hint=_SHAPE_HINT)
    return document


def _rule(entry: Any, number: int, source: str) -> Rule:
    """Return the *number*th rule of the document (from 1), checked key by key."""
    if not isinstance(entry, dict):
        raise ContractError(f"rule {number}: expected a table of keys, found {_kind(entry)}", where=source)
    name = entry.get("name")
    place = f"rule {name!r}" if isinstance(name, str) and name else f"rule {number}"
    for key in map(str, entry):
        _check_key(key, place, source)
    for key in ("name", "pattern"):
        if key not in entry:
            raise ContractError(f"{place}: {key}: expected {EXPECTED[key]}, found none", where=source)
    hints = get_type_hints(Rule, include_extras=True)
    values = {str(key): _value(str(key), value, hints, place, source) for key, value in entry.items()}
    rule = Rule(**values)
    _check(rule, place, source)
    return rule


def _check_key(key: str, place: str, source: str) -> None:
    if key in EXPECTED:
        return
    hint = f"Did you mean {_HYPERPOD[key]}?" if key in _HYPERPOD else did_you_mean(key, EXPECTED)
    message = f"{place}: expected one of the keys {', '.join(EXPECTED)}, found {key!r}"
    raise ContractError(message, where=source, hint=hint or "Correct the key or remove it.")


def _value(key: str, value: Any, hints: Mapping[str, Any], place: str, source: str) -> Any:
    try:
        # null is no value.
        converted = convert(value, hints[key], source) if value is not None else None
    except ContractError:
        converted = None
    if converted is None or (isinstance(converted, float) and not math.isfinite(converted)):
        raise ContractError(f"{place}: {key}: expected {EXPECTED[key]}, found {_kind(value)}", where=source)
    return converted


def _check(rule: Rule, place: str, source: str) -> None:
    """Check values that depend on each other."""
    groups = _groups("pattern", rule.pattern, place, source)
    if rule.stop_pattern is not None:
        _groups("stop_pattern", rule.stop_pattern, place, source)
    if rule.threshold is not None and groups == 0:
        raise ContractError(
            f"{place}: pattern: expected a group that holds the value to compare, found none in {rule.pattern!r}",
            where=source,
            hint="Put parentheses around the number, as in loss=([-+0-9.eE]+).",
        )
    if (rule.threshold is None) != (rule.operator is None):
        missing, present = ("threshold", "operator") if rule.threshold is None else ("operator", "threshold")
        raise ContractError(
            f"{place}: {missing}: expected {EXPECTED[missing]} beside {present!r}, found none", where=source
        )
    if rule.data_points != 1 and rule.threshold is None:
        raise ContractError(f"{place}: data_points: expected a 'threshold' beside it, found none", where=source)
    if not (rule.faults or rule.has_times or rule.threshold is not None):
        raise ContractError(
            f"{place}: fault_on_match: expected true or another check, found false and no check",
            where=source,
            hint="Leave it out, or add expected_start_within_s, expected_again_every_s or threshold.",
        )


def _groups(key: str, regex: str, place: str, source: str) -> int:
    try:
        return compiled(regex).groups
    except (re.error, OverflowError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise ContractError(
            f"{place}: {key}: expected a regular expression, found {regex!r}: {reason}",
            where=source,
            hint="Python's `re` syntax applies; write a literal bracket or dot with a backslash.",
        ) from None


def _kind(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return repr(value)
