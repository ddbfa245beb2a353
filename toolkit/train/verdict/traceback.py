"""Pure: finds the last complete Python traceback at the end of a stream, with its error and place.

A stream may hold several: handled exceptions that were printed, those of threads, and those that Python prints at exit.
The last one that could have ended the process counts.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from toolkit.job.outcome import signal_name
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.train.verdict import tail

# torch.distributed writes "[rank3]: " before every line of an uncaught traceback that is not empty (torch >= 2.3).
_RANK = lazy(r"^\[rank\d+\]: ?")
_START = lazy(r"^(?P<before>.*?)(?P<start>(?:\+ Exception Group )?Traceback \(most recent call last\):)\s*$")
_IN_A_GROUP = lazy(r"\s*[|+][\s|+-]*(?:Exception Group )?$")
_GROUP = "+ Exception Group"
_CHAINED: dict[str, Literal["cause", "context"]] = {
    "During handling of the above exception, another exception occurred:": "context",
    "The above exception was the direct cause of the following exception:": "cause",
}
_FRAME = lazy(r'^[\s|]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
# "ValueError: text", "module.Error", "KeyboardInterrupt": a dotted name at the line's start, a colon or the line's end.
_ERROR = lazy(r"^(?P<name>[^\W\d][\w.<>]*)(?::|$)")
# Python prints no "Traceback" line for a script that it cannot compile.
_SYNTAX = lazy(r"^(?:SyntaxError|IndentationError|TabError)(?::|$)")
# The line before a traceback that did not end the process: Python, logging and atexit print it and continue.
_WENT_ON = lazy(r"Exception ignored |--- Logging error ---|Error in atexit\._run_exitfuncs")
# The line before one that ended a thread or a child, and the error by which a launcher repeats its ranks': the cause
# only if there is no other.
_SECOND_HAND = lazy(r"Exception in thread |Process \S+:$")
_CHILD = lazy(r"Process \S+:$")
REPEATS = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
# Its message is a table of failures: first those of the ranks that torchrun stopped itself, last the one that counts.
ROOT = "Root Cause (first observed failure):"
_PROGRAM = lazy(r"^(?P<program>\S.*) FAILED$", re.MULTILINE)
_FAILURE = lazy(r"^  rank +: (?P<rank>\d+).*\n  exitcode +: (?P<code>-?\d+) ", re.MULTILINE)
# A message of several lines ends at an empty line, another traceback or a log line.
_LOG = lazy(r"\[?\d{4}-\d\d-\d\d|\[?[IWEF]\d{4} |\[[IWEF][ \]]|\[?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
# TensorFlow's AutoGraph: then, indented, the frames of the user's code and the error again.
IN_USER_CODE = ": in user code:"
# Open MPI prints such lines around its help texts, which follow on the rank's stderr.
_FRAME_LINE = lazy(r"-{70,}$")
MESSAGE_LINES = 30
GROUP_MEMBERS = 10
_ENDS_A_MESSAGE = (_START, _LOG, _WENT_ON, _SECOND_HAND, _FRAME_LINE)


class ChainedError(Record, frozen=True, kw_only=True):
    """An exception before another one in a chain: how it led to it, its `error` lines and its frames."""

    how: Literal["cause", "context"]
    error: str
    frames: tuple[str, ...] = ()


class Traceback(Record, frozen=True, kw_only=True):
    """A traceback as Python printed it."""

    text: str
    """The whole text, with the tracebacks that it is chained to."""
    error: str
    """The lines of its error, the last of the chain."""
    place: str
    """The innermost place, "FILE:LINE in FUNCTION"."""
    frames: tuple[str, ...] = ()
    """The places of all frames, innermost first."""
    chain: tuple[ChainedError, ...] = ()
    """The exceptions before the last one, the nearest first."""
    after: int = 0
    """The number of non-empty lines that the same process wrote after it."""
    command_output: str = ""
    """The output of the failed command that it reports, if that was captured."""
    of_child: bool = False
    """multiprocessing printed it of a child."""

    @property
    def kind(self) -> str:
        """The exception's type without its module."""
        name = _ERROR.match(self.error)
        return name["name"].rpartition(".")[2] if name is not None else ""


def find_before(stream: bytes, error: str) -> Iterator[Traceback]:
    """Yield the complete tracebacks in *stream* before one whose error begins with *error*, the last first; all
    where there is no such one. One that a thread or a child process printed is one of them."""
    traces = []
    for lines, start in _find_starts(stream):
        line = next((line for line in reversed(lines[:start]) if line.strip()), "").strip()
        trace = None if _WENT_ON.match(line) or line in _CHAINED else _read_traceback(lines, start)
        if trace is not None:
            traces.append(msgspec.structs.replace(trace, of_child=_CHILD.match(line) is not None))
    index = next((index for index, trace in enumerate(traces) if trace.error.startswith(error)), -1)
    yield from traces[index + 1 :]


def find_last(stream: bytes) -> Traceback | None:
    """Return the last complete traceback in *stream* that can have ended the process, None if there is none.

    Complete: from its first line (of the first in a chain) to its error line. One cut by the tail's start is not.
    """
    spare = None
    for lines, start in _find_starts(stream):
        line_before = next((line for line in reversed(lines[:start]) if line.strip()), "").strip()
        trace = None if _WENT_ON.match(line_before) else _read_traceback(lines, start)
        if trace is None:
            continue
        if not _SECOND_HAND.match(line_before) and not trace.error.startswith(REPEATS):
            return trace
        spare = spare or msgspec.structs.replace(trace, of_child=_CHILD.match(line_before) is not None)
    return spare


def read_first_failure(table: str) -> tuple[str, int]:
    """Return (which rank failed first and how, its exit code, below 0 of a signal) by torchrun's *table* of failures,
    ("", 0) if it does not say."""
    root = table.partition(ROOT)[2].partition("\n===")[0]
    program, failure = _PROGRAM.search(table), _FAILURE.search(root)
    if program is None or failure is None or "Traceback (most recent call last):" in root:
        return "", 0  # Of a script with torchrun's @record the table has the exception itself.
    code = int(failure["code"])
    how = f"was killed by {signal_name(-code)} (signal {-code})" if code < 0 else f"ended with code {code}"
    return f"rank {failure['rank']} of {program['program']} failed first: it {how}", code


def _find_starts(stream: bytes) -> Iterator[tuple[list[str], int]]:
    """Yield (lines, index of the first line) of each possible traceback, the last first; the lines of one speaker."""
    starts = []
    for lines in _split_by_speaker(stream):
        texts = [line for _, line in lines]
        starts += [(index, texts, place) for place, (index, _) in enumerate(lines) if _begins_traceback(texts, place)]
    for _, texts, place in sorted(starts, key=lambda start: start[0], reverse=True):
        yield texts, place


def _split_by_speaker(stream: bytes) -> list[list[tuple[int, str]]]:
    """Return the numbered lines of each speaker: each rank that tags its lines, and the rest. All share empty lines."""
    tagged: list[tuple[str | None, str]] = []
    for line in tail.split_lines(stream):
        tag = _RANK.match(line)
        text = line[tag.end() :] if tag else line
        voice = tag[0].rstrip() if tag else "" if text.strip() else None
        start = _START.match(text)
        if start is not None and start["before"].strip() and not _IN_A_GROUP.match(start["before"]):
            # A progress bar leaves its line open: the traceback begins in the middle of it.
            tagged.append((voice, start["before"]))
            text = start["start"]
        tagged.append((voice, text))
    voices = dict.fromkeys(voice for voice, _ in tagged if voice is not None)
    return [[(index, text) for index, (of, text) in enumerate(tagged) if of in (voice, None)] for voice in voices]


def _begins_traceback(lines: list[str], index: int) -> bool:
    start = _START.match(lines[index])
    if start is not None:
        return not start["before"].strip()
    frame = _FRAME.match(lines[index])
    if frame is None or frame["function"] or (index and lines[index - 1].startswith(("  ", "Traceback "))):
        return False
    error = _find_error_line(lines, index, margin=0)
    return error is not None and bool(_SYNTAX.match(lines[error]))


def _read_traceback(lines: list[str], start: int) -> Traceback | None:
    if lines[start].strip().startswith(_GROUP):
        return _read_group(lines, start)
    headed = _START.match(lines[start]) is not None
    margin = len(lines[start]) - len(lines[start].lstrip()) if headed else 0
    error = _find_error_line(lines, start, margin=margin)
    if error is None:
        return None
    end = _find_message_end(lines, error)
    if lines[error].endswith(IN_USER_CODE):
        inner, inner_end = _find_error_in_user_code(lines, error)
        if inner is not None:
            return _make_traceback(lines, start, inner_end, lines[inner].strip(), lines[start:inner])
    return _make_traceback(lines, start, end, "\n".join(lines[error:end]).strip(), lines[start:error])


def _find_error_line(lines: list[str], start: int, *, margin: int) -> int | None:
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if not line.strip():
            return None
        indent = len(line) - len(line.lstrip())
        if indent <= margin:
            return index if indent == margin and _ERROR.match(line.strip()) else None
    return None


def _find_message_end(lines: list[str], error: int) -> int:
    for index in range(error + 1, min(error + MESSAGE_LINES, len(lines))):
        line = lines[index]
        if not line.strip() or any(pattern.match(line) for pattern in _ENDS_A_MESSAGE):
            return index
    return min(error + MESSAGE_LINES, len(lines))


def _find_error_in_user_code(lines: list[str], error: int) -> tuple[int | None, int]:
    """Return (the line with the true error inside AutoGraph's message, the message's end)."""
    inner, end = None, error + 1
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
        if lines[end].startswith("    ") and _ERROR.match(lines[end][4:]):
            inner = end
        end += 1
    return inner, end


def read_chained_errors(text: str) -> list[str]:
    """Return the error lines of all exceptions but the last in the chained traceback *text*."""
    lines = [_RANK.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    return [lines[index - 1] for index, line in enumerate(lines) if line in _CHAINED and index]


def _find_chain_start(lines: list[str], start: int) -> int:
    first = start
    for earlier in range(start - 1, -1, -1):
        if not _begins_traceback(lines, earlier):
            continue
        if not any(line.strip() in _CHAINED for line in lines[max(earlier, first - 4) : first]):
            break
        first = earlier
    return first


def _read_group(lines: list[str], start: int) -> Traceback | None:
    """Read an exception group: its own error line, then those of its members, and the first member's place."""
    end = start + 1
    while end < len(lines) and re.match(r"\s*[|+]", lines[end]):
        end += 1
    inside = [re.sub(r"^\s*\| ?", "", line) for line in lines[start:end]]
    errors = [index for index, line in enumerate(inside) if index and _ERROR.match(line)]
    if not errors:
        return None
    errors_text = [inside[index] for index in errors]
    leaf = next((index for index in errors if not inside[index].split(":")[0].endswith("ExceptionGroup")), errors[0])
    return _make_traceback(lines, start, end, "\n".join(errors_text[: GROUP_MEMBERS + 1]), lines[start : start + leaf])


def _read_chain(lines: list[str], first: int, last: int) -> tuple[ChainedError, ...]:
    """Return the exceptions of a chain that begins at *first*, before the traceback at *last*, the nearest first."""
    starts = [index for index in range(first, last + 1) if _begins_traceback(lines, index)]
    links = []
    for start, following in itertools.pairwise(starts):
        how = next((_CHAINED[text] for line in lines[start:following] if (text := line.strip()) in _CHAINED), None)
        error = _find_error_line(lines, start, margin=len(lines[start]) - len(lines[start].lstrip()))
        if how is not None and error is not None:
            error_text = "\n".join(lines[error : _find_message_end(lines, error)]).strip()
            links.append(ChainedError(how=how, error=error_text, frames=_read_frames(lines[start:error])))
    return tuple(reversed(links))


def _read_frames(lines: list[str]) -> tuple[str, ...]:
    frames = []
    for match in filter(None, map(_FRAME.match, lines)):
        function = f" in {match['function'].removesuffix('  *')}" if match["function"] else ""
        frames.append(f"{match['file']}:{match['line']}{function}")
    return tuple(reversed(frames))


def _make_traceback(lines: list[str], start: int, end: int, error: str, frames: list[str]) -> Traceback:
    """Return the traceback that begins at *start*, after those of its chain."""
    first, places = _find_chain_start(lines, start), _read_frames(frames)
    failure = read_first_failure("\n".join(lines[start:]))[0] if error.startswith(REPEATS) else ""
    if failure:
        error, places = f"{REPEATS}: {failure}", ()  # torchrun's own frames say nothing.
        root = next(index for index in range(start, len(lines)) if ROOT in lines[index])
        end = next((index for index in range(root, len(lines)) if lines[index].startswith("===")), end - 1) + 1
    return Traceback(
        text="\n".join(lines[first:end]).rstrip(),
        error=error,
        place=places[0] if places else "",
        frames=places,
        chain=_read_chain(lines, first, start) if first < start else (),
        after=sum(1 for line in lines[end:] if line.strip()),
    )
