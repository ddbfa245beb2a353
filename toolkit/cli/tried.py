"""Reads logs and definitions for the `try` commands, and formats their output."""

import sys
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import UserError
from toolkit.train.source.files import kind_of
from toolkit.train.supervise.bars import collapsed


def content(path: Path) -> bytes:
    """Return a file's content.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _make_error(path, error) from None


def lines(log: str) -> Iterator[bytes]:
    """Yield the lines of a file, or of stdin for "-", as `train` passes them to metrics and rules: of a progress bar,
    only the last state.

    Raises:
        UserError: it cannot be read.
    """
    if log == "-":
        yield from map(collapsed, sys.stdin.buffer)
        return
    try:
        with Path(log).open("rb") as file:
            yield from map(collapsed, file)
    except OSError as error:
        raise _make_error(Path(log), error) from None


def _make_error(path: Path, error: OSError) -> UserError:
    kind = kind_of(path)
    if kind == "a file":
        hint = "Correct the path, or its owner and permissions."
        return UserError(
            f"expected a file, found one that cannot be read ({error.strerror})", where=str(path), hint=hint
        )
    return UserError(f"expected a file, found {kind}", where=str(path), hint="Correct the path.")


def many(count: int, singular: str, plural: str = "") -> str:
    """Return "1 line", "2,000 lines"; *plural* is an irregular plural of *singular*."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def printable(text: str) -> str:
    """Return *text* as one printable line, with dots for control characters (a bar's carriage returns, colours)."""
    return "".join(character if character.isprintable() else "·" for character in text.rstrip("\r\n"))
