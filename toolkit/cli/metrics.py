"""`toolkit metrics try LOG`: show what each metric definition captures from a log, before a job depends on it."""

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.cli.tried import content, lines, many, printable
from toolkit.errors import ContractError
from toolkit.log import Log
from toolkit.metrics.capture import MetricCapture
from toolkit.metrics.definition import Definition, compile, pairs
from toolkit.metrics.guard import MatchGuard
from toolkit.metrics.sample import Sample
from toolkit.metrics.warn import (
    TOO_LONG,
    fault,
    for_both_transformers,
    keras_3,
    omission,
    suggestion,
    transformers_5,
)
from toolkit.records import decode

WIDTH = 80
EXAMPLES = 3


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    attempt = actions.add_parser(
        "try",
        help="show what metric definitions capture from a log",
        description="Show what each metric definition captures from a log, and what it would miss or misread. "
        "Exit code: 0 if each captured something, 1 if one captured nothing, 78 for one that cannot be used.",
    )
    attempt.add_argument("log", metavar="LOG", help="the log file, - for standard input")
    attempt.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME=REGEX",
        help="a definition; its first group is the value. May be given several times",
    )
    attempt.add_argument(
        "--definitions",
        type=Path,
        metavar="FILE",
        help='a JSON file of definitions: a list of {"Name", "Regex"}, or an object of name: regex',
    )


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Print what the definitions capture; return 0 if each captured something, else 1.

    Raises:
        ContractError: a definition cannot be used.
        UserError: the log cannot be read.
    """
    definitions = _definitions(arguments.metric, arguments.definitions)
    trial = _Trial(definitions)
    with MatchGuard() as guard:
        capture = MetricCapture(definitions, warn=log.warning, watch=guard)
        for line in lines(arguments.log):
            trial.take(line, capture)
        print("\n\n".join("\n".join(text) for text in trial.report(capture, guard)))
    return 0 if all(trial.counts) else 1


class _Captured:
    """The values, steps and first lines that the definitions of one name captured."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.steps: list[int] = []
        self.examples: list[tuple[int, float, str]] = []


class _Trial:
    """Collects the samples of each definition, line by line."""

    def __init__(self, definitions: tuple[Definition, ...]) -> None:
        self._definitions = definitions
        self._seen = {definition.name: _Captured() for definition in definitions}
        self._lines = 0
        self._has_quotes = False  # Lines of transformers 5.

    @property
    def counts(self) -> list[int]:
        return [len(captured.values) for captured in self._seen.values()]

    def take(self, line: bytes, capture: MetricCapture) -> None:
        self._lines += 1
        self._has_quotes = self._has_quotes or b"': '" in line
        for sample in capture.lines(line, host="", rank=None, now_s=0.0):
            self._note(sample, line)

    def _note(self, sample: Sample, line: bytes) -> None:
        captured = self._seen[sample.name]
        captured.values.append(sample.value)
        if sample.step is not None:
            captured.steps.append(sample.step)
        if len(captured.examples) < EXAMPLES:
            captured.examples.append((self._lines, sample.value, printable(line.decode("utf-8", "replace"))[:WIDTH]))

    def report(self, capture: MetricCapture, guard: MatchGuard) -> Iterator[list[str]]:
        """Yield the report's lines for each name."""
        of_keras = {definition.regex: better for definition, better in keras_3(self._definitions, guard)}
        of_trainer = {
            definition.regex: for_both_transformers(definition, guard)
            for definition in transformers_5(self._definitions, guard, is_trainers=self._has_quotes)
        }
        for name, captured in self._seen.items():
            definitions = [definition for definition in self._definitions if definition.name == name]
            text = [f"{name}: {definition.regex}" for definition in definitions]
            text += _summarise(captured, self._lines)
            count, first = capture.not_numbers.get(name, (0, ""))
            if count:
                text += _wrap(
                    f"{many(count, 'match', 'matches')} held no number; the first: {printable(first)[:WIDTH]}"
                )
            for definition in definitions:
                text += _list_remarks(definition, guard)
                if definition.regex in of_keras:
                    text += _wrap("note: it finds nothing in the lines of Keras 3, only in those of tf_keras")
                    better = of_keras[definition.regex]
                    text += [f"    for Keras 3: {better}"] if better else []
                if definition.regex in of_trainer:
                    text += _wrap(
                        "note: it finds nothing in the lines of transformers 5, whose Trainer puts numbers in quotes"
                    )
                    better = of_trainer[definition.regex]
                    text += [f"    for transformers 4 and 5: {better}"] if better else []
            yield text


def _summarise(captured: _Captured, lines: int) -> list[str]:
    if not captured.values:
        return [f"  nothing captured from {many(lines, 'line')}"]
    values = captured.values
    comparable = [value for value in values if value == value] or values
    text = [
        f"  {many(len(values), 'value')} from {many(lines, 'line')}: first {values[0]:g}, last {values[-1]:g}, "
        f"min {min(comparable):g}, max {max(comparable):g}"
    ]
    if len(comparable) < len(values):
        text.append(f"  {len(values) - len(comparable):,} of them nan")
    if captured.steps:
        text.append(f"  at steps {captured.steps[0]} to {captured.steps[-1]}")
    for number, value, line in captured.examples:
        text.append(f"    line {number:<6} {value:<12g} {line}"[:WIDTH].rstrip())
    return text


def _list_remarks(definition: Definition, guard: MatchGuard) -> list[str]:
    wrong, missing = fault(definition, guard), omission(definition, guard)
    text = _wrap(f"warning: it {wrong}") if wrong else _wrap(f"note: it {missing}") if missing else []
    better = suggestion(definition, guard) if text and wrong != TOO_LONG else ""
    if better:
        text.append(f"    better: {better}")  # On one line, so that users can copy it.
    if definition.value_group != 1:
        text += _wrap("note: its first group is the step; the platform itself would take that for the value")
    return text


def _definitions(words: list[str], path: Path | None) -> tuple[Definition, ...]:
    pairs_given = []
    for word in words:
        name, equals, regex = word.partition("=")
        if not name or not equals:
            raise ContractError(f"expected NAME=REGEX, found {word!r}", where="--metric")
        pairs_given.append((name, regex))
    defined = compile(pairs_given, "--metric")
    if path is not None:
        document = decode(content(path), Any, str(path))
        defined += compile(pairs(document, str(path)), str(path))
    if not defined:
        raise ContractError("expected at least one definition", hint="Give --metric NAME=REGEX or --definitions FILE.")
    return defined


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
