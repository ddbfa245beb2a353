"""Pure: the rules of a document at work: lines and the time in, findings out.

One Monitor watches one job (or one start of it: after a restart, make a new one). It waits for nothing: whoever feeds
it lines also calls `tick` when the time that `next_s` names has passed. A call of `tick` too few or too many changes
nothing but when a lateness is told, never whether, nor what time it bears.

An occasion is told once, not with every line:
- matched: the first match; again only after a minute (QUIET_S) in which no line matched, on any rank.
- late start: once.
- late again: once for each gap; the next match begins anew.
- threshold: with the last of `data_points` values in a row, on each rank for itself; again after as many in a row that
  were in order.

A regex that costs too much is switched off (metrics/capture.py). Its rule then sleeps, as after its stop_pattern:
otherwise lines that nobody looks for any more would be missed for ever, and a healthy job stopped for it.
"""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Literal

from toolkit.metrics.capture import Search, Watch
from toolkit.metrics.definition import Definition
from toolkit.metrics.sample import number
from toolkit.records import Record
from toolkit.rules.document import Rule, compiled
from toolkit.rules.finding import Finding, Kind
from toolkit.rules.row import Row

# So long must a rule be without a match before the next one is a new occasion.
QUIET_S = 60.0
# `next_s` names a moment after the deadline, not the deadline: what comes just in time is in time.
MARGIN_S = 0.001
# Characters of a line that a finding shows.
SHOWN = 500

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
}
SIGNS = {"gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "eq": "="}


class Standing(Record, frozen=True, kw_only=True):
    """How a rule stands: lines that matched, findings so far, and whether it still looks on.

    `state`: waiting (no line matched yet), watching, asleep (its stop_pattern matched), off (a regex cost too much).
    """

    rule: Rule
    matches: int
    findings: int
    state: Literal["waiting", "watching", "asleep", "off"]


class Monitor:
    """Watches the lines of a job's ranks by *rules*.

    Times are seconds of one clock, whichever; *start_s* is when the job began. *watch* interrupts endless matches (a
    Guard of metrics/guard.py); *warn* takes one line of text for each regex that is switched off.
    """

    def __init__(
        self, rules: Sequence[Rule], *, start_s: float, warn: Callable[[str], None], watch: Watch | None = None
    ) -> None:
        self._watched = [_Watched(rule, start_s) for rule in rules]
        self._now_s = start_s
        definitions: list[Definition] = []
        # By place among the definitions: whose it is, and whether it is the stop_pattern. A rule's own pattern comes
        # first, so that a line that matches both still counts.
        self._roles: list[tuple[_Watched, bool]] = []
        for watched in self._watched:
            rule = watched.rule
            definitions.append(_definition(rule.name, rule.pattern))
            self._roles.append((watched, False))
            if rule.stop_pattern is not None:
                definitions.append(_definition(f"{rule.name}: stop_pattern", rule.stop_pattern))
                self._roles.append((watched, True))
        self._search = Search(definitions, warn=warn, watch=watch, noun="rule")

    def lines(self, block: bytes, *, rank: int | None, now_s: float) -> list[Finding]:
        """Return what is found in *block*, whole lines of *rank* that came at *now_s*, and what was late before it."""
        findings = self.tick(now_s)
        ended = len(self._search.ended)
        for start, index, match in self._search.matches(block):
            watched, is_stop = self._roles[index]
            # What follows the last newline is no line, but ".*" matches it.
            if start == len(block) or watched.state in ("asleep", "off"):
                continue
            if is_stop:
                watched.sleep("asleep")
            else:
                findings += watched.matched(match, rank, self._now_s)
        if len(self._search.ended) != ended:
            for index in self._search.ended:
                self._roles[index][0].sleep("off")
        return findings

    def tick(self, now_s: float) -> list[Finding]:
        """Return what has become late by *now_s*, the earliest first. A clock that goes back is taken as standing."""
        self._now_s = now_s = max(now_s, self._now_s)
        late = [watched for watched in self._watched if watched.due_s is not None and watched.due_s < now_s]
        return sorted((watched.late() for watched in late), key=lambda finding: finding.time_s)

    def next_s(self, now_s: float) -> float | None:
        """Return the seconds from *now_s* until `tick` may find something, None if only lines can bring that about."""
        due = [watched.due_s for watched in self._watched if watched.due_s is not None]
        return max(min(due) + MARGIN_S - max(now_s, self._now_s), 0.0) if due else None

    def standings(self) -> tuple[Standing, ...]:
        """Return how the rules stand, in the document's order."""
        return tuple(
            Standing(rule=each.rule, matches=each.matches, findings=each.findings, state=each.state)
            for each in self._watched
        )


class _Watched:
    """One rule and what it has seen."""

    def __init__(self, rule: Rule, start_s: float) -> None:
        self.rule = rule
        self.matches = 0
        self.findings = 0
        self.state: Literal["waiting", "watching", "asleep", "off"] = "waiting"
        within_s = rule.expected_start_within_s
        self.due_s = None if within_s is None else start_s + within_s
        self._newest_s: float | None = None
        self._rows: dict[int | None, Row] = {}

    def matched(self, match: re.Match[str], rank: int | None, now_s: float) -> list[Finding]:
        """Count a line that matched; return what it brings about."""
        rule = self.rule
        is_occasion = self._newest_s is None or now_s - self._newest_s >= QUIET_S
        self.matches += 1
        self.state = "watching"
        self._newest_s = now_s
        self.due_s = None if rule.expected_again_every_s is None else now_s + rule.expected_again_every_s
        value = number(match[1]) if match.re.groups else None
        findings = []
        if rule.faults and is_occasion:
            findings.append(self._finding("matched", _shown(match), now_s, rank, value))
        if value is not None and self._is_beyond(value, rank):
            findings.append(self._finding("threshold", _shown(match), now_s, rank, value))
        return findings

    def late(self) -> Finding:
        """Return the finding that its time has passed."""
        rule, due_s = self.rule, self.due_s
        assert due_s is not None
        self.due_s = None
        if self.matches == 0:
            return self._finding(
                "late start", f"no line matched within {rule.expected_start_within_s:g} s of the start", due_s
            )
        return self._finding("late again", f"no line matched for {rule.expected_again_every_s:g} s", due_s)

    def sleep(self, state: Literal["asleep", "off"]) -> None:
        """Look on no more."""
        self.state, self.due_s = state, None

    def _is_beyond(self, value: float, rank: int | None) -> bool:
        """True if *value* completes a row. NaN compares with nothing: it neither extends a row nor breaks it."""
        rule = self.rule
        if rule.threshold is None or rule.operator is None or value != value:
            return False
        row = self._rows.setdefault(rank, Row())
        return row.add(_COMPARE[rule.operator](value, rule.threshold), rule.data_points) and row.told

    def _finding(
        self, kind: Kind, text: str, time_s: float, rank: int | None = None, value: float | None = None
    ) -> Finding:
        self.findings += 1
        rule = self.rule
        return Finding(
            rule=rule.name,
            kind=kind,
            action=rule.action,
            text=text,
            time_s=time_s,
            rank=rank,
            value=value,
            message=rule.message,
        )


def _definition(name: str, regex: str) -> Definition:
    return Definition(name=name, regex=regex, pattern=compiled(regex))


def _shown(match: re.Match[str]) -> str:
    """Return the line that matched, of a long one the part where it did."""
    line = match.string.rstrip("\r\n")
    if len(line) <= SHOWN:
        return line
    start = max(min(match.start() - SHOWN // 4, len(line) - SHOWN), 0)
    return ("..." if start else "") + line[start : start + SHOWN] + ("..." if start + SHOWN < len(line) else "")
