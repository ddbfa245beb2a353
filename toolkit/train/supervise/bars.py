"""Pure: progress bars in the lines that a process writes: the text of a line, and the lines that are only states.

Bars write (tqdm 4.67, rich 15, Keras 3):

    "\\r 10%|#   | 1/10" "\\r 20%|##  | 2/10" ... "\\n"    one bar: all its states form one line
    "\\n\\r 30%|###  | 3/10\\x1b[A"                         a bar at position 1: one row down, and up again
    "\\r\\x1b[2K\\x1b[1A\\x1b[2KRow 1 ... \\nRow 2 ..."       rich, several rows: up to the first, then all rows again
    " 1/10 [=>..]\\b\\b\\b\\b\\b... 2/10 [==>.]"               backspaces over the state before (Keras 1, own bars)

So a line's text is its last visible state. A line that later output overwrites is a state, too: a line that ends with a
move upwards, or a bar's row that such a move reached. Every other line is kept.
"""

from collections.abc import Iterator

from toolkit.patterns import lazy
from toolkit.terminal import without_backspaces

# Control sequences that show nothing, without those for colours (they end with "m"): ECMA-48's CSI and OSC.
_MOVES = lazy(rb"\x1b\[[0-9;?]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_COLOURS = lazy(rb"\x1b\[[0-9;]*m")
_UP = lazy(rb"\x1b\[\d*[AF]")
# tqdm's "45%|", block elements (U+2580 to U+259F), and the characters of rich's bars.
_BAR = lazy(rb"\d%\||\xe2\x96[\x80-\x9f]|\xe2\x94\x81|\xe2\x95[\xb8\xba]")


def last_state(line: bytes) -> bytes:
    """Return the last visible state of *line* (no newline in it), without cursor movements; b"" if there is none."""
    end = _end(line)
    while end >= 0:
        start = line.rfind(b"\r", 0, end) + 1
        state = _without_backspaces(_MOVES.sub(b"", line[start:end]))
        if _COLOURS.sub(b"", state).strip():
            return state
        end = start - 1
    return b""


def kept_from(held: bytes) -> int:
    """Return the offset of the last visible state in *held*, an unfinished line."""
    end = _end(held)
    while end > 0:
        start = held.rfind(b"\r", 0, end) + 1
        if _COLOURS.sub(b"", _MOVES.sub(b"", held[start:end])).replace(b"\b", b"").strip():
            return start
        end = start - 1
    return 0


def _end(line: bytes) -> int:
    """Return the end of the last state of *line* that is not blank: a bar may write a million of those."""
    end = line.find(b"\r", len(line.rstrip(b"\r \t")))
    return len(line) if end < 0 else end


def is_plain(block: bytes) -> bool:
    """True if no line of *block* has states; a carriage return directly before the newline does not make one."""
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
        return False
    return b"\b" not in block and (b"\x1b" not in block or _UP.search(block) is None)


def collapsed(block: bytes) -> bytes:
    """Return *block*, whole lines, with each line reduced to its last state."""
    if is_plain(block):
        return block
    return b"\n".join(last_state(line) if _has_states(line) else line for line in block.split(b"\n"))


def split(block: bytes) -> tuple[bytes, bytes]:
    """Return (the lines of *block* to keep, the newest line that is only a state, b"" if there is none).

    *block* is whole lines. Each is reduced to its last state.
    """
    if is_plain(block):
        return block, b""
    stay: list[bytes] = []
    newest = b""
    for line in _lines(block):
        if not _has_states(line):
            stay.append(line)
            continue
        state = last_state(line)
        if not state or _is_overwritten(line, state):
            newest = state or newest
        else:
            stay.append(state)
            newest = b""
    return b"".join(line + b"\n" for line in stay), newest


def _lines(block: bytes) -> Iterator[bytes]:
    yield from block.removesuffix(b"\n").split(b"\n")


def _has_states(line: bytes) -> bool:
    return b"\r" in line.removesuffix(b"\r") or b"\b" in line or (b"\x1b" in line and _UP.search(line) is not None)


def _without_backspaces(state: bytes) -> bytes:
    if b"\b" not in state:
        return state
    return without_backspaces(state.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _is_overwritten(line: bytes, state: bytes) -> bool:
    ups = [up.end() for up in _UP.finditer(line)]
    if not ups:
        return False
    below = line[ups[-1] :]
    return not last_state(below) or _BAR.search(state) is not None
