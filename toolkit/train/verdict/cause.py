"""Pure: the cause of a failed process: its exception, else its last lines, else how it ended."""

import signal
from collections.abc import Callable
from typing import TypeVar

from toolkit.exit_codes import signal_in
from toolkit.job.cause import Grounds
from toolkit.job.outcome import INSTALL_FAILURES, Ended, Exit, Memory, signal_name
from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.status_pages.pages import Raised
from toolkit.train.verdict import crash, pip, place, traceback
from toolkit.train.verdict import tail as ends
from toolkit.train.verdict.crash import Crash
from toolkit.train.verdict.raised import exception
from toolkit.train.verdict.traceback import Link, Traceback

_T = TypeVar("_T")
LAST_LINES = 8
# Of the failure text's 1,024 characters. The rest holds the kind, the place and the start of the command.
LAST_CHARACTERS = 600
# Of an exception's message, so that its place fits after it.
MESSAGE_CHARACTERS = 400
# Of an exception with a chain, and of each exception that is named of its chain, so that both fit.
CHAINED_CHARACTERS = 250
LINK_CHARACTERS = 180
# So long before its parent's exception that of a child may be the reason.
CHILD_NS = 30_000_000_000
# The innermost frames, by which advice tells one error of a library from another.
EVIDENCE_FRAMES = 6
# Exceptions that report the failure of a process that the script started: what ended that process is the cause.
REPORTS = ("CalledProcessError", "ChildFailedError", "UnexpectedExit", "ProcessExecutionError", "ErrorReturnCode")
# Lines that torchrun prints before it reports the failure of its ranks.
OF_TORCHRUN = (b" torch/distributed/elastic/", b" torch/distributed/run.py", b"*" * 30, b"Setting OMP_NUM_THREADS ")
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


class Reading(Record, frozen=True, kw_only=True):
    """Why a process failed: `text` in one or few lines, and the whole `traceback`, "" if there is none.

    What advice is given for: `error`, what ended the process; `caused_by`, the errors that it was raised from;
    `handled`, those that were being handled when it was raised.
    """

    text: str
    traceback: str = ""
    error: str = ""
    caused_by: tuple[str, ...] = ()
    handled: tuple[str, ...] = ()


def cause_of(ended: Ended, culprit: Exit) -> Reading:
    """Return the cause of the end of *culprit*."""
    return read_or(lambda: _cause_of(ended, culprit), Reading(text=f"{culprit.process} {how(culprit)}"))


def _cause_of(ended: Ended, culprit: Exit) -> Reading:
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    if ended.failure in INSTALL_FAILURES:
        error = pip.cause(stderr, stdout) or pip.cause(stdout, stderr)
        if error:
            return Reading(text=error, error=error)
        found = last_traceback(ended, culprit)
        if found is not None and not place.of_user(found.frames, ended.own_code):
            # pip's own frames say nothing about the requirements.
            text = f"{culprit.process} failed: {found.error}"
            return Reading(text=text, traceback=found.text, error=found.error)
    crashed = crash_of(ended, culprit)
    if culprit.signal is not None or crashed is not None:
        return _of_death(ended, culprit, crashed)
    noted = ended.raised.get(culprit.process)
    if noted is not None and noted.kind == "SystemExit":
        return _of_exit(ended, culprit, noted)
    found = last_traceback(ended, culprit)
    if found is not None:
        return _reading(_of_exception(ended, culprit, found), found)
    words = _words(ended, culprit.process)
    if not words:
        return _of_silence(ended, culprit, f"{culprit.process} {how(culprit)} without a word")
    return Reading(text=words, error=f"{words}\n{ends.last(stderr, LAST_LINES, LAST_CHARACTERS)}")


def _of_silence(ended: Ended, culprit: Exit, text: str) -> Reading:
    """Return *text* with the exception that ended a child of the script: "raise SystemExit(error.returncode)" after a
    child whose output was captured."""
    child = _child_before(ended, culprit)
    if child is None:
        return Reading(text=text)
    return Reading(text=f"{text}\n{_says_of_child(ended, child)}", traceback=child.text)


def grounds(ended: Ended, culprit: Exit) -> Grounds:
    """Return what kind of evidence the cause of *culprit*'s end is based on."""
    by_itself = culprit.signal is None and culprit.raised_ns is None and crash_of(ended, culprit) is None
    if not by_itself or culprit.process in ended.raised or last_traceback(ended, culprit) is not None:
        return "reason"
    return read_or(lambda: "words" if _words(ended, culprit.process) else "nothing", "reason")


def account(ended: Ended, end: Exit) -> str:
    """Return the text by which to tell whether a process's failure is collateral: its exception or last lines."""
    return read_or(lambda: _account(ended, end), "")


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
    return read_or(lambda: _handled(ended, end), "")


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
    return read_or(lambda: _last_traceback(ended, end), None)


def _last_traceback(ended: Ended, end: Exit) -> Traceback | None:
    noted = ended.raised.get(end.process)
    found = exception(noted) if noted is not None else None
    return found or _printed(ended, end, FAR_LINES if end.code == 1 else NEAR_LINES)


def exception_text(ended: Ended, end: Exit) -> tuple[str, str]:
    """Return (the exception that ended a process, with its place; its traceback), ("", "") if none did."""
    found = last_traceback(ended, end)
    if found is None or end.signal is not None or found.after > NEAR_LINES:
        return "", ""
    return ("", "") if found.kind == "KeyboardInterrupt" else (_error(ended, found), found.text)


def crash_of(ended: Ended, end: Exit) -> Crash | None:
    """Return what a process printed about the fatal signal that ended it or its child; None if it printed nothing."""
    number = end.signal or signal_in(end.code or 0)
    return read_or(lambda: crash.read(_stderr(ended, end), ended.own_code), None) if number in CRASHES else None


def _of_death(ended: Ended, culprit: Exit, crashed: Crash | None) -> Reading:
    """Return the cause of the end of a process that a signal ended."""
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
        said = f"its last traceback: {_error(ended, found)}" if found is not None else _said_last(stderr, stdout, 3)
        text = f"{cause}; {said}" if said else cause
        last = ends.last(stderr, LAST_LINES, LAST_CHARACTERS) if found is None else ""
        return Reading(text=text, traceback=trace, error=f"{text}\n{last}")
    parts = [cause]
    if found is not None:
        parts.append(f"its last traceback: {_error(ended, found)}")
    parts += ["\n".join(crashed.words)] if crashed.words else []
    text = "; ".join(parts)
    if crashed.places:
        text += f"\nPython was in {', called from '.join(crashed.places)}"
    return Reading(text=text, traceback=trace, error=f"{text}\n{crashed.stacks}")


def _before(crashed: Crash) -> Traceback | None:
    """Return the traceback that a process had printed before it crashed."""
    found = traceback.last(crashed.before)
    return found if found is not None and found.after <= NEAR_LINES else None


def _of_exit(ended: Ended, culprit: Exit, noted: Raised) -> Reading:
    """Return the cause of the end of a process that called sys.exit or raised SystemExit.

    The message given to sys.exit comes first, then the exception that the process was handling or had handled.
    """
    printed = _printed(ended, culprit, NEAR_LINES)
    words = _bounded(noted.message.strip() or _words(ended, culprit.process, behind=printed, code=culprit.code))
    handling, thrown = exception(noted), noted.handling
    if handling is not None and thrown is not None:
        shown = printed is not None and printed.error.startswith(handling.error.partition("\n")[0])
        if shown or not words or thrown.kind.rpartition(".")[2] in words:  # It was shown, in whatever style.
            return _reading(_with_chain(ended, handling), handling)
        if not noted.message and OPTION_ERROR.match(words):
            return Reading(text=words, error=words)
        known = thrown.message.strip() and thrown.message.strip() in words
        where = place.shown(handling.frames, ended.own_code)
        error = f"{thrown.kind} (at {where})" if known and where else _error(ended, handling)
        text = f"{words}\nwhile it was handling {error}"
        return Reading(text=text, traceback=handling.text, error=words, caused_by=(_evidence(handling),))
    left = f"called sys.exit at {noted.place}" if noted.place else "ended by itself"
    if printed is None:
        silent = f"{culprit.process} {how(culprit)} without a word"
        if words:
            return Reading(text=words, error=words)
        return _of_silence(ended, culprit, f"{silent}; it {left}" if noted.place else silent)
    child = printed.of_child or any(_is_same(each, printed) for each in ended.raised_by_children)
    # "except Exception: traceback.print_exc(); return 1" and "sys.exit(main())": its traceback is the reason.
    error = _error(ended, printed)
    if not words and child:
        return _reading(f"{error}\nit ended a process that the script had started; the script then {left}", printed)
    if not words and culprit.code == 1 and not noted.place and not printed.after:
        # What ends a script without the hook's knowledge: both an exception and "raise SystemExit(1)" after one.
        return _reading(error, printed)
    if not words:
        return _reading(f"{error}\nthe script went on after this and {left}", printed)
    if culprit.code == 1 and not noted.message and printed.after <= AT_ONCE_LINES:
        text = f"{error}\nthe script then {left} and last said: {words}"
        return Reading(text=text, traceback=printed.text, error=words, caused_by=(_evidence(printed),))
    survived = error.partition("\n")[0]
    text = f"{words}\nbefore that it printed a traceback and went on: {survived}"
    return Reading(text=text, traceback=printed.text, error=words)


def _of_exception(ended: Ended, culprit: Exit, found: Traceback) -> str:
    """Return an exception with its context: the last line if many lines followed, the assertion of the GPU, or what a
    command said whose failure it reports."""
    reported = ended.reported_by.get(culprit.process, "")
    error = _with_chain(ended, found)
    if found.kind == "ChildFailedError" and _ended_before(ended, culprit, found) is None:
        error = "\n".join(filter(None, (error, _said_by_rank(ended, culprit))))
    if reported:
        first, newline, rest = error.partition("\n")
        return f"{first} ({reported}){newline}{rest}"
    stderr, stdout = ended.tails.get(culprit.process, (b"", b""))
    said = ""
    chosen = culprit.code != 1 and culprit.process not in ended.raised
    if found.after > NEAR_LINES or (chosen and found.after):
        said = _said_last(stderr, stdout, 1)
    elif chosen and ended.last_on.get(culprit.process, "stderr") != "stderr":
        said = _said_last(b"", stdout, 1)
    if "device-side assert" in found.error:
        said = crash.assertion(stderr)
    of_child = any(_is_same(each, found) for each in ended.raised_by_children)
    if of_child:
        said = ""  # What a shell or a launcher says after its child's exception only repeats it.
    child = None if of_child or said else _ended_before(ended, culprit, found)
    if child is not None:
        said = _says_of_child(ended, child)
    if found.kind.startswith(REPORTS) and found.kind != "ChildFailedError":
        error = beginning(_error(ended, found, CHAINED_CHARACTERS), 2 * CHAINED_CHARACTERS)
        words = _words_of_command(found, stderr)
        said = f"the command last said: {words}" if words else said
    return f"{error}\n{said}" if said else error


def _ended_before(ended: Ended, culprit: Exit, found: Traceback) -> Traceback | None:
    """Return the exception that ended a child of the script just before *found*, None if none is known: *found* may say
    only that a child failed (a RuntimeError after Popen.wait). The script may as well have handled it."""
    child = _child_before(ended, culprit)
    if child is not None:
        return child
    before = traceback.before(_stderr(ended, culprit), found.error.partition("\n")[0])
    return next((each for each in before if each.of_child and each.after - found.after <= NEAR_LINES * 2), None)


def _child_before(ended: Ended, culprit: Exit) -> Traceback | None:
    """Return the exception that the rank hook recorded of a child of *culprit* just before it failed."""
    at_ns = culprit.failed_ns
    recent = [each for each in ended.raised_by_children if at_ns - CHILD_NS <= each.time_ns <= at_ns]
    recent = [each for each in recent if each.kind != "SystemExit" and not _is_report(each)]
    own = [each for each in recent if each.parent == culprit.pid]
    if not own and sum(end.rank is not None for end in ended.exits) == 1:  # A shell in between: os.system.
        known = {each.pid for each in recent}
        own = [each for each in recent if each.parent not in known]
    return exception(max(own, key=lambda each: each.time_ns)) if own else None


def _says_of_child(ended: Ended, child: Traceback) -> str:
    return f"before that a process that it had started ended by {_first_line(ended, child)}"


def _is_report(noted: Raised) -> bool:
    return noted.kind.rpartition(".")[2].startswith(REPORTS)


def _first_line(ended: Ended, found: Traceback) -> str:
    return beginning(_error(ended, found, CHAINED_CHARACTERS).partition("\n")[0], CHAINED_CHARACTERS)


def _words_of_command(found: Traceback, stderr: bytes) -> str:
    """Return the last words of the command whose failure *found* reports: as captured, else as printed before it."""
    if found.said:
        return ends.words(found.said.encode("utf-8", "replace"), 3, LAST_CHARACTERS // 2)
    printed = stderr[: stderr.rfind(b"Traceback (most recent call last):")] if not found.after else b""
    return ends.words(printed, 3, LAST_CHARACTERS // 2)


def _said_by_rank(ended: Ended, culprit: Exit) -> str:
    """Return what a rank said last, before torchrun reported its failure."""
    streams = ended.tails.get(culprit.process, ())
    stream = next((each for each in streams if traceback.REPEATS.encode() in each), b"")
    report = stream.rfind(b"Traceback (most recent call last):", 0, stream.rfind(traceback.REPEATS.encode()))
    before = stream[: max(report, 0)].split(b"\n")
    printed = b"\n".join(line for line in before if not any(words in line for words in OF_TORCHRUN))
    crashed = crash.read(printed, ended.own_code)
    if crashed is None:
        words = ends.words(printed, 3, LAST_CHARACTERS // 2)
        return f"before that the ranks last said: {words}" if words else ""
    places = f"Python was in {', called from '.join(crashed.places)}" if crashed.places else ""
    return "\n".join(filter(None, (*crashed.words, places)))


def _is_same(noted: Raised, printed: Traceback) -> bool:
    """True if *printed* is the traceback of the exception *noted*."""
    known = exception(noted)
    return known is not None and known.error.partition("\n")[0] == printed.error.partition("\n")[0]


def _reading(text: str, found: Traceback) -> Reading:
    """Return *text*, which tells of *found*, with what advice is given for."""
    causes = next((at for at, link in enumerate(found.chain) if link.how == "context"), len(found.chain))
    return Reading(
        text=text,
        traceback=found.text,
        error=_evidence(found),
        caused_by=tuple(link.error for link in found.chain[:causes]),
        handled=tuple(link.error for link in found.chain[causes:]),
    )


def _evidence(found: Traceback) -> str:
    return "\n".join((found.error, found.said, *found.frames[:EVIDENCE_FRAMES]))


def _with_chain(ended: Ended, found: Traceback) -> str:
    """Return an exception with its place, and the first of its chain: what it was raised from, or what was being
    handled when it was raised."""
    causes = next((at for at, link in enumerate(found.chain) if link.how == "context"), len(found.chain))
    parts = []
    if causes:
        parts.append(("caused by", found.chain[causes - 1]))
    if causes < len(found.chain):
        parts.append(("which was raised while handling" if causes else "raised while handling", found.chain[-1]))
    parts = [(how, link) for how, link in parts if link.error != found.error]
    if not parts:
        return _error(ended, found)
    error = beginning(_error(ended, found, CHAINED_CHARACTERS), 2 * CHAINED_CHARACTERS)
    return "\n".join((error, *(f"{how} {_link(ended, link, found.error)}" for how, link in parts)))


def _link(ended: Ended, link: Link, known: str) -> str:
    """Return *link* with its place; without its message if *known*, the exception that it led to, repeats it."""
    kind, _, message = link.error.partition("\n")[0].partition(": ")
    shown = kind if not message or message in known else f"{kind}: {message}"
    users = place.of_user(link.frames, ended.own_code)
    where = place.shown(link.frames, ended.own_code) if users else place.short("".join(link.frames[:1]), ())
    return beginning(shown, LINK_CHARACTERS) + (f" (at {where})" if where else "")


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
    return "\n".join(beginning(line, LAST_CHARACTERS) for line in words.splitlines()[:LAST_LINES])


def read_or(reading: Callable[[], _T], otherwise: _T) -> _T:
    """Return what *reading* returns, *otherwise* if it raises: an unreadable text must not change a known status."""
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


def _error(ended: Ended, found: Traceback, room: int = MESSAGE_CHARACTERS) -> str:
    """Return an exception with its place; before a message of more than *room* characters, whose end would not fit into
    the failure text."""
    first, *rest = found.error.split("\n")
    shown = place.shown(found.frames, ended.own_code) or found.place
    where = f" (at {shown})" if shown else ""
    kind, colon, message = first.partition(":")
    first = f"{first}{where}" if len(first) <= room else f"{kind}{where}{colon}{message}"
    return "\n".join((first, *(beginning(line, MESSAGE_CHARACTERS) for line in rest)))


def _said_last(stderr: bytes, stdout: bytes, count: int) -> str:
    said = ends.words(stderr, count, LAST_CHARACTERS) or ends.words(stdout, count, LAST_CHARACTERS)
    return f"it last said: {said}" if said else ""


def how(end: Exit) -> str:
    """Return "ended with code 3", "killed by SIGSEGV (signal 11)"."""
    if end.signal is not None:
        name = signal_name(end.signal)
        return f"killed by {name}" + (f" (signal {end.signal})" if name.startswith("SIG") else "")
    return f"ended with code {end.code}"
