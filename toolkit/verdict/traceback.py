"""Pure: finds the last whole Python traceback in the end of a stream, and what it says."""

import re

from toolkit.records import Record

# torch.distributed writes "[rank3]: " before every line of an uncaught exception's traceback (torch >= 2.3).
_RANK = re.compile(r"^\[rank\d+\]: ?")
_START = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
# "ValueError: text", "module.Error", "KeyboardInterrupt": a dotted name at the line's start, a colon or the line's end.
_ERROR = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::|$)")


class Traceback(Record, frozen=True, kw_only=True):
    """A traceback as printed (`text`, chained ones included), its final `error` lines, and the innermost `place`."""

    text: str
    error: str
    place: str


def last(tail: bytes) -> Traceback | None:
    """Return the last whole traceback in *tail*, None if there is none.

    Whole: from its first line (of the first in a chain) to its error line. One that the tail's start cut is not whole.
    """
    lines = [_RANK.sub("", line) for line in tail.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")]
    starts = [index for index, line in enumerate(lines) if line.strip() == _START]
    for start in reversed(starts):
        end = _error_line(lines, start)
        if end is not None:
            return _read(lines, _first_of_chain(lines, starts, start), start, end)
    return None


def _error_line(lines: list[str], start: int) -> int | None:
    margin = len(lines[start]) - len(lines[start].lstrip())
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if not line.strip():
            return None
        if len(line) - len(line.lstrip()) > margin:
            continue
        return index if _ERROR.match(line.strip()) else None
    return None


def _message_end(lines: list[str], error: int) -> int:
    # A message may have several lines; it ends at an empty line, at what looks like a log line, or after 30.
    for index in range(error + 1, min(error + 30, len(lines))):
        line = lines[index]
        if not line.strip() or line.strip() == _START or re.match(r"\[|\d{4}-|[A-Z]+[: ]|W\d|E\d", line):
            return index
    return min(error + 30, len(lines))


def _first_of_chain(lines: list[str], starts: list[int], start: int) -> int:
    first = start
    for earlier in reversed([index for index in starts if index < start]):
        between = [line.strip() for line in lines[earlier:first]]
        if not any(line in _CHAINED for line in between[-4:]):
            break
        first = earlier
    return first


def _read(lines: list[str], first: int, start: int, error: int) -> Traceback:
    end = _message_end(lines, error)
    frames = [match for line in lines[start:error] if (match := _FRAME.match(line))]
    place = ""
    if frames:
        frame = frames[-1]
        function = f" in {frame['function']}" if frame["function"] else ""
        place = f"{frame['file']}:{frame['line']}{function}"
    text = "\n".join(lines[first:end]).rstrip()
    return Traceback(text=text, error="\n".join(lines[error:end]).strip(), place=place)
