"""Pure: applies the rules of a document: takes lines and the time, returns events.

A Monitor watches one attempt of a job; after a restart, make a new one. It never waits: the caller passes lines, and
calls `tick` when the seconds that `next_s` returned have passed. Missing or additional calls of `tick` change only when
a late line is reported, not whether, and not the time in its event.

An event is reported once, not with every line:
- matched: at the first match; again after a minute (QUIET_S) in which no line of any rank matched.
- late start: once.
- late again: once for each gap; the next match restarts the time.
- threshold: at the last of `data_points` values in a row, counted for each rank; again after as many good values in a
  row.

A regex that costs too much is switched off (metrics/capture.py). Its rule then ends, as after its stop_pattern:
otherwise it would miss lines that are no longer searched for, and stop a healthy job.
"""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Literal

from toolkit.masking.excerpt import beginning, end
from toolkit.metrics.capture import Search, Watch
from toolkit.metrics.definition import Definition
from toolkit.metrics.sample import number
from toolkit.records import Record
from toolkit.train.log_rules.document import Rule, compiled
from toolkit.train.log_rules.event import Kind, RuleEvent
from toolkit.train.log_rules.row import Row

# Seconds without a match after which the next match is reported again.
QUIET_S = 60.0
# `next_s` returns a time shortly after the deadline: a line that comes exactly at the deadline is in time.
MARGIN_S = 0.001
# Characters of a line that an event shows.
SHOWN = 500

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
}
SIGNS = {"gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "eq": "="}


class RuleState(Record, frozen=True, kw_only=True):
    """The state of a rule: lines that matched, events so far, and whether it is still applied.

    `state`: waiting (no line matched yet), watching, asleep (its stop_pattern matched), off (a regex cost too much).
    """

    rule: Rule
    matches: int
    events: int
    state: Literal["waiting", "watching", "asleep", "off"]


class PatternMonitor:
    """Watches the lines of a job's ranks by *rules*.

    All times are seconds of one clock, of any kind; *start_s*: when the job began. *watch* interrupts endless matches
    (a Guard of metrics/guard.py). *warn* takes one line of text for each regex that is switched off.
    """

    def __init__(
        self, rules: Sequence[Rule], *, start_s: float, warn: Callable[[str], None], watch: Watch | None = None
    ) -> None:
        self._watched = [_Watched(rule, start_s) for rule in rules]
        self._now_s = start_s
        definitions: list[Definition] = []
        # By index of the definition: its rule, and whether it is the stop_pattern. A rule's own pattern comes first, so
        # that a line that matches both still counts.
        self._roles: list[tuple[_Watched, bool]] = []
        for watched in self._watched:
            rule = watched.rule
            definitions.append(_definition(rule.name, rule.pattern))
            self._roles.append((watched, False))
            if rule.stop_pattern is not None:
                definitions.append(_definition(f"{rule.name}: stop_pattern", rule.stop_pattern))
                self._roles.append((watched, True))
        self._search = Search(definitions, warn=warn, watch=watch, noun="rule")

    def lines(self, block: bytes, *, rank: int | None, now_s: float) -> list[RuleEvent]:
        """Return the events of late lines, and those of *block*: whole lines of *rank* that came at *now_s*."""
        events = self.tick(now_s)
        count = len(self._search.ended)
        for start, index, match in self._search.matches(block):
            watched, is_stop = self._roles[index]
            # The empty text after the last newline is no line, but ".*" matches it.
            if start == len(block) or watched.state in ("asleep", "off"):
                continue
            if is_stop:
                watched.sleep("asleep")
            else:
                events += watched.matched(match, rank, self._now_s)
        if len(self._search.ended) != count:
            for index in self._search.ended:
                self._roles[index][0].sleep("off")
        return events

    def tick(self, now_s: float) -> list[RuleEvent]:
        """Return the lines that are late at *now_s*, the earliest first. A clock that is set back counts as stopped."""
        self._now_s = now_s = max(now_s, self._now_s)
        late = [watched for watched in self._watched if watched.due_s is not None and watched.due_s < now_s]
        return sorted((watched.late() for watched in late), key=lambda event: event.time_s)

    def next_s(self, now_s: float) -> float | None:
        """Return the seconds from *now_s* until `tick` may return an event, None if only lines can cause one."""
        due = [watched.due_s for watched in self._watched if watched.due_s is not None]
        return max(min(due) + MARGIN_S - max(now_s, self._now_s), 0.0) if due else None

    def states(self) -> tuple[RuleState, ...]:
        """Return the state of each rule, in the document's order."""
        return tuple(
            RuleState(rule=watched.rule, matches=watched.matches, events=watched.events, state=watched.state)
            for watched in self._watched
        )


class _Watched:
    """One rule, and what it has counted."""

    def __init__(self, rule: Rule, start_s: float) -> None:
        self.rule = rule
        self.matches = 0
        self.events = 0
        self.state: Literal["waiting", "watching", "asleep", "off"] = "waiting"
        within_s = rule.expected_start_within_s
        self.due_s = None if within_s is None else start_s + within_s
        self._newest_s: float | None = None
        self._rows: dict[int | None, Row] = {}

    def matched(self, match: re.Match[str], rank: int | None, now_s: float) -> list[RuleEvent]:
        """Count a line that matched; return its events."""
        rule = self.rule
        is_new = self._newest_s is None or now_s - self._newest_s >= QUIET_S
        self.matches += 1
        self.state = "watching"
        self._newest_s = now_s
        self.due_s = None if rule.expected_again_every_s is None else now_s + rule.expected_again_every_s
        value = number(match[1]) if match.re.groups else None
        events = []
        if rule.faults and is_new:
            events.append(self._event("matched", _shown(match), now_s, rank, value))
        if value is not None and self._is_beyond(value, rank):
            events.append(self._event("threshold", _shown(match), now_s, rank, value))
        return events

    def late(self) -> RuleEvent:
        """Return the event of a line that did not come in time."""
        rule, due_s = self.rule, self.due_s
        assert due_s is not None
        self.due_s = None
        if self.matches == 0:
            return self._event(
                "late start", f"no line matched within {rule.expected_start_within_s:g} s of the start", due_s
            )
        return self._event("late again", f"no line matched for {rule.expected_again_every_s:g} s", due_s)

    def sleep(self, state: Literal["asleep", "off"]) -> None:
        """Stop applying the rule."""
        self.state, self.due_s = state, None

    def _is_beyond(self, value: float, rank: int | None) -> bool:
        """True if *value* is the last of enough bad values in a row. NaN neither extends a row nor breaks it."""
        rule = self.rule
        if rule.threshold is None or rule.operator is None or value != value:
            return False
        row = self._rows.setdefault(rank, Row())
        return row.add(_COMPARE[rule.operator](value, rule.threshold), rule.data_points) and row.state

    def _event(
        self, kind: Kind, text: str, time_s: float, rank: int | None = None, value: float | None = None
    ) -> RuleEvent:
        self.events += 1
        rule = self.rule
        return RuleEvent(
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
    """Return the line that matched; of a long line, the part around the match."""
    line = match.string.rstrip("\r\n")
    if len(line) <= SHOWN:
        return line
    start = max(min(match.start() - SHOWN // 4, len(line) - SHOWN), 0)
    return beginning(end(line, len(line) - start + 3, longest_word=SHOWN // 4), SHOWN + 3)
