"""The end of what a host printed."""

import re
from collections.abc import Callable
from pathlib import Path

TAIL_BYTES = 256 * 1024  # Of which the lines are taken: a line of a progress bar may be long.
LONGEST = 2000  # Characters of a line that are shown.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")


def tail(path: Path, lines: int, mask: Callable[[str], str]) -> tuple[str, ...]:
    """Return the last *lines* lines of the file at *path*: decoded, without escape sequences, masked.

    The last state of a progress bar (`\\r`) counts as the line. A line is masked as a whole before it is cut.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        content = file.read(TAIL_BYTES)
    text = content.decode("utf-8", "replace")
    if size > TAIL_BYTES:
        text = text.partition("\n")[2] or text
    plain = _ESCAPES.sub("", mask(text)).split("\n")
    if plain and not plain[-1]:
        plain.pop()
    return tuple(_shown(line) for line in plain[-lines:]) if lines > 0 else ()


def _shown(line: str) -> str:
    line = line.rstrip("\r").rpartition("\r")[2].translate(_CONTROLS)
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}... ({len(line) - LONGEST} more characters)"
