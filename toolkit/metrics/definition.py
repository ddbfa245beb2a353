"""Metric definitions: a name and a regex whose first group is the value, as in the platform's MetricDefinitions."""

import re
from collections.abc import Sequence

from toolkit import paths
from toolkit.errors import ContractError
from toolkit.records import Record

STEP = "step"
# CreateTrainingJob takes 500. Compiling takes 10 us a character, before the script starts: 2 MB took 20 s.
LONGEST_REGEX = 20_000
_LIST_HINT = 'Write a list of {"Name": ..., "Regex": ...}, or an object of name: regex.'


class Definition(Record, frozen=True, kw_only=True):
    """A compiled definition."""

    name: str  # The metric's name.
    regex: str  # As the job has it.
    pattern: re.Pattern[str]  # The compiled regex.
    value_group: int = 1  # The first group that is not named step.
    step_group: int | None = None  # The group that is named step, None if there is none.


def pairs(document: object, source: str) -> tuple[tuple[str, str], ...]:
    """Return the (name, regex) pairs of *document*, decoded JSON: a list of {"Name", "Regex"}, or name -> regex.

    None means no definitions (the platform writes an empty document for a job without them). Other keys are ignored.

    Raises:
        ContractError: any other shape, with its place in *source*.
    """
    if document is None:
        return ()
    if isinstance(document, dict):
        return tuple(_pair(name, regex, f"$.{name}", source) for name, regex in document.items())
    if isinstance(document, list):
        return tuple(_listed(entry, f"$[{index}]", source) for index, entry in enumerate(document))
    raise ContractError(f"$: expected a list or an object, found {_kind(document)}", where=source, hint=_LIST_HINT)


def compile(definitions: Sequence[tuple[str, str]], source: str) -> tuple[Definition, ...]:
    """Return *definitions*, (name, regex) pairs from *source*, ready to search with.

    Raises:
        ContractError: a regex that does not compile (with the position) or has no group to take the value from.
    """
    return tuple(_compiled(name, regex, source) for name, regex in definitions)


def _compiled(name: str, regex: str, source: str) -> Definition:
    import warnings  # Its import costs start-up time, which a job without metrics need not pay.

    if not name:
        raise ContractError(f"expected a metric's name, found none for {regex!r}", where=source)
    if len(regex) > LONGEST_REGEX:
        raise ContractError(
            f"metric {name[:80]!r}: expected a regular expression of at most {LONGEST_REGEX:,} characters, found"
            f" {len(regex):,}",
            where=source,
            hint="Python takes seconds to compile a longer one. Match the text around the number alone.",
        )
    try:
        with warnings.catch_warnings():
            # "Possible nested set" and the like would only be noise on stderr.
            warnings.simplefilter("ignore")
            pattern = re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise ContractError(
            f"metric {name!r}: expected a regular expression, found {regex!r}: {reason}",
            where=source,
            hint="Python's `re` syntax applies; write a literal bracket or dot with a backslash.",
        ) from None
    if pattern.groups == 0:
        raise ContractError(
            f"metric {name!r}: expected a group that holds the value, found none in {regex!r}",
            where=source,
            hint="Put parentheses around the number, as in loss=([-+0-9.eE]+).",
        )
    step_group = pattern.groupindex.get(STEP)
    value_group = 2 if step_group == 1 and pattern.groups > 1 else 1
    return Definition(
        name=paths.shown_text(name),  # JSON may write half of a surrogate pair, which no file of metrics can hold.
        regex=regex,
        pattern=pattern,
        value_group=value_group,
        step_group=None if step_group == value_group else step_group,
    )


def _listed(entry: object, place: str, source: str) -> tuple[str, str]:
    if not isinstance(entry, dict):
        raise ContractError(f"{place}: expected an object, found {_kind(entry)}", where=source, hint=_LIST_HINT)
    for key in ("Name", "Regex"):
        if key not in entry:
            raise ContractError(f"{place}: expected a key {key!r}, found none", where=source, hint=_LIST_HINT)
    return _pair(entry["Name"], entry["Regex"], place, source)


def _pair(name: object, regex: object, place: str, source: str) -> tuple[str, str]:
    if not isinstance(name, str) or not name:
        raise ContractError(f"{place}: expected a name, found {_kind(name)}", where=source, hint=_LIST_HINT)
    if not isinstance(regex, str):
        raise ContractError(f"{place}: expected a regex as a string, found {_kind(regex)}", where=source)
    return name, regex


def _kind(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return "null" if value is None else repr(value)
