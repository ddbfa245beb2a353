"""Reads the last lines that a host printed."""

import re
from collections.abc import Callable
from pathlib import Path

from toolkit import files

TAIL_BYTES = 256 * 1024  # Of which the lines are taken; fourfold, again and again, while long lines leave too few.
MOST_BYTES = 16 * 1024 * 1024
MASKED = 64 * 1024  # Characters of a line that are masked; only the first of them are shown.
LONGEST = 2000  # Characters of a line that are shown.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# C0 and C1 controls, line separators, and what turns the direction of the text that follows.
_TURNS = (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160), *_TURNS), "�")


def tail(path: Path, lines: int, mask: Callable[[str], str]) -> tuple[str, ...]:
    """Return the last *lines* lines of the file at *path*: decoded, without escape sequences, masked.

    The last state of a progress bar (`\\r`) counts as the line. A line is masked as a whole before it is cut.

    Raises:
        OSError: the file cannot be read.
    """
    if lines <= 0:
        return ()
    text, is_whole = _read_end(path, lines)
    every = text.split("\n") if is_whole else text.split("\n")[1:] or [text]
    if every and not every[-1]:
        every.pop()
    states = [line.rstrip("\r").rpartition("\r")[2] for line in every[-lines:]]
    cut = [max(0, len(line) - MASKED) for line in states]
    states_text = "\n".join(_ESCAPES.sub("", line[:MASKED]) for line in states)
    plain = mask(states_text).split("\n") if states else []
    more = cut if len(cut) == len(plain) else [0] * len(plain)
    return tuple(_clean(line, left) for line, left in zip(plain, more, strict=True))


def clean_line(text: str) -> str:
    """Return one line, which is masked, without escape sequences and control characters, and cut."""
    return _clean(_ESCAPES.sub("", text), 0)


def _read_end(path: Path, lines: int) -> tuple[str, bool]:
    """Return the end of the file, with *lines* lines where MOST_BYTES have them, and whether it is all of it."""
    reach = TAIL_BYTES
    with files.opened(path) as file:
        size = file.seek(0, 2)
        while True:
            file.seek(max(0, size - reach))
            content = file.read(reach)
            if reach >= min(size, MOST_BYTES) or content.count(b"\n") > lines:
                return content.decode("utf-8", "replace"), reach >= size
            reach *= 4


def _clean(line: str, left: int) -> str:
    """Return *line* without control characters and cut; *left* characters of it were cut before."""
    line = line.translate(_CONTROLS)
    left += max(0, len(line) - LONGEST)
    return f"{line[:LONGEST]}... ({left} more characters)" if left else line
