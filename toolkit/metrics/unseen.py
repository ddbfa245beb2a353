"""Pure: says at a run's end which definitions captured nothing, or took text that is no number, with the nearest line.

The nearest line holds a word of the regex or of the metric's name, and a digit. It is looked for only while a
definition has captured nothing, in the first LOOKED_AT_BYTES and then in a piece each time the output has grown by a
quarter: in every block it cost 0.1 s a 16 MiB for seven definitions (0.2 s of CPU for 112 MB became 1.1).
"""

from collections.abc import Iterator, Mapping, Sequence

from toolkit.masking.excerpt import beginning
from toolkit.metrics.definition import Definition
from toolkit.metrics.sample import Sample
from toolkit.patterns import lazy

SHOWN = 160  # Characters of a line in a message.
WORDS = 3
LOOKED_AT_BYTES = 1 << 20
GROWTH = 1.25
PIECE_BYTES = 32 << 10
# What a regex says without standing for itself: escapes, classes, names of groups.
_SYNTAX = lazy(r"\\.|\[\^?\]?[^\]]*\]|\(\?[^:)>=!]*[:>=!]")
_WORD = lazy(r"[A-Za-z][A-Za-z_]+")
_DIGIT = lazy(rb"[0-9]")


class Unseen:
    """The words that each of a run's definitions still misses."""

    def __init__(self, definitions: Sequence[Definition]) -> None:
        self._definitions = definitions
        self._missing: dict[str, tuple[bytes, ...]] = {}  # By name, the words of the nearest line; from the first on.
        self._regexes = {definition.name: definition.regex for definition in reversed(definitions)}
        self._nearest: dict[str, bytes] = {}
        self._not_numbers: dict[str, tuple[int, str]] = {}
        self._has_lines = False
        self._seen_bytes, self._next_look_bytes = 0, 0.0

    def look(self, block: bytes, samples: Sequence[Sample]) -> None:
        """Take a block of whole lines and the samples that were captured from it."""
        if not self._has_lines:
            self._has_lines = True
            self._missing = {definition.name: _words(definition) for definition in reversed(self._definitions)}
        for sample in samples:
            self._missing.pop(sample.name, None)
        self._seen_bytes += len(block)
        if self._seen_bytes < self._next_look_bytes:
            return
        if self._seen_bytes > LOOKED_AT_BYTES:
            self._next_look_bytes = self._seen_bytes * GROWTH
            block = block[: block.find(b"\n", PIECE_BYTES) + 1] or block  # Whole lines.
        for name, words in self._missing.items():
            if name not in self._nearest:
                line = _line_with(block, words)
                if line:
                    self._nearest[name] = line

    def add(self, not_numbers: Mapping[str, tuple[int, str]]) -> None:
        """Add what an attempt matched that was no number: how often, and the first line."""
        for name, (count, line) in not_numbers.items():
            earlier, first = self._not_numbers.get(name, (0, line))
            self._not_numbers[name] = earlier + count, first

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each definition with something to say, one for all those without a near line."""
        if not self._has_lines:
            return
        alone = []
        for name, regex in reversed(self._regexes.items()):
            if name in self._not_numbers:
                count, line = self._not_numbers[name]
                times = "once" if count == 1 else f"{count:,} times"
                yield f"metric {name!r}: {regex} matched {times} what is no number; the first line: {_shown(line)}"
            elif name in self._missing and name in self._nearest:
                line = self._nearest[name].decode("utf-8", "replace")
                yield f"metric {name!r}: {regex} matched no line; the nearest: {_shown(line)}"
            elif name in self._missing:
                alone.append(repr(name))
        if alone:
            yield (
                f"metric{'s' * (len(alone) > 1)} {', '.join(alone)}: no line matched, and none was near. "
                "`toolkit metrics try LOG` tries regexes on a log."
            )


def _words(definition: Definition) -> tuple[bytes, ...]:
    """Return the words by which a line is near, the longest first, in the cases that logs write them."""
    fixed = _WORD.findall(_SYNTAX.sub(" ", definition.regex))
    words = sorted({*fixed, *_WORD.findall(definition.name)}, key=lambda word: (-len(word), word))[:WORDS]
    cases = (case.encode() for word in words for case in (word, word.lower(), word.capitalize()))
    return tuple(dict.fromkeys(cases))


def _line_with(block: bytes, words: Sequence[bytes]) -> bytes:
    """Return the first line of *block* with one of *words* and a digit, b"" if none of the first few has."""
    for word in words:
        position = block.find(word)
        for _ in range(4):
            if position < 0:
                break
            start, end = block.rfind(b"\n", 0, position) + 1, block.find(b"\n", position)
            line = block[start : len(block) if end < 0 else end]
            if _DIGIT.search(line):
                return line[: 4 * SHOWN]
            position = block.find(word, start + len(line))
    return b""


def _shown(line: str) -> str:
    text = " ".join("".join(character if character.isprintable() else " " for character in line).split())
    return repr(beginning(text, SHOWN + 3))
