"""Pure: the cause of a failed process: its exception, else its last lines, else how it ended."""

import signal
from collections.abc import Callable
from typing import TypeVar

from toolkit.exit_codes import signal_in
from toolkit.job.cause import Grounds
from toolkit.job.outcome import INSTALL_FAILURES, Ended, Exit, Memory, signal_name
from toolkit.patterns import lazy
from toolkit.status_pages import Raised
from toolkit.verdict import crash, pip, traceback
from toolkit.verdict import tail as ends
from toolkit.verdict.crash import Crash
from toolkit.verdict.raised import exception
from toolkit.verdict.traceback import Traceback

_T = TypeVar("_T")
LAST_LINES = 8
# Of the failure text's 1,024 characters. The rest holds the kind, the place and the start of the command.
LAST_CHARACTERS = 600
# Of an exception's message, so that its place fits after it.
MESSAGE_CHARACTERS = 400
# How many lines may follow a traceback that is the cause. After an uncaught exception libraries print warnings,
# trackers print summaries (wandb: some 40 lines), and Python exits with 1: FAR. A script that exits with another code
# has chosen it: NEAR. A script that gives up because of the traceback prints only a few lines after it: AT_ONCE.
AT_ONCE_LINES = 3
NEAR_LINES = 20
FAR_LINES = 200
# The signals by which a process ends itself. A shell around it ends with 128 + the signal.
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)
# argparse: "train.py: error: unrecognized arguments: --lr", below the usage.
OPTION_ERROR = lazy(r"^\S.*?: error: ")


def cause_of(ended: Ended, culprit: Exit) -> tuple[str, str]:
    """Return (the cause in one or few lines, the whole traceback or "")."""
    return _read(lambda: _cause_of(ended, culprit), (f"{culprit.process} {how(culprit)}", ""))


def _cause_of(ended: Ended, culprit: Exit) -> tuple[str, str]:
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    if ended.failure in INSTALL_FAILURES:
        error = pip.cause(stderr) or pip.cause(stdout)
        if error:
            return error, ""
    crashed = crash_of(ended, culprit)
    if culprit.signal is not None or crashed is not None:
        return _of_death(ended, culprit, crashed)
    noted = ended.raised.get(culprit.process)
    if noted is not None and noted.kind == "SystemExit":
        return _of_exit(ended, culprit, noted)
    found = last_traceback(ended, culprit)
    if found is not None:
        return _of_exception(ended, culprit, found), found.text
    return _words(ended, culprit.process) or f"{culprit.process} {how(culprit)} without a word", ""


def grounds(ended: Ended, culprit: Exit) -> Grounds:
    """Return what kind of evidence the cause of *culprit*'s end is based on."""
    by_itself = culprit.signal is None and culprit.raised_ns is None and crash_of(ended, culprit) is None
    if not by_itself or culprit.process in ended.raised or last_traceback(ended, culprit) is not None:
        return "reason"
    return _read(lambda: "words" if _words(ended, culprit.process) else "nothing", "reason")


def account(ended: Ended, end: Exit) -> str:
    """Return the text by which to tell whether a process's failure is collateral: its exception or last lines."""
    return _read(lambda: _account(ended, end), "")


def _account(ended: Ended, end: Exit) -> str:
    noted = ended.raised.get(end.process)
    found = exception(noted) if noted is not None else None
    if found is not None:
        return found.error
    crashed = crash_of(ended, end)
    if crashed is not None:
        found = _before(crashed)
        return "\n".join((*crashed.words, found.error if found is not None else ""))
    found = last_traceback(ended, end)
    return found.error if found is not None else ends.last(_stderr(ended, end), LAST_LINES, LAST_CHARACTERS)


def handled(ended: Ended, end: Exit) -> str:
    """Return the errors that a process was handling when it raised the one that ended it.

    If a script wraps the error of a broken collective, or hides it (`raise ... from None`), it has still lost its peer.
    """
    return _read(lambda: _handled(ended, end), "")


def _handled(ended: Ended, end: Exit) -> str:
    noted = ended.raised.get(end.process)
    behind = [f"{each.kind}: {each.message}" for each in noted.behind] if noted is not None else []
    found = last_traceback(ended, end)
    return "\n".join((*behind, *(traceback.chained(found.text) if found is not None else ())))


def last_traceback(ended: Ended, end: Exit) -> Traceback | None:
    """Return the exception of a process, None if it has none.

    The exception that the rank hook recorded comes before the last printed one. A printed one counts only if few lines
    follow it.
    """
    return _read(lambda: _last_traceback(ended, end), None)


def _last_traceback(ended: Ended, end: Exit) -> Traceback | None:
    noted = ended.raised.get(end.process)
    found = exception(noted) if noted is not None else None
    return found or _printed(ended, end, FAR_LINES if end.code == 1 else NEAR_LINES)


def exception_text(ended: Ended, end: Exit) -> tuple[str, str]:
    """Return (the exception that ended a process, with its place; its traceback), ("", "") if none did."""
    found = last_traceback(ended, end)
    if found is None or end.signal is not None or found.after > NEAR_LINES:
        return "", ""
    return ("", "") if found.error.startswith("KeyboardInterrupt") else (_error(found), found.text)


def crash_of(ended: Ended, end: Exit) -> Crash | None:
    """Return what a process printed about the fatal signal that ended it or its child; None if it printed nothing."""
    number = end.signal or signal_in(end.code or 0)
    return _read(lambda: crash.read(_stderr(ended, end)), None) if number in CRASHES else None


def _of_death(ended: Ended, culprit: Exit, crashed: Crash | None) -> tuple[str, str]:
    """Return the cause and the traceback of a process that a signal ended."""
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    cause = f"{culprit.process} was {how(culprit)}" if culprit.signal else f"{culprit.process} {how(culprit)}"
    if culprit.signalled:
        cause += " after train had signalled it"
    elif culprit.signal == signal.SIGKILL:
        cause += _why_killed(ended.memory)
    noted = ended.raised.get(culprit.process)
    found = exception(noted) if noted is not None else None
    if found is None and crashed is None:
        found = last_traceback(ended, culprit)
    elif found is None and crashed is not None:
        found = _before(crashed)
    trace = found.text if found is not None else ""
    if crashed is None:
        said = f"its last traceback: {_error(found)}" if found is not None else _said_last(stderr, stdout, 3)
        return f"{cause}; {said}" if said else cause, trace
    parts = [cause]
    if found is not None:
        parts.append(f"its last traceback: {_error(found)}")
    parts += ["\n".join(crashed.words)] if crashed.words else []
    text = "; ".join(parts)
    if crashed.places:
        text += f"\nPython was in {', called from '.join(crashed.places)}"
    return text, trace


def _before(crashed: Crash) -> Traceback | None:
    """Return the traceback that a process had printed before it crashed."""
    found = traceback.last(crashed.before)
    return found if found is not None and found.after <= NEAR_LINES else None


def _of_exit(ended: Ended, culprit: Exit, noted: Raised) -> tuple[str, str]:
    """Return the cause and the traceback of a process that called sys.exit or raised SystemExit.

    The message given to sys.exit comes first, then the exception that the process was handling or had handled.
    """
    printed = _printed(ended, culprit, NEAR_LINES)
    words = _bounded(noted.message.strip() or _words(ended, culprit.process, behind=printed, code=culprit.code))
    handling, thrown = exception(noted), noted.handling
    if handling is not None and thrown is not None:
        shown = printed is not None and printed.error.startswith(handling.error.partition("\n")[0])
        if shown or not words or thrown.kind.rpartition(".")[2] in words:  # It was shown, in whatever style.
            return _error(handling), handling.text
        if not noted.message and OPTION_ERROR.match(words):
            return words, ""
        known = thrown.message.strip() and thrown.message.strip() in words
        error = f"{thrown.kind} (at {handling.place})" if known and handling.place else _error(handling)
        return f"{words}\nwhile it was handling {error}", handling.text
    left = f"called sys.exit at {noted.place}" if noted.place else "ended by itself"
    if printed is None:
        silent = f"{culprit.process} {how(culprit)} without a word"
        return words or (f"{silent}; it {left}" if noted.place else silent), ""
    # "except Exception: traceback.print_exc(); return 1" and "sys.exit(main())": its traceback is the reason.
    if not words:
        return f"{_error(printed)}\nthe script went on after this and {left}", printed.text
    if culprit.code == 1 and not noted.message and printed.after <= AT_ONCE_LINES:
        return f"{_error(printed)}\nthe script then {left} and last said: {words}", printed.text
    survived = _error(printed).partition("\n")[0]
    return f"{words}\nbefore that it printed a traceback and went on: {survived}", printed.text


def _of_exception(ended: Ended, culprit: Exit, found: Traceback) -> str:
    """Return an exception with its context: the last line if many lines followed, or the assertion of the GPU."""
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    said = ""
    chosen = culprit.code != 1 and culprit.process not in ended.raised
    if found.after > NEAR_LINES or (chosen and found.after):
        said = _said_last(stderr, stdout, 1)
    elif chosen and ended.last_on.get(culprit.process, "stderr") != "stderr":
        said = _said_last(b"", stdout, 1)
    if "device-side assert" in found.error:
        said = crash.assertion(stderr)
    return f"{_error(found)}\n{said}" if said else _error(found)


def _printed(ended: Ended, end: Exit, within: int) -> Traceback | None:
    for stream in ended.tails.get(end.process, ()):
        found = traceback.last(stream)
        if found is not None and found.after <= within:
            return found
    return None


def _words(ended: Ended, process: str, *, behind: Traceback | None = None, code: int | None = None) -> str:
    """Return the last lines of a process, from the stream to which it wrote last.

    *behind*: only lines after this traceback, whose message has one line if the script chose *code*. Warnings count
    only if there are no other lines.
    """
    found = _spoken(ended, process, behind, code, warnings=False)
    return found or ("" if behind is not None else _spoken(ended, process, None, code, warnings=True))


def _spoken(ended: Ended, process: str, behind: Traceback | None, code: int | None, *, warnings: bool) -> str:
    stderr, stdout = ended.tails.get(process, (b"", b""))
    if behind is not None:
        more = behind.error.count("\n") if code != 1 else 0
        said = [line for line in stderr.split(b"\n") if line.strip()]
        stderr = b"\n".join(said[len(said) - behind.after - more :])
    option_error = ends.last(stderr, 1, LAST_CHARACTERS)
    if OPTION_ERROR.match(option_error):
        return option_error
    last_on = ended.last_on.get(process, "stderr")
    errors = ends.words(stderr, LAST_LINES, LAST_CHARACTERS, warnings=warnings)
    if last_on == "stderr" and (errors or behind is not None):
        return errors
    if not errors:
        return ends.words(stdout, LAST_LINES, LAST_CHARACTERS, warnings=warnings)
    half = LAST_CHARACTERS // 2
    words = ends.words(stdout, LAST_LINES // 2, half, warnings=warnings)
    if not words:
        return errors
    if last_on == "both":
        return f"{words}\n{ends.words(stderr, LAST_LINES // 2, half, warnings=warnings)}"
    return f"{words}\nits last words on stderr, before that: {ends.words(stderr, 1, half, warnings=warnings)}"


def _bounded(words: str) -> str:
    return "\n".join(line[:LAST_CHARACTERS] for line in words.splitlines()[:LAST_LINES])


def _read(reading: Callable[[], _T], otherwise: _T) -> _T:
    """Return *reading*'s result, *otherwise* if it raises: an unreadable text must not change a known exit status."""
    try:
        return reading()
    except Exception:  # noqa: BLE001 - a fault in the reading of texts is no fault of the job
        return otherwise


def _stderr(ended: Ended, end: Exit) -> bytes:
    return ended.tails.get(end.process, (b"", b""))[0]


def _why_killed(memory: Memory | None) -> str:
    """Return what is known of a SIGKILL that `train` did not send: out of memory only if the kernel has counted it."""
    if memory is None or memory.oom_kills is None:
        return " (not by the toolkit; whether memory had run out is not counted here)"
    if memory.oom_kills == 0:
        return " (not by the toolkit, and not for want of memory: the kernel counts no out-of-memory kill)"
    peak = "" if memory.peak_bytes is None else f", peak {_gib(memory.peak_bytes)}"
    kills = "1 kill" if memory.oom_kills == 1 else f"{memory.oom_kills} kills"
    return f" by the kernel, out of memory (limit {_gib(memory.limit_bytes)}{peak}, {kills} counted)"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB"


def _error(found: Traceback) -> str:
    """Return an exception with its place; before a long message, whose end would not fit into the failure text."""
    first, *rest = found.error.split("\n")
    place = f" (at {found.place})" if found.place else ""
    kind, colon, message = first.partition(":")
    first = f"{first}{place}" if len(first) <= MESSAGE_CHARACTERS else f"{kind}{place}{colon}{message}"
    return "\n".join((first, *(line[:MESSAGE_CHARACTERS] for line in rest)))


def _said_last(stderr: bytes, stdout: bytes, count: int) -> str:
    said = ends.words(stderr, count, LAST_CHARACTERS) or ends.words(stdout, count, LAST_CHARACTERS)
    return f"it last said: {said}" if said else ""


def how(end: Exit) -> str:
    """Return "ended with code 3", "killed by SIGSEGV (signal 11)"."""
    if end.signal is not None:
        name = signal_name(end.signal)
        return f"killed by {name}" + (f" (signal {end.signal})" if name.startswith("SIG") else "")
    return f"ended with code {end.code}"
