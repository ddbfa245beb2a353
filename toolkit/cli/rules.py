"""`toolkit rules try LOG --rules FILE`: show what rules find in a finished log, before a job depends on them."""

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from toolkit.cli import diagnose
from toolkit.cli.tried import content, lines, many, printable
from toolkit.log import Log
from toolkit.metrics.guard import MatchGuard
from toolkit.train.log_rules import document, stamp
from toolkit.train.log_rules.event import ENDING, RuleEvent
from toolkit.train.log_rules.pattern import SIGNS, PatternMonitor, RuleState

WIDTH = 80
# A log has times if one of its first lines has one.
FIRST_LINES = 1000


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    attempt = actions.add_parser(
        "try",
        help="show what rules find in a log",
        description="Show what the rules of a document find in a finished log, at which line. The time is read from "
        "the start of a line: ISO 8601, or seconds since the epoch. Exit code: 0 if no rule would have ended the "
        "job, 1 if one would (stop, no-retry), 78 for a document that cannot be used.",
    )
    attempt.set_defaults(handle=_try)
    diagnose.add(actions)
    attempt.add_argument("log", metavar="LOG", help="the log file, - for standard input")
    attempt.add_argument("--rules", type=Path, required=True, metavar="FILE", help="the rules, TOML, .yaml or .json")
    attempt.add_argument(
        "--speed",
        type=_speed,
        metavar="N",
        help="for a log without times: take it as written at N lines a second",
    )


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Carry out the action.

    Raises:
        ContractError: the document cannot be used.
        UserError: the log, the document or the job cannot be read.
    """
    code: int = arguments.handle(arguments, log)
    return code


def _try(arguments: argparse.Namespace, log: Log) -> int:
    """Print what the rules find; return 1 if one would have ended the job, else 0."""
    rules = document.read(content(arguments.rules), str(arguments.rules))
    log_lines = lines(arguments.log)
    first = list(islice(log_lines, FIRST_LINES))
    start_s = next((time_s for time_s in (stamp.read(line).time_s for line in first) if time_s is not None), None)
    with MatchGuard() as guard:
        monitor = PatternMonitor(rules, start_s=start_s or 0.0, warn=log.warning, watch=guard)
        trial = _Trial(monitor, start_s, arguments.speed)
        for line in chain(first, log_lines):
            trial.take(line)
    print("\n".join(trial.report()))
    return 1 if trial.ending else 0


class _Trial:
    """Prints events as they occur, and then a summary of each rule."""

    def __init__(self, monitor: PatternMonitor, start_s: float | None, speed: float | None) -> None:
        self._monitor = monitor
        self._speed = speed if start_s is None else None
        self._is_timed = start_s is not None or speed is not None
        self._start_s = self._now_s = start_s or 0.0
        self._lines = 0
        # The first event that would have ended the job, and its line.
        self.ending: tuple[int, RuleEvent] | None = None

    def take(self, line: bytes) -> None:
        """Print the events that *line* causes."""
        self._lines += 1
        read = stamp.read(line)
        if self._speed is not None:
            self._now_s = (self._lines - 1) / self._speed
        elif self._is_timed and read.time_s is not None:
            self._now_s = read.time_s
        for event in self._monitor.lines(read.text, rank=read.rank, now_s=self._now_s):
            if event.action in ENDING and self.ending is None:
                self.ending = self._lines, event
            print("\n".join(self._shown(event)))

    def report(self) -> Iterator[str]:
        """Yield the summary: a line about the log, and one or more about each rule."""
        took = f", {_format_clock(self._now_s - self._start_s)}" if self._is_timed else ", no times"
        yield f"{many(self._lines, 'line')}{took}"
        for state in self._monitor.states():
            yield from _wrap(f"{state.rule.name}: {'; '.join(self._said(state))}", "  ")
        if self.ending is not None:
            number, event = self.ending
            yield f"{event.rule} would have ended the job at line {number} ({event.action})"

    def _shown(self, event: RuleEvent) -> Iterator[str]:
        clock = f", {_format_clock(event.time_s - self._start_s)}" if self._is_timed else ""
        rank = "" if event.rank is None else f", rank {event.rank}"
        position = f"line {self._lines}{clock}{rank}"
        yield f"{position}: {event.rule}: {event.kind} ({event.action}){self._compared(event)}"
        yield "    " + printable(event.text)[: WIDTH - 4].rstrip()
        yield from _wrap(printable(event.message), "    ")

    def _compared(self, event: RuleEvent) -> str:
        if event.kind != "threshold":
            return ""
        rule = next(state.rule for state in self._monitor.states() if state.rule.name == event.rule)
        row = f", {rule.data_points} in a row" if rule.data_points > 1 else ""
        return f": {event.value:g} {SIGNS[rule.operator or 'eq']} {rule.threshold:g}{row}"

    def _said(self, state: RuleState) -> Iterator[str]:
        rule = state.rule
        yield f"{many(state.matches, 'line')} matched"
        yield many(state.events, "event")
        if state.state == "asleep":
            yield "asleep at the end, by its stop_pattern"
        if state.state == "off":
            yield "switched off: its regex takes too long"
        if rule.has_times and not self._is_timed:
            times = {
                "expected_start_within_s": rule.expected_start_within_s,
                "expected_again_every_s": rule.expected_again_every_s,
            }
            untried = [key for key, value in times.items() if value is not None]
            yield f"untried, as no line has a time: {' and '.join(untried)} (--speed gives it times)"
        if rule.faults and state.matches > 1 and not self._is_timed:
            yield "without times, all its matches are one occasion"


def _format_clock(seconds: float) -> str:
    """Return *seconds* as 0:01:05."""
    whole_s = int(seconds)
    return f"{whole_s // 3600}:{whole_s // 60 % 60:02}:{whole_s % 60:02}"


def _speed(word: str) -> float:
    try:
        speed = float(word)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"expected lines a second, a number above 0, found {word!r}")
    return speed


def _wrap(text: str, indent: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
