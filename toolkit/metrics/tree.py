"""Pure: derives from a regex's parse tree what every matching text must contain.

The tree is CPython's own (`re._parser`, `sre_parse` before 3.11): private, but the parts used here are unchanged from
3.10 to 3.14. An unknown node counts as matching anything: at worst more lines than needed are searched.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from toolkit.records import Record

# Under IGNORECASE these letters also match one that is not ASCII: the Kelvin sign, the long s, the dotted and the
# dotless i. (tests/metrics/test_tree.py looks for others in all of Unicode.)
_NOT_ONLY_ASCII = frozenset("kKsSiI")
_UNDECODABLE = "\ufffd"  # Replaces bytes that are not UTF-8, so its own bytes are not known.


class Literal(Record, frozen=True, kw_only=True):
    """Bytes that every matching line contains; `folded`: in the line's lower case (ASCII)."""

    text: bytes
    folded: bool = False


@lru_cache(maxsize=64)
def parse(regex: str) -> Any:
    """Return CPython's parse tree of *regex*: a sequence of (operation, argument), which its callers share unchanged.

    It takes as long as half of compiling, and warn.py needs the tree of each definition several times.
    """
    import warnings

    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as parser
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parser.parse(regex)


def mandatory(pattern: re.Pattern[str]) -> Literal | None:
    """Return the longest literal that every matching line must contain, None if there is none for certain."""
    try:
        runs = list(_runs(parse(pattern.pattern), bool(pattern.flags & re.IGNORECASE)))
    except (AttributeError, TypeError, ValueError, IndexError):
        return None  # A tree of an unknown shape.
    pieces = [piece for text, folded in runs for piece in _certain(text, folded)]
    return max(pieces, key=lambda piece: (len(piece.text), not piece.folded), default=None)


def _certain(text: str, folded: bool) -> Iterator[Literal]:
    """Yield those parts of a run that have one form in bytes."""
    certain = "".join("\n" if _doubtful(character, folded) else character for character in text)
    for part in certain.split("\n"):
        if part:
            yield Literal(text=(part.lower() if folded else part).encode(), folded=folded)


def _doubtful(character: str, folded: bool) -> bool:
    if folded:
        return character in _NOT_ONLY_ASCII or not character.isascii()
    return character == _UNDECODABLE or 0xD800 <= ord(character) <= 0xDFFF


def _runs(tree: Iterable[Any], folded: bool) -> Iterator[tuple[str, bool]]:
    """Yield the runs of adjacent characters, all folded or none, that any match of *tree* passes through."""
    run, run_folded = "", folded
    for kind, text, inner in _steps(tree, folded):
        if run and (kind != "character" or inner != run_folded):
            yield run, run_folded
            run = ""
        if kind == "character":
            run, run_folded = run + text, inner
        elif kind == "run":
            yield text, inner
    if run:
        yield run, run_folded


def _steps(tree: Iterable[Any], folded: bool) -> Iterator[tuple[str, str, bool]]:
    """Flatten *tree*: ("character", c, folded) in sequence, ("run", text, folded) apart, ("break", "", False)."""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            yield "character", chr(argument), folded
        elif name == "AT":
            continue  # Zero-width: its neighbours are adjacent.
        elif name == "SUBPATTERN":
            _, added, removed, inner = argument
            yield from _steps(inner, (folded or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE)
        elif name == "ATOMIC_GROUP":
            yield from _steps(argument, folded)
        else:
            yield "break", "", False
            if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] >= 1:
                for text, inner_folded in _runs(argument[2], folded):
                    yield "run", text, inner_folded
                yield "break", "", False
