"""Pure: makes a Traceback of the exception that the rank hook recorded (status_pages.Raised).

Type and place are from the hook: it saw the exception itself, however long the message and whatever was printed.
"""

import re
from typing import Literal

import msgspec

from toolkit.patterns import lazy
from toolkit.status_pages.pages import Raised, Thrown
from toolkit.train.verdict import traceback
from toolkit.train.verdict.traceback import IN_USER_CODE, MESSAGE_LINES, ChainedError, Traceback

_INSIDE = "Traceback (most recent call last):"
# multiprocessing.pool and concurrent.futures chain this to what a worker process sent; in ' to BrokenProcessPool, whose
# reason it is: an exception that cannot be sent, or cannot be made again of what was sent.
_REMOTE = lazy(r"^\S*RemoteTraceback: \n(?P<quotes>\"{3}|'{3})\n(?P<text>.*?)^(?P=quotes)$", re.DOTALL | re.MULTILINE)
# Ray's RayTaskError(ValueError): where the task ran, then its traceback without the first line, by Ray's frames first.
_TASK = lazy(r"(?:\x1b\[\d+m)?ray::.*\n(?=  File \")")
# TensorFlow's errors inside a tf.function: where the operation was made, line by line, stands before what it said.
_GRAPH = lazy(r"Graph execution error:\n(?:(?:[ \t].*|Detected at node .*|<.*>|)\n)*(?P<found>\S[^\t]*)")


def read_exception(noted: Raised) -> Traceback | None:
    """Return the exception in *noted*: the one that ended the process, or the one being handled when sys.exit was
    called; None if there is none."""
    if noted.kind == "SystemExit":
        thrown = noted.handling
        return None if thrown is None else _read_thrown(thrown, noted)
    return _read_thrown(noted, noted)


def _read_thrown(thrown: Raised | Thrown, noted: Raised) -> Traceback:
    kind, message, text = thrown.kind, thrown.message, noted.text
    chain = tuple(_read_link(exception.link, exception) for exception in noted.behind if exception.link)
    read = Traceback(
        text=text.strip(),
        error=_format_error(kind, message),
        place=thrown.place,
        frames=thrown.frames or tuple(filter(None, (thrown.place,))),
        chain=chain,
        command_output=thrown.captured_output,
    )
    graph = _GRAPH.match(message)
    if graph is not None:
        reason = graph["found"].partition(_INSIDE)[0]  # A Python function's own traceback repeats its error.
        return msgspec.structs.replace(read, error=_format_error(kind, reason))
    failure, _ = traceback.read_first_failure(f"{message}\n" if traceback.ROOT in message else text)
    if failure and kind.endswith("ChildFailedError"):
        return msgspec.structs.replace(read, error=f"{kind}: {failure}", place="", frames=())
    task = _TASK.match(message)
    ran = (
        traceback.find_last(f"{_INSIDE}\n{message[task.end() :]}".encode("utf-8", "replace"))
        if task is not None
        else None
    )
    if ran is not None:
        return msgspec.structs.replace(read, error=ran.error, place=ran.place, frames=(*ran.frames, *read.frames))
    # A message may hold the traceback of another process (mp.spawn, a DataLoader's worker), or what AutoGraph ran; a
    # group's members are only in the text, and a SyntaxError's place is not where it was raised.
    nested = _INSIDE in message or message.startswith(IN_USER_CODE.removeprefix(": "))
    if nested or kind.endswith(("ExceptionGroup", "SyntaxError", "IndentationError", "TabError")):
        printed = traceback.find_last(text.encode("utf-8", "replace"))
        if printed is not None:
            return msgspec.structs.replace(
                read, error=printed.error, place=printed.place, frames=printed.frames or read.frames
            )
    remote = _REMOTE.match(text)
    sent = traceback.find_last(remote["text"].encode("utf-8", "replace")) if remote is not None else None
    if sent is None:
        return read
    if sent.error.splitlines()[0] != read.error.splitlines()[0]:
        first = (ChainedError(how=link.how, error=sent.error, frames=sent.frames) for link in chain[:1])
        return msgspec.structs.replace(read, chain=(*first, *chain[1:]))
    # It is chained to what the worker sent, which says nothing else. A function that was sent as a value (joblib) has
    # no file of the user's own: then the call of it has.
    return msgspec.structs.replace(read, place=sent.place, frames=(*sent.frames, *read.frames), chain=chain[1:])


def _read_link(how: Literal["cause", "context"], thrown: Thrown) -> ChainedError:
    frames = thrown.frames or tuple(filter(None, (thrown.place,)))
    return ChainedError(how=how, error=_format_error(thrown.kind, thrown.message), frames=frames)


def _format_error(kind: str, message: str) -> str:
    # A carriage return inside a line is shown: it is often the very error (a file with Windows line ends).
    text = message.replace("\r\n", "\n").replace("\r", "\\r")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][:MESSAGE_LINES]
    return "\n".join((f"{kind}: {lines[0]}", *lines[1:])) if lines else kind
