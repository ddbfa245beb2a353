"""Pure: the end of a stream as a person would have seen it on a terminal, line by line."""

from toolkit.patterns import lazy

# What terminals are told and people do not see: colours (Python 3.13's tracebacks, rich), cursor moves, titles.
_ESCAPE = lazy(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# Information and warnings that libraries log by themselves: torch and glog ("[W1121 03:28:14.5 socket.cpp:761] ..."),
# TensorFlow ("2026-11-21 03:28:14.5: W tensorflow/..."), faulthandler's list of modules; and Python's warnings, whose
# second line shows the code.
_REMARK = lazy(r"\[?[IW]\d{4} \d\d:\d\d|\[[IW] \w|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |Extension modules: ")
_WARNING = lazy(r"\S.*/(?:(?:site|dist)-packages|lib/python\d[^/]*)/.*:\d+: \w*Warning: ")
# What may be the script's own reason, and as often is not: lines of logging's default format and of transformers' below
# an error, and warnings that point at the script.
_SOFT_REMARK = lazy(r"(?:WARNING|INFO|DEBUG):[\w.]+:|\[(?:WARNING|INFO|DEBUG)\|")
_SOFT_WARNING = lazy(r"\S.*:\d+: \w*Warning: ")

MATCHED_CHARACTERS = 4096


def lines(tail: bytes) -> list[str]:
    """Return the lines of *tail* without escapes; of a line that was drawn over (a progress bar) what was left."""
    text = _ESCAPE.sub("", tail.decode("utf-8", "replace"))
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]


def last(tail: bytes, count: int, room: int) -> str:
    """Return the last *count* lines that are not empty, fewer where they have more than *room* characters.

    The end says why: what must go goes from the front. Of a last line too long by itself the beginning is kept.
    """
    return _fitted(lines(tail), count, room)


def words(tail: bytes, count: int, room: int, *, warnings: bool = True) -> str:
    """Return the same without what libraries remark: a start-up warning is no reason of an end. *warnings*: whether
    warnings that may be the script's own count."""
    said = lines(tail)
    warning = _WARNING if warnings else _SOFT_WARNING
    warned = {at for at, line in enumerate(said) if warning.match(line[:MATCHED_CHARACTERS])}
    shown = {at + 1 for at in warned if said[at + 1 : at + 2] and said[at + 1].startswith("  ")}
    remarks = {at for at, line in enumerate(said) if _REMARK.match(line) or (not warnings and _SOFT_REMARK.match(line))}
    return _fitted([line for at, line in enumerate(said) if at not in warned | shown | remarks], count, room)


def _fitted(lines: list[str], count: int, room: int) -> str:
    said = [line.rstrip() for line in lines if line.strip()][-count:]
    while len(said) > 1 and sum(len(line) + 1 for line in said) > room:
        del said[0]
    text = "\n".join(said)
    return text if len(text) <= room else text[: room - 3] + "..."
