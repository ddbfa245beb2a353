"""Pure: finds definitions that would record wrong numbers, at the start of the job.

A text that the regex should match is made from the regex itself, token by token, with a probe in place of the value,
and the regex is tried on it. If that fails even with 0.5, as it does where a branch or a reference decides, there is no
warning.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from toolkit.metrics.capture import SHORT_TEXT, OverrunError, Watch
from toolkit.metrics.definition import Definition
from toolkit.metrics.literal import TOKEN
from toolkit.metrics.sample import number

# What Python prints for small and large floats: str(4.5e-05), str(1e-05), str(1.5e16).
SCIENTIFIC = ("4.5e-05", "1e-05", "1.5e+16")
NEGATIVE = ("-0.5",)
NOT_FINITE = ("nan", "inf")
NUMBER = "([-+]?(?:[0-9]*[.]?[0-9]+(?:[eE][-+]?[0-9]+)?|nan|inf))"
TOO_LONG = "takes too long on a short line: it is switched off when a line like that comes"
# What tf_keras and Keras 3 print for an epoch (fit(verbose=2); tf_keras 2.21.0 and Keras 3.15.1, both run).
TF_KERAS = "24/24 - 5s - loss: 0.2057 - accuracy: 0.9375 - 5s/epoch - 210ms/step"
KERAS_3 = "24/24 - 5s - 210ms/step - accuracy: 0.9375 - loss: 0.2057"
KERAS_3_SECONDS = r"\d+/\d+ - ([0-9]+)s - "
# What Trainer of Hugging Face's transformers 4 and 5 prints (the second: 5.23.0, run).
TRANSFORMERS_4 = (
    "{'loss': 4.318, 'grad_norm': 0.8296, 'learning_rate': 8.333e-06, 'epoch': 0.75}",
    "{'eval_loss': 4.307, 'eval_runtime': 0.98, 'eval_samples_per_second': 818.6, 'eval_steps_per_second': 102.3, "
    "'epoch': 0.75}",
    "{'train_runtime': 2.019, 'train_samples_per_second': 23.77, 'train_steps_per_second': 2.972, "
    "'train_loss': 4.321, 'epoch': 0.75}",
)
TRANSFORMERS_5 = tuple(re.sub(r": ([0-9.e-]+)", r": '\1'", line) for line in TRANSFORMERS_4)
# Only Trainer prints these: a script may print a dictionary with 'loss' by itself, whose numbers have no quotes.
_OF_TRAINER = ("grad_norm", "_runtime", "_samples_per_second", "_steps_per_second")
# A regex with more repeats is not tried: the match may take long.
_REPEATS = 20
# Tried for "any character of this class"; the first that fits.
_CANDIDATES = " a1=:,-_./\"'()[]{}<>|#%+*;&@!?~^$\\`AzZ09\té"
# Characters for escapes that stand for several, or for none.
_OF_ESCAPE = {"d": "1", "D": " ", "s": " ", "S": "a", "w": "a", "W": " ", "t": "\t", **dict.fromkeys("bBAZ", "")}


def warnings(definition: Definition, watch: Watch) -> tuple[str, ...]:
    """Return the warnings about *definition* at the start of a job: one text, or none.

    Here and below: *watch* interrupts a match that takes too long.
    """
    wrong = fault(definition, watch)
    if not wrong:
        return ()
    better = suggestion(definition, watch) if wrong != TOO_LONG else ""
    advice = f" Write {better}" if better else ""
    return (f"metric {definition.name!r}: {definition.regex} {wrong}.{advice}",)


def fault(definition: Definition, watch: Watch) -> str:
    """Return which values are misread or, in scientific notation, missed; empty if none is."""
    try:
        wrong = _wrong(definition, watch)
    except OverrunError:
        return TOO_LONG
    if not _is_fault(wrong):
        return ""
    misread = [f"{probe} as {value_read}" for probe, value_read in wrong.items() if value_read is not None]
    missed = [probe for probe, value_read in wrong.items() if value_read is None]
    parts = [f"reads {_and(misread)}"] if misread else []
    parts += [f"does not see {_and(missed, 'or')}"] if missed else []
    return "; ".join(parts)


def _is_fault(wrong: dict[str, str | None]) -> bool:
    """Return whether a probe in *wrong* (see `_wrong`) is misread, or is an ordinary number that is missed."""
    return any(probe in wrong for probe in SCIENTIFIC) or any(value is not None for value in wrong.values())


def omission(definition: Definition, watch: Watch) -> str:
    """Return which values *definition*, if it has no fault, misses (a diverged loss, say); empty for none."""
    try:
        wrong = _wrong(definition, watch)
    except OverrunError:
        return ""  # `fault` says so.
    missed = list(wrong)
    return f"does not see {_and(missed, 'or')}" if missed and not _is_fault(wrong) else ""


def keras_3(definitions: Iterable[Definition], watch: Watch) -> Iterator[tuple[Definition, str]]:
    """Yield the definitions that find a number in tf_keras's line of an epoch and none in Keras 3's, with a regex that
    does ("" if none is known).

    Nothing is yielded unless a definition is for seconds of an epoch or step, as only Keras prints them.
    """
    all_definitions = tuple(definitions)
    if not any(unit in definition.regex for definition in all_definitions for unit in ("s/epoch", "ms/step")):
        return
    for definition in all_definitions:
        try:
            if _found(definition, TF_KERAS, watch) is None or _found(definition, KERAS_3, watch) is not None:
                continue
            better = KERAS_3_SECONDS if "s/epoch" in definition.regex else suggestion(_without_space(definition), watch)
        except (OverrunError, re.error):
            continue
        yield definition, better


def _without_space(definition: Definition) -> Definition:
    """Return *definition* without the space that it wants behind the value, which may be the last on Keras 3's line."""
    regex = definition.regex.rstrip(" ")
    return Definition(name=definition.name, regex=regex, pattern=re.compile(regex), value_group=definition.value_group)


def keras_3_warning(definition: Definition, better: str) -> str:
    """Return the line of the log about a definition that `keras_3` yielded."""
    advice = f" For Keras 3 write {better}" if better else ""
    return (
        f"metric {definition.name!r}: {definition.regex} finds nothing in the lines of Keras 3 ({KERAS_3}), only in "
        f"those of tf_keras.{advice}"
    )


def transformers_5(
    definitions: Iterable[Definition], watch: Watch, *, is_trainers: bool = False
) -> Iterator[Definition]:
    """Yield the definitions that find a number in the lines of transformers 4 and none in those of transformers 5.

    Nothing is yielded unless a definition is for a number that only Trainer prints, or *is_trainers*: the log has such
    lines.
    """
    all_definitions = tuple(definitions)
    if not is_trainers and not any(name in definition.regex for definition in all_definitions for name in _OF_TRAINER):
        return
    for definition in all_definitions:
        try:
            places = _places(definition, watch)
            if places and not any(_found(definition, TRANSFORMERS_5[n], watch) is not None for n in places):
                yield definition
        except OverrunError:
            continue


def for_both_transformers(definition: Definition, watch: Watch) -> str:
    """Return a regex for a definition that `transformers_5` yielded which finds its number in the lines of both, "" if
    none is known."""
    try:
        better = _with_quotes(definition)
        places = _places(definition, watch)
        works = better is not None and all(
            _found(better, lines[n], watch) is not None for lines in (TRANSFORMERS_4, TRANSFORMERS_5) for n in places
        )
    except (OverrunError, re.error):
        return ""
    return better.regex if better is not None and works else ""


def _places(definition: Definition, watch: Watch) -> list[int]:
    """Return the indexes of the lines of transformers 4 in which *definition* finds a number."""
    return [n for n, line in enumerate(TRANSFORMERS_4) if _found(definition, line, watch) is not None]


def _with_quotes(definition: Definition) -> Definition | None:
    """Return *definition* for any number, with or without quotes; None if its group is not found."""
    span = _group_span(definition.regex, definition.value_group)
    if span is None:
        return None
    rest = definition.regex[span[1] :]
    regex = definition.regex[: span[0]] + "'?" + NUMBER + ("'?" if rest else "") + rest
    return Definition(name=definition.name, regex=regex, pattern=re.compile(regex), value_group=definition.value_group)


def transformers_5_warning(definitions: Sequence[Definition], watch: Watch) -> str:
    """Return the one line of the log about the definitions that `transformers_5` yielded; there is at least one."""
    names = _and([repr(definition.name) for definition in definitions])
    finds = "metric {} finds" if len(definitions) == 1 else "metrics {} find"
    # Only one regex is shown: each takes 0.3 ms to compile, before the script starts.
    with_regex = ((definition, for_both_transformers(definition, watch)) for definition in definitions)
    definition, better = next((pair for pair in with_regex if pair[1]), (definitions[0], ""))
    advice = f" Write {better} for {definition.name!r}" if better else ""
    more = ", and the others alike (`toolkit metrics try` has them)" if better and len(definitions) > 1 else ""
    return (
        f"{finds.format(names)} nothing in the lines of transformers 5, whose Trainer puts numbers in quotes "
        f"({TRANSFORMERS_5[0]}), only in those of transformers 4 and of scripts that print numbers.{advice}{more}"
    )


def _wrong(definition: Definition, watch: Watch) -> dict[str, str | None]:
    """Return {probe: the value read, None for none} for the misread or missed probes, at most one of each kind."""
    if _read(definition, definition, "0.5", watch) != 0.5:
        return {}  # For whole numbers only (steps, epochs), or not understood.
    return _wrong_of(definition, definition, watch)


def _wrong_of(definition: Definition, written_for: Definition, watch: Watch) -> dict[str, str | None]:
    """As `_wrong`, of a definition that reads 0.5, in texts made for another one."""
    wrong: dict[str, str | None] = {}
    for probes in (SCIENTIFIC, NEGATIVE, NOT_FINITE):
        for probe in probes:
            value = _read(definition, written_for, probe, watch)
            if value is None or (value != float(probe) and not math.isnan(float(probe))):
                wrong[probe] = None if value is None else f"{value:g}"
                break
    return wrong


def _read(definition: Definition, written_for: Definition, probe: str, watch: Watch) -> float | None:
    """Return the value that *definition* takes from a text made for *written_for* around *probe*.

    Raises:
        OverrunError: *watch* interrupted the match.
    """
    text = _text(written_for, probe)
    return None if text is None or len(text) > SHORT_TEXT else _found(definition, text, watch)


def _found(definition: Definition, text: str, watch: Watch) -> float | None:
    """Return the value that *definition* takes from *text*, None if it takes none.

    Raises:
        OverrunError: *watch* interrupted the match.
    """
    watch.arm()
    try:
        watch.match_count += 1
        watch.inside = True
        match = definition.pattern.search(text)
    finally:
        watch.inside = False
        watch.disarm()
    return None if match is None else number(match[definition.value_group] or "")


def _text(definition: Definition, probe: str) -> str | None:
    span = _group_span(definition.regex, definition.value_group)
    if span is None:
        return None
    after = definition.regex[span[1] :].lstrip("*+?")  # An optional value is there.
    return _written(definition.regex[: span[0]], -1) + probe + _written(after, 0)


def _written(regex: str, branch: int) -> str:
    """Return a text that *regex*, a part of one, matches in most cases.

    *branch*: the one that is taken of those outside of groups that are closed: the last one of what stands before the
    value (-1), the first of what stands behind it (0).
    """
    # For each group that is open, the outermost first: what opened it, and the pieces of each of its branches.
    levels: list[tuple[str, list[list[str]]]] = [("", [[""]])]
    for token in TOKEN.finditer(regex):
        pieces = levels[-1][1][-1]
        if token["opens"]:
            levels.append((token["opens"], [[""]]))
        elif token["closes"]:
            kind, branches = levels.pop()
            text = "" if kind in ("(?!", "(?<!") else "".join(branches[0])
            if levels:
                levels[-1][1][-1].append(text)
            else:  # It closes a group around the value, which is there: its repeat does not count.
                levels.append(("", [[text, ""]]))
        elif token["branch"]:
            levels[-1][1].append([""])
        elif token["escape"]:
            pieces.append(_OF_ESCAPE.get(token["escape"], token["escape"]))
        elif token["class"]:
            pieces.append(_fitting(token["class"]))
        elif token["repeat"]:
            least = int(token["least"] or 0) if token["repeat"][0] == "{" else token["repeat"][0] == "+"
            pieces[-1] *= min(least, _REPEATS)
        elif token["character"]:
            pieces.append(" " if token["character"] == "." else token["character"])
    return "".join("".join(branches[branch]) for _, branches in levels)


def _fitting(class_: str) -> str:
    """Return a character that *class_* matches: one that logs hold or that it names, "" if none of them fits."""
    from warnings import catch_warnings, simplefilter

    try:
        with catch_warnings():
            simplefilter("ignore")  # "Possible nested set": definition.py compiles the whole regex in the same way.
            of_class = re.compile(class_)
    except re.error:
        return ""
    return next((character for character in (*_CANDIDATES, *class_) if of_class.match(character)), "")


def suggestion(definition: Definition, watch: Watch) -> str:
    """Return the regex with a value group for every float, empty if tests do not show that it works."""
    span = _group_span(definition.regex, definition.value_group)
    if span is None:
        return ""
    regex = definition.regex[: span[0]] + NUMBER + definition.regex[span[1] :]
    try:
        better = Definition(
            name=definition.name, regex=regex, pattern=re.compile(regex), value_group=definition.value_group
        )
        # They differ in the group alone, so they match the same texts.
        works = _read(better, definition, "0.5", watch) == 0.5 and not _wrong_of(better, definition, watch)
    except (re.error, OverrunError, OverflowError, RecursionError):
        return ""
    return regex if works and better.pattern.groups == definition.pattern.groups else ""


def _group_span(regex: str, group: int) -> tuple[int, int] | None:
    """Return where the *group* capturing group begins and ends in *regex*."""
    opened: list[int | None] = []
    count, start, place, in_class = 0, -1, 0, False
    while place < len(regex):
        character = regex[place]
        if character == "\\":
            place += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            place += 2 if regex[place + 1 : place + 3] == "^]" else regex[place + 1 : place + 2] == "]"
        elif character == "(":
            captures = regex[place + 1 : place + 2] != "?" or regex[place + 1 : place + 4] == "?P<"
            count += captures
            opened.append(count if captures else None)
            if captures and count == group:
                start = place
        elif character == ")" and opened and opened.pop() == group:
            return start, place + 1
        place += 1
    return None


def _and(words: Iterable[str], last: str = "and") -> str:
    *front, end = words
    return f"{', '.join(front)} {last} {end}" if front else end
