"""Pure: the end of a stream as a person would have seen it on a terminal, line by line."""

import re

# What terminals are told and people do not see: colours (Python 3.13's tracebacks, rich), cursor moves, titles.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def lines(tail: bytes) -> list[str]:
    """Return the lines of *tail* without escapes; of a line that was drawn over (a progress bar) what was left."""
    text = _ESCAPE.sub("", tail.decode("utf-8", "replace"))
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]


def last(tail: bytes, count: int, room: int) -> str:
    """Return the last *count* lines that are not empty, fewer where they have more than *room* characters.

    The end says why: what must go goes from the front. Of a last line too long by itself the beginning is kept.
    """
    said = [line.rstrip() for line in lines(tail) if line.strip()][-count:]
    while len(said) > 1 and sum(len(line) + 1 for line in said) > room:
        del said[0]
    text = "\n".join(said)
    return text if len(text) <= room else text[: room - 3] + "..."
