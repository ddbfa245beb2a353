"""Finds secrets of well-known services by their form, whatever precedes them: shapes.json.

A shape is compiled when a text contains one of its hints for the first time.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from toolkit.masking.names import compiled
from toolkit.records import Record

FILE = Path(__file__).with_name("shapes.json")
# A shape begins at the start of a word, also after an escaped line end ("\\nghp_..."): one start for each word keeps
# the search as long as the text.
_START = r"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrt]))"


class Shape(Record, frozen=True, kw_only=True):
    """The form of one service's secret."""

    id: str
    source: str
    """The name of a Source."""
    hints: tuple[str, ...]
    """Lower-case texts; a text with such a secret contains one of them."""
    pattern: str
    within: bool = False
    """The hint stands within the secret, not at its start."""


class Source(Record, frozen=True, kw_only=True):
    """The source of patterns."""

    name: str
    version: str
    licence: str
    address: str
    """A URL, or a page of the documentation."""
    changes: str
    """The changes that were made to its patterns."""


class _File(Record, frozen=True, kw_only=True):
    sources: tuple[Source, ...]
    shapes: tuple[Shape, ...]


def find_shapes(text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each known shape in *text* (*lower*: the same in lower case)."""
    hinted = {shape.id: shape for hint, shape in _hints() if hint in lower}
    for shape in hinted.values():
        if shape.within or len(lower) != len(text):  # A letter whose small form is two.
            yield from (match.span() for match in compiled(f"{_START}(?:{shape.pattern})").finditer(text))
            continue
        for hint in shape.hints:
            index = lower.find(hint)
            while index >= 0:
                match = compiled(f"{_START}(?:{shape.pattern})").match(text, index)
                if match:
                    yield match.span()
                index = lower.find(hint, match.end() if match else index + 1)


@lru_cache(maxsize=1)
def _hints() -> tuple[tuple[str, Shape], ...]:
    return tuple((hint, shape) for shape in all_shapes() for hint in shape.hints)


@lru_cache(maxsize=1)
def all_shapes() -> tuple[Shape, ...]:
    """Return the shapes of shapes.json."""
    return msgspec.json.decode(FILE.read_bytes(), type=_File).shapes
