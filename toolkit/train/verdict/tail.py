"""Pure: the end of a stream as lines, as a terminal would have shown them."""

import itertools

from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.terminal import without_backspaces

# Escape sequences: colours (Python 3.13's tracebacks, rich), cursor moves, titles.
_ESCAPE = lazy(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# Information and warnings that libraries log by themselves: torch and glog ("[W1121 03:28:14.5 socket.cpp:761] ..."),
# TensorFlow ("2026-11-21 03:28:14.5: W tensorflow/..."), faulthandler's list of modules, the toolkit's own in a rank
# (toolkit/rank/compiler, toolkit/rank/dataparallel); and Python's warnings, whose second line shows the code.
_REMARK = lazy(
    r"\[?[IW]\d{4} \d\d:\d\d|\[[IW] \w|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |Extension modules: "
    r"|\[toolkit\] (?:compiler|smddp): "
)
# What a rank of MPICH 5 prints first when mpirun's daemon is gone before it. What follows (MPI_Finalize failed, with a
# stack) is a consequence.
_MPIRUN_IS_GONE = lazy(r"\[cli[_-]\d+\]: PMIU_write error")
_WARNING = lazy(r"\S.*/(?:(?:site|dist)-packages|lib/python\d[^/]*)/.*:\d+: \w*Warning: ")
# Lines that may be the script's own reason, but often are not: records below error level in the formats of logging and
# transformers, and warnings whose place is in the script.
_SOFT_REMARK = lazy(r"(?:WARNING|INFO|DEBUG):[\w.]+:|\[(?:WARNING|INFO|DEBUG)\|")
_SOFT_WARNING = lazy(r"\S.*:\d+: \w*Warning: ")
# A frame of a stack that another runtime printed below its error: Java, Node.js, .NET and Rust ("at"), Java's rest of a
# cause, Ruby ("from"), torch and other C++ ("frame #3", "@"); and the place of a frame whose function is the line
# before it (Julia, Go, Rust).
_FRAME = lazy(
    r"\s+at \S|\s+\.\.\. \d+ (?:more|common frames omitted)$|\s+from \S+:\d+:in |frame #\d+: |\s+@ +0x[0-9a-f]+ "
)
_FRAME_PLACE = lazy(r"\s+@ \S+ \S+:\d+|\s+@ \S+:\d+|\t/\S+\.go:\d+|\s+at /rustc/|\s+at \./")
# The last line of Node.js: its own version.
_VERSION = lazy(r"Node\.js v\d[\d.]*$")

MATCHED_CHARACTERS = 4096


# The start of an error: "ValueError: ", "train.py: error: ", "fatal: ", "run.sh: line 3: ", dash's "run.sh: 3: ".
_ERROR = lazy(
    r"(?:\[rank\d+\]: ?)?(?:[\w.]*(?:Error|Exception|Exit|Interrupt)\b|(?:\S{1,200}: ){0,2}(?i:error|fatal|abort): "
    r"|\S{1,200}: (?:line )?\d+: )"
)


def split_lines(stream: bytes) -> list[str]:
    """Return the lines of *stream* without escape sequences; of an overwritten line (a progress bar) the last state.

    An error is not overwritten: a carriage return in it came with a value (a file with Windows line ends), and is shown
    as "\\r".
    """
    text = _ESCAPE.sub("", stream.decode("utf-8", "replace"))
    return [_final_state(line) for line in text.split("\n")]


def _final_state(line: str) -> str:
    line = line.rstrip("\r")
    if "\r" in line:
        line = line.replace("\r", "\\r") if _ERROR.match(line) else line.rpartition("\r")[2]
    return without_backspaces(line)


def last_lines(stream: bytes, count: int, room: int) -> str:
    """Return the last *count* non-empty lines, fewer if they have more than *room* characters.

    The first lines are dropped first, because the last ones name the reason. A last line that is too long is cut at its
    end.
    """
    return _fit_lines(split_lines(stream), count, room)


def last_words(stream: bytes, count: int, room: int, *, warnings: bool = True) -> str:
    """Return the same without the remarks of libraries: a warning at start-up does not explain a failure.

    *warnings*: whether to keep warnings that may be the script's own.
    """
    output = list(itertools.takewhile(lambda line: not _MPIRUN_IS_GONE.match(line), split_lines(stream)))
    warning = _WARNING if warnings else _SOFT_WARNING
    warned = {index for index, line in enumerate(output) if warning.match(line[:MATCHED_CHARACTERS])}
    code_lines = {index + 1 for index in warned if output[index + 1 : index + 2] and output[index + 1].startswith("  ")}
    remarks = {
        index for index, line in enumerate(output) if _REMARK.match(line) or (not warnings and _SOFT_REMARK.match(line))
    }
    left_out = warned | code_lines | remarks | _find_stack_frames(output)
    return _fit_lines([line for index, line in enumerate(output) if index not in left_out], count, room)


def _find_stack_frames(lines: list[str]) -> set[int]:
    """Return the indices of the frames of each stack but its first: a stack follows its error, and has more frames than
    lines that are shown."""
    short = [line[:MATCHED_CHARACTERS] for line in lines]
    places = {index for index, line in enumerate(short) if _FRAME_PLACE.match(line)}
    frames = (
        places
        | {index - 1 for index in places if index}
        | {index for index, line in enumerate(short) if _FRAME.match(line)}
    )
    versions = {index for index, line in enumerate(short) if _VERSION.match(line)}
    return {index for index in frames if index - 1 in frames} | versions


def _fit_lines(lines: list[str], count: int, room: int) -> str:
    excerpt = [line.rstrip() for line in lines if line.strip()][-count:]
    while len(excerpt) > 1 and sum(len(line) + 1 for line in excerpt) > room:
        del excerpt[0]
    return beginning("\n".join(excerpt), room)
