"""Pure: takes lines and returns samples, at the speed of the relay. `Search` finds the lines, `MetricCapture` the
values.

The result is defined line by line: for each definition `pattern.search` on the decoded line, the value group read as a
float (tests/metrics/test_capture.py implements that definition and compares). How it is computed:

1. Most lines hold no metric. `bytes.find` looks in the whole block for the literal that each pattern must match
   (literal.py); only lines with that literal are cut out, decoded and searched.
2. Before that, `bytes.find` looks for one character that all literals share (the gate): `memchr` is 30 times faster. If
   too many lines hold that character, the rest of the block is searched for the literals at once.
3. A watch interrupts a match that takes too long (guard.py; it needs a signal, so it is an argument). The definition is
   then switched off, as is one whose total cost is too high. The relay waits for such a match once per definition.
"""

import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from toolkit.masking.excerpt import beginning
from toolkit.metrics.definition import STEP, Definition
from toolkit.metrics.literal import Literal, mandatory
from toolkit.metrics.sample import Sample, number, whole

# Characters. Of a longer line, the first and the last half of this are searched. A match that touches the cut does not
# count, because the number may go on there. An endless line (a progress bar) must have a limited cost.
LINE_LIMIT = 64 * 1024
# A definition is switched off if, within one window, it takes more than a second and more than a fifth of the elapsed
# time, unless its regex is quick (50 us a line): then the log has many matching lines.
WINDOW_S = 10.0
WINDOW_CPU_S = 1.0
WINDOW_SHARE = 0.2
QUICK_LINE_S = 50e-6
# `search` looks for signals during one attempt at a position but, before CPython 3.11.7 or so (Modules/_sre/sre_lib.h,
# `sigcount`), not from one attempt to the next; on a long text it is then called position by position.
SEARCH_SEES_SIGNALS = sys.version_info >= (3, 11, 7)
SHORT_TEXT = 512
SHOWN = 160  # Characters of a line in a message.
# So many lines with a literal, within so many bytes, are close together: about every third line.
CLOSE_LINES = 32
CLOSE_BYTES = 32 * 256
# A block's rest is searched without the gate if more than one line in so many bytes holds it.
GATE_BYTES = 4096
# Characters for the gate, the rarest in logs first.
_RARITY = "'\"{}<>|%$#@!~^`*&;?+\\[]()_="


class OverrunError(Exception):
    """Raised by the watch inside a match whose time is over."""


class Watch(Protocol):
    """Raises OverrunError if `inside` is true and `match_count` has not changed for the time that one match may
    take."""

    match_count: int
    inside: bool

    def arm(self) -> None:
        """Begin to watch."""

    def disarm(self) -> None:
        """Stop watching; no OverrunError comes after this."""


class Unwatched:
    """A watch that never interrupts."""

    match_count = 0
    inside = False

    def arm(self) -> None:
        """Do nothing."""

    def disarm(self) -> None:
        """Do nothing."""


class _Active:
    """A definition in use: its index, its literal, and its cost since the window began."""

    def __init__(self, index: int, definition: Definition, now_s: float) -> None:
        self.index = index
        self.definition = definition
        self.literal: Literal | None = mandatory(definition.pattern)
        self.ended = False
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        """Begin a new window."""
        self.since_s, self.cpu_s, self.lines = now_s, 0.0, 0


_Line = tuple[int, str]
# The line's start in its block, the definition's index, and the first match in the line.
Hit = tuple[int, int, re.Match[str]]


class Search:
    """Takes blocks of whole lines and returns the first match of each definition in each line.

    `watch` interrupts endless matches. `warn` gets one line for each definition that is switched off, which calls it a
    *noun*; `ended` holds their indexes. `clock` and `cpu` return seconds from any origin: elapsed time and this
    thread's CPU time.
    """

    def __init__(
        self,
        definitions: Sequence[Definition],
        *,
        warn: Callable[[str], None],
        watch: Watch | None = None,
        noun: str = "metric",
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._warn = warn
        self._watch: Watch = watch or Unwatched()
        self._noun = noun
        self._clock = clock
        self._cpu = cpu
        self.ended: set[int] = set()
        now_s = clock()
        self._use([_Active(index, definition, now_s) for index, definition in enumerate(definitions)])

    def matches(self, block: bytes) -> list[Hit]:
        """Return the matches in *block*, whole lines, ordered by line, then by definition."""
        if not self._active or (self._gate and not self._everywhere and self._gate not in block):
            return []
        candidates = self._candidates(block)
        if not any(candidates):
            return []
        hits = self._search(candidates)
        self._hold_to_budget()
        return hits

    def _use(self, actives: list[_Active]) -> None:
        """Search for *actives* from now on."""
        self._active = actives
        literals = [(place, active.literal) for place, active in enumerate(actives) if active.literal is not None]
        self._spots = [(place, literal.text, literal.folded) for place, literal in literals]
        self._folds = any(literal.folded for _, literal in literals)
        self._gate = b"" if self._folds else _gate([literal.text for _, literal in literals])
        self._everywhere = [place for place, active in enumerate(actives) if active.literal is None]

    def _candidates(self, block: bytes) -> list[list[_Line]]:
        """Return for each active definition the lines that may match it."""
        book = _Book(block)
        candidates: list[list[_Line]] = [[] for _ in self._active]
        position = self._through_gate(book, candidates) if self._gate else 0
        if position < len(block):
            lowered = block.lower() if self._folds else block
            for place, text, folded in self._spots:
                candidates[place] += book.holding(text, position, lowered if folded else block)
        for place in self._everywhere:
            candidates[place] = book.since(0)
        return candidates

    def _through_gate(self, book: "_Book", candidates: list[list[_Line]]) -> int:
        """Add the lines that hold the gate to *candidates*; return the position up to which the block is done."""
        block = book.block
        position, passed, worthwhile = 0, 0, len(block) // GATE_BYTES
        position_of_gate = block.find(self._gate)
        while position_of_gate >= 0:
            if passed > worthwhile:
                return position
            start, end = _line_around(block, position_of_gate, position)
            for place, text, _ in self._spots:
                if block.find(text, start, end) >= 0:
                    candidates[place].append(book.line(start, end))
            position, passed = end + 1, passed + 1
            position_of_gate = block.find(self._gate, position)
        return len(block)

    def _search(self, candidates: list[list[_Line]]) -> list[Hit]:
        """Return the matches, ordered by line, then by definition."""
        hits: list[Hit] = []
        cpu = self._cpu
        self._watch.arm()
        try:
            started_s = cpu()
            for place, lines in enumerate(candidates):
                if not lines:
                    continue
                overran = self._match(place, lines, hits)
                after = cpu()
                active = self._active[place]
                active.cpu_s += after - started_s
                active.lines += len(lines)
                started_s = after
                if overran is not None:
                    line = beginning(overran, SHOWN)
                    self._end(active, f"its regex took too long on one line, which begins {line!r}")
        finally:
            self._watch.disarm()
        hits.sort()  # No two have the same line and definition, so matches are never compared.
        return hits

    def _match(self, place: int, lines: list[_Line], hits: list[Hit]) -> str | None:
        """Add the matches of one definition to *hits*; return the line on which its time ran out, None if on none."""
        index, pattern = self._active[place].index, self._active[place].definition.pattern
        search, watch = pattern.search, self._watch
        text = ""
        try:
            watch.inside = True
            for start, text in lines:
                watch.match_count += 1
                match = search(text) if len(text) <= SHORT_TEXT else _search_long(pattern, text)
                if match is None and text[-1:] == "\r":  # Then `$` stands before a Windows line end, too.
                    watch.match_count += 1
                    match = _search_long(pattern, text[:-1])
                if match is not None:
                    hits.append((start, index, match))
            watch.inside = False
        except OverrunError:
            return text
        return None

    def _hold_to_budget(self) -> None:
        """Switch off each definition that costs too much in its window."""
        now_s = self._clock()
        for active in self._active:
            passed_s = max(now_s - active.since_s, active.cpu_s)
            if active.cpu_s > max(WINDOW_CPU_S, WINDOW_SHARE * passed_s, QUICK_LINE_S * active.lines):
                each_us = active.cpu_s / max(active.lines, 1) * 1e6
                self._end(active, f"its regex takes {each_us:.0f} us a line, {active.cpu_s / passed_s:.0%} of the time")
            elif passed_s > WINDOW_S:
                active.begin(now_s)
        if any(active.ended for active in self._active):
            self._use([active for active in self._active if not active.ended])

    def _end(self, active: _Active, reason: str) -> None:
        if active.ended:
            return
        active.ended = True
        self.ended.add(active.index)
        noun, definition = self._noun, active.definition
        self._warn(
            f"{noun} {definition.name!r} is switched off: {reason}. The job and its other {noun}s go on. "
            f"Make the regex {definition.regex!r} simpler: begin it with fixed text, avoid nested repeats."
        )


class MetricCapture:
    """Takes blocks of whole lines and returns the samples in them. The arguments are those of `Search`."""

    def __init__(
        self,
        definitions: Sequence[Definition],
        *,
        warn: Callable[[str], None],
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        # Steps first: a line's own step counts for all samples of the line.
        ordered = sorted(definitions, key=lambda definition: definition.name != STEP)
        self._search = Search(ordered, warn=warn, watch=watch, clock=clock, cpu=cpu)
        self._definitions = [(definition.name, definition.value_group, definition.step_group) for definition in ordered]
        # By name: the number of matches whose value was not a number, and the first such line.
        self.not_numbers: dict[str, tuple[int, str]] = {}
        self._steps: dict[tuple[str, int | None], int] = {}

    def lines(self, block: bytes, *, host: str, rank: int | None, now_s: float) -> list[Sample]:
        """Return the samples in *block*, whole lines, in the order of lines, then of definitions (steps first).

        *now_s*: seconds since the epoch, when the lines came.
        """
        hits = self._search.matches(block)
        if not hits:
            return []
        definitions, samples = self._definitions, []
        newest = self._steps.get((host, rank))
        for _, index, match in hits:
            name, value_group, step_group = definitions[index]
            value = number(match[value_group])
            if value is None:
                self._note_not_a_number(name, match.string)
                continue
            if name == STEP:
                counted = whole(value)
                newest = newest if counted is None else counted
            own_step = None if step_group is None else whole(number(match[step_group]))
            step = newest if own_step is None else own_step
            samples.append(Sample(name=name, value=value, time_s=now_s, host=host, rank=rank, step=step))
        if newest is not None:
            self._steps[host, rank] = newest
        return samples

    def _note_not_a_number(self, name: str, line: str) -> None:
        count, first = self.not_numbers.get(name, (0, line[:1000]))
        self.not_numbers[name] = count + 1, first


def _gate(literals: list[bytes]) -> bytes:
    """Return the rarest character that all *literals* share, empty if none is rare enough."""
    shared = set.intersection(*map(set, literals)) if len(literals) > 1 else set()
    return next((bytes((character,)) for character in _RARITY.encode() if character in shared), b"")


def _line_around(block: bytes, offset: int, position: int) -> tuple[int, int]:
    """Return the line's span around *offset*; *position* is a line's start not after it."""
    start = block.rfind(b"\n", position, offset) + 1 or position
    end = block.find(b"\n", offset)
    return start, len(block) if end < 0 else end


class _Book:
    """The lines of a block as (position in bytes, text), each decoded at its first use."""

    def __init__(self, block: bytes) -> None:
        self.block = block
        self._known: dict[int, _Line] = {}
        self._every: list[_Line] = []

    def line(self, start: int, end: int) -> _Line:
        """Return the line that spans *start* to *end*."""
        line = self._known.get(start)
        if line is None:
            line = self._known[start] = start, self.block[start:end].decode("utf-8", "replace")
        return line

    def since(self, position: int) -> list[_Line]:
        """Return all lines from the one that begins at *position*."""
        if not self._every:
            pieces = self.block.split(b"\n")
            starts = accumulate((len(piece) + 1 for piece in pieces), initial=0)
            # A newline is never part of another character, valid or not: decoded at once gives the same lines.
            self._every = list(zip(starts, self.block.decode("utf-8", "replace").split("\n"), strict=False))
        return self._every[bisect_left(self._every, (position, "")) :] if position else self._every

    def holding(self, text: bytes, position: int, block: bytes) -> list[_Line]:
        """Return the lines from *position* on that hold *text* in *block*, which is this one or its lower case.

        If such lines are close together, return all lines: searching a few in vain costs less than finding each.
        """
        lines: list[_Line] = []
        close = position + CLOSE_BYTES
        hit = block.find(text, position)
        while hit >= 0:
            start, end = _line_around(block, hit, position)
            lines.append(self.line(start, end))
            position = end + 1
            if len(lines) == CLOSE_LINES and position < close:
                return lines + self.since(position)
            hit = block.find(text, position)
        return lines


def _search_long(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Search a long line: only the first and the last half of the limit."""
    search = re.Pattern.search if SEARCH_SEES_SIGNALS else search_stepwise
    if len(text) <= LINE_LIMIT:
        return search(pattern, text)
    head, tail = text[: LINE_LIMIT // 2], text[-LINE_LIMIT // 2 :]
    match = search(pattern, head)
    return match if match is not None and match.end() < len(head) else search(pattern, tail, 1)


def search_stepwise(pattern: re.Pattern[str], text: str, position: int = 0) -> re.Match[str] | None:
    """Return `pattern.search(text, position)`, found by one attempt a position: signals are seen between them."""
    for place in range(position, len(text) + 1):
        match = pattern.match(text, place)
        if match is not None:
            return match
    return None
