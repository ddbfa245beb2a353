"""Pure: what a process that failed said of it: its exception, else its last words, else how it ended."""

import re
import signal

from toolkit.job.outcome import Ended, Exit, Memory
from toolkit.verdict import pip, traceback
from toolkit.verdict import tail as ends
from toolkit.verdict.traceback import Traceback

LAST_LINES = 8
# Of the failure text's 1,024 characters; the rest is for kind, place and the beginning of the command.
LAST_CHARACTERS = 600
# How old a traceback may be to be the cause: lines written after it. Behind the true one come warnings of libraries and
# summaries of trackers (wandb: some 40 lines), and Python itself then ends with 1; any other code a script has chosen.
NEAR_LINES = 20
FAR_LINES = 200
FATAL = b"Fatal Python error: "  # faulthandler's first words
# argparse: "train.py: error: unrecognized arguments: --lr", below the usage.
OPTION_ERROR = re.compile(r"^\S.*?: error: ")


def cause_of(ended: Ended, culprit: Exit) -> tuple[str, str]:
    """Return (the cause in one or few lines, the whole traceback or "")."""
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    if ended.failure.startswith("Install"):
        error = pip.cause(stderr) or pip.cause(stdout)
        if error:
            return error, ""
    found = last_traceback(ended, culprit)
    trace = found.text if found is not None else ""
    if culprit.signal is not None:
        cause = f"{culprit.process} was {how(culprit)}"
        if culprit.told:
            cause += " after train had told it to end"
        elif culprit.signal == signal.SIGKILL:
            cause += _why_killed(ended.memory)
        said = f"its last traceback: {_error(found)}" if found is not None else _said_last(stderr, stdout, 3)
        return f"{cause}; {said}" if said else cause, trace
    if found is not None:
        said = _said_last(stderr, stdout, 1) if found.after > NEAR_LINES else ""
        return f"{_error(found)}\n{said}" if said else _error(found), trace
    last_line = ends.last(stderr, 1, LAST_CHARACTERS)
    if OPTION_ERROR.match(last_line):
        return last_line, ""
    said = ends.last(stderr, LAST_LINES, LAST_CHARACTERS) or ends.last(stdout, LAST_LINES, LAST_CHARACTERS)
    return said or f"{culprit.process} {how(culprit)} without a word", ""


def _why_killed(memory: Memory | None) -> str:
    """Return what is known of a SIGKILL that was not ours: out of memory only where the kernel has counted it."""
    if memory is None or memory.oom_kills is None:
        return " (not by the toolkit; whether memory had run out is not counted here)"
    if memory.oom_kills == 0:
        return " (not by the toolkit, and not for want of memory: the kernel counts no out-of-memory kill)"
    peak = "" if memory.peak_bytes is None else f", peak {_gib(memory.peak_bytes)}"
    return f" by the kernel, out of memory (limit {_gib(memory.limit_bytes)}{peak}, {memory.oom_kills} kill(s) counted)"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB"


def _error(found: Traceback) -> str:
    place = f" (at {found.place})" if found.place else ""
    first, newline, rest = found.error.partition("\n")
    return f"{first}{place}{newline}{rest}"


def _said_last(stderr: bytes, stdout: bytes, count: int) -> str:
    said = ends.last(stderr, count, LAST_CHARACTERS) or ends.last(stdout, count, LAST_CHARACTERS)
    return f"it last said: {said}" if said else ""


def how(end: Exit) -> str:
    """Return "ended with code 3", "killed by SIGSEGV (signal 11)"."""
    if end.signal is not None:
        name = signal_name(end.signal)
        return f"killed by {name}" + (f" (signal {end.signal})" if name.startswith("SIG") else "")
    return f"ended with code {end.code}"


def signal_name(number: int) -> str:
    """Return "SIGTERM", "signal 63" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_traceback(ended: Ended, end: Exit) -> Traceback | None:
    """Return the last traceback of a process, None if it has none or has gone on for too long after it."""
    within = FAR_LINES if end.code == 1 else NEAR_LINES
    for stream in ended.tails.get(end.process, ()):
        found = traceback.last(stream)
        if found is not None and found.after <= within:
            return found
    return None


def crash(end: Exit, stderr: bytes) -> str:
    """Return Python's stacks at a death by signal (faulthandler's), "" if there are none."""
    _, found, stacks = stderr.rpartition(FATAL)
    return stacks.decode(errors="replace") if found and end.signal is not None else ""
