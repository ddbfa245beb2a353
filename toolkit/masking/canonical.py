"""Brings a text into one form, whatever encodings it went through, so that a secret is found in all of them.

Both the text and the secret are decoded until nothing changes: escapes of Python, JSON, C and shells (`\\x2b`,
`\\u002b`, `\\053`, `\\n`), percent encoding, entities of HTML and XML. Then quotes and backslashes are dropped,
however many, and "+", tabs and line ends become spaces. So `'it'"'"'s'`, `"it\\'s"`, `it%27s` and `it&#x27;s` are
all `its`.

Each step is one pass over the text with a regex that never goes back, and there are at most `LAYERS` of them.
"""

import re
from bisect import bisect_right
from collections.abc import Callable

from toolkit.masking.names import compiled

Span = tuple[int, int]
LAYERS = 4
# A text without any of these is already decoded.
_MARKS = ("\\", "%", "&", "\x1b")
# The first item is one class, which `re` searches for quickly.
_ENCODED = (
    r"[%\\&\x1b](?:"
    r"(?<=%)(?P<percent>[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2})*)"
    r"|(?<=\\)\\*(?:"
    r"(?P<hex>x[0-9A-Fa-f]{2}(?:\\+x[0-9A-Fa-f]{2})*)"
    r"|(?P<octal>[0-3][0-7]{2}(?:\\+[0-3][0-7]{2})*)"
    r"|(?P<unicode>u[0-9A-Fa-f]{4}(?:\\+u[0-9A-Fa-f]{4})*)"
    r"|U(?P<wide>[0-9A-Fa-f]{8})|u\{(?P<braced>[0-9A-Fa-f]{1,6})\}|(?P<control>[nrt])|\n|)"
    r"|(?<=&)(?P<entity>#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8}[0-9]{0,2});"
    r"|(?<=\x1b)\[[0-9;:?]{0,40}[A-Za-z])"
)
_DROPPED = r"[\\\"'`]+"
_ALIKE = str.maketrans({"+": " ", "\t": " ", "\n": " ", "\r": " "})
_DROPPED_AND_ALIKE = {**_ALIKE, **str.maketrans("", "", "\\\"'`")}
# Bytes that are no UTF-8 are taken as Latin-1, as Python escapes "\xe9".
_NOT_UTF_8 = {0xDC00 + byte: chr(byte) for byte in range(0x80, 0x100)}


def canonical(text: str) -> str:
    """Return the one form of *text*."""
    for _ in range(LAYERS):
        if not any(mark in text for mark in _MARKS):
            break
        previous = text
        text = compiled(_ENCODED).sub(_decoded, text)
        if text == previous:
            break
    return text.translate(_DROPPED_AND_ALIKE)


class Traced:
    """The one form of a text, which knows where each part of it stood."""

    def __init__(self, text: str) -> None:
        self._layers: list[_Layer] = []
        for _ in range(LAYERS):
            if not any(mark in text for mark in _MARKS):
                break
            previous = text
            text = self._replaced(text, _ENCODED, _decoded)
            if text == previous:
                break
        self.text = self._replaced(text, _DROPPED, lambda _: "").translate(_ALIKE)

    @property
    def seams(self) -> frozenset[int]:
        """Return the places of dropped quotes and backslashes: there, too, a word begins and ends."""
        return frozenset(self._layers[-1].begins)

    def origin(self, start: int, end: int) -> Span:
        """Return where the part from *start* to *end*, not empty, stood in the text as it was."""
        for layer in reversed(self._layers):
            start, end = layer.start(start), layer.end(end)
        return start, end

    def _replaced(self, text: str, pattern: str, replace: "Callable[[re.Match[str]], str]") -> str:
        layer = _Layer()
        self._layers.append(layer)
        parts, index, length = [], 0, 0
        for match in compiled(pattern).finditer(text):
            value = replace(match)
            parts += [text[index : match.start()], value]
            length += match.start() - index
            index = match.end()
            layer.add((length, length + len(value)), match.span())
            length += len(value)
        return "".join((*parts, text[index:]))


class _Layer:
    """The replacements of one pass: spans in the new text, and in the one before it."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self._ends: list[int] = []
        self._old: list[Span] = []

    def add(self, new: Span, old: Span) -> None:
        self.begins.append(new[0])
        self._ends.append(new[1])
        self._old.append(old)

    def start(self, index: int) -> int:
        place = bisect_right(self.begins, index) - 1
        if place < 0:
            return index
        rest = index - self._ends[place]
        return self._old[place][0] if rest < 0 else self._old[place][1] + rest

    def end(self, index: int) -> int:
        place = bisect_right(self.begins, index - 1) - 1
        if place < 0:
            return index
        return self._old[place][1] + max(index - self._ends[place], 0)


def _decoded(match: "re.Match[str]") -> str:
    kind, text = match.lastgroup, match[0]
    if kind == "percent":
        return _utf_8(bytes.fromhex(text.replace("%", "")))
    if kind == "hex":
        return _utf_8(bytes.fromhex(text.replace("\\", "").replace("x", "")))
    if kind == "octal":
        digits = text.replace("\\", "")
        return _utf_8(bytes(int(digits[index : index + 3], 8) for index in range(0, len(digits), 3)))
    if kind == "unicode":
        units = bytes.fromhex(text.replace("\\", "").replace("u", ""))
        return units.decode("utf-16-be", "surrogatepass")
    if kind in ("wide", "braced"):
        code = int(match[kind], 16)
        return chr(code) if code < 0x110000 else ""
    if kind == "control":
        return {"n": "\n", "r": "\r", "t": "\t"}[match["control"]]
    if kind == "entity":
        from html import unescape

        return unescape(text)
    # Backslashes before something else, a line that goes on, a terminal's colour; for an entity see above.
    return ""


def _utf_8(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape").translate(_NOT_UTF_8)
