"""Pure: derives from a regex's text what every matching line must contain.

Characters between the groups, classes and repeats of the regex are certain. What is in groups is not looked at, and
nothing is claimed of a regex whose tokens might be something else than they seem: at worst more lines than needed are
searched.
"""

import re

from toolkit.records import Record

# An escape; a class; what opens a group or sets flags; a parenthesis, anchor or branch; a repeat; any other character.
TOKEN = re.compile(
    r"\\(?P<escape>.)|(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<flags>\(\?[a-zA-Z]+\))|(?P<opens>\((?:\?(?:P<\w+>|<?[=!]"
    r"|[a-zA-Z-]*:)?)?)|(?P<closes>\))|[$^]|(?P<branch>\|)|(?P<repeat>[*+?]\??|\{(?P<least>\d*),?\d*\}\??)|(?P<character>.)",
    re.DOTALL,
)
# Escapes with more characters behind, and comments, also of a group in verbose form, which may hold a parenthesis.
_UNCLEAR = re.compile(r"\\[xuUN0-9]|\(\?#|\(\?[a-zA-Z]*x")
# Under IGNORECASE these letters also match one that is not ASCII: the Kelvin sign, the long s, the dotted and the
# dotless i. (tests/metrics/test_literal.py looks for others in all of Unicode.)
_NOT_ONLY_ASCII = frozenset("kKsSiI")
_UNDECODABLE = "\ufffd"  # Replaces bytes that are not UTF-8, so its own bytes are not known.


class Literal(Record, frozen=True, kw_only=True):
    """Bytes that every matching line contains; `folded`: in the line's lower case (ASCII)."""

    text: bytes
    folded: bool = False


def mandatory(pattern: re.Pattern[str]) -> Literal | None:
    """Return the longest literal that every matching line must contain, None if there is none for certain."""
    if pattern.flags & re.VERBOSE or _UNCLEAR.search(pattern.pattern):
        return None
    folded = bool(pattern.flags & re.IGNORECASE)
    certain = "".join("\n" if _is_doubtful(character, folded) else character for character in _run(pattern.pattern))
    longest = max(certain.split("\n"), key=len)
    return Literal(text=(longest.lower() if folded else longest).encode(), folded=folded) if longest else None


def _run(regex: str) -> str:
    """Return the characters that any match of *regex* passes through, a newline between those that are not adjacent."""
    run, depth = "", 0
    for token in TOKEN.finditer(regex):
        depth += bool(token["opens"]) - bool(token["closes"])
        if depth:
            continue
        if token["branch"]:
            return ""
        if token["repeat"]:
            is_there = token["repeat"][0] == "+" or int(token["least"] or 0) > 0
            run = (run if is_there else run[:-1]) + "\n"
        elif token["escape"] and token["escape"].isascii() and token["escape"].isalnum():
            run += "" if token["escape"] in "bBAZ" else "\n"
        elif token["escape"] or token["character"]:
            run += "\n" if token["character"] == "." else token["escape"] or token["character"]
        elif token["class"] or token["closes"]:
            run += "\n"
    return run


def _is_doubtful(character: str, folded: bool) -> bool:
    if folded:
        return character in _NOT_ONLY_ASCII or not character.isascii()
    return character == _UNDECODABLE or 0xD800 <= ord(character) <= 0xDFFF
