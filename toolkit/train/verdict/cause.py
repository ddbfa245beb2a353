"""Pure: the cause of a failed process: its exception, else its last lines, else how it ended."""

import signal
from collections.abc import Callable
from typing import TypeVar

from toolkit.exit_codes import signal_in
from toolkit.job.cause import Evidence
from toolkit.job.outcome import INSTALL_FAILURES, Exit, MemoryUse, PhaseEnd, signal_name
from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.status_pages.pages import Raised
from toolkit.train.verdict import crash, error_frame, pip, tail, traceback
from toolkit.train.verdict.crash import Crash
from toolkit.train.verdict.raised import read_exception
from toolkit.train.verdict.traceback import ChainedError, Traceback

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
    """The reason of a process's failure."""

    text: str
    """The cause in one or few lines."""
    traceback: str = ""
    """The whole traceback, "" if there is none."""
    error: str = ""
    """The error that ended the process: advice is given for it, then for `caused_by` and `handled`."""
    caused_by: tuple[str, ...] = ()
    """The errors that it was raised from."""
    handled: tuple[str, ...] = ()
    """The errors that were being handled when it was raised."""


def read_cause(phase: PhaseEnd, culprit: Exit) -> Reading:
    """Return the cause of the end of *culprit*."""
    return read_or(lambda: _read_cause(phase, culprit), Reading(text=f"{culprit.process} {describe_end(culprit)}"))


def _read_cause(phase: PhaseEnd, culprit: Exit) -> Reading:
    stderr, stdout = phase.tails.get(culprit.process, (b"", b""))
    if phase.failure_kind in INSTALL_FAILURES:
        error = pip.read_reason(stderr, stdout) or pip.read_reason(stdout, stderr)
        if error:
            return Reading(text=error, error=error)
        trace = find_traceback(phase, culprit)
        if trace is not None and not error_frame.find_user_frame(trace.frames, phase.user_paths):
            # pip's own frames say nothing about the requirements.
            text = f"{culprit.process} failed: {trace.error}"
            return Reading(text=text, traceback=trace.text, error=trace.error)
    crashed = find_crash(phase, culprit)
    if culprit.signal is not None or crashed is not None:
        return _read_fatal_signal(phase, culprit, crashed)
    noted = phase.exceptions.get(culprit.process)
    if noted is not None and noted.kind == "SystemExit":
        return _read_sys_exit(phase, culprit, noted)
    trace = find_traceback(phase, culprit)
    if trace is not None:
        return _make_reading(_describe_with_context(phase, culprit, trace), trace)
    words = _read_last_words(phase, culprit.process)
    if not words:
        return _read_silent_end(phase, culprit, f"{culprit.process} {describe_end(culprit)} without a word")
    return Reading(text=words, error=f"{words}\n{tail.last_lines(stderr, LAST_LINES, LAST_CHARACTERS)}")


def _read_silent_end(phase: PhaseEnd, culprit: Exit, text: str) -> Reading:
    """Return *text* with the exception that ended a child of the script: "raise SystemExit(error.returncode)" after a
    child whose output was captured."""
    child = _find_recorded_child(phase, culprit)
    if child is None:
        return Reading(text=text)
    return Reading(text=f"{text}\n{_describe_child(phase, child)}", traceback=child.text)


def evidence_of(phase: PhaseEnd, culprit: Exit) -> Evidence:
    """Return what kind of evidence the cause of *culprit*'s end is based on."""
    by_itself = culprit.signal is None and culprit.exception_raised_ns is None and find_crash(phase, culprit) is None
    if not by_itself or culprit.process in phase.exceptions or find_traceback(phase, culprit) is not None:
        return "error"
    return read_or(lambda: "output" if _read_last_words(phase, culprit.process) else "exit_code", "error")


def error_text(phase: PhaseEnd, end: Exit) -> str:
    """Return the text by which to tell whether a process's failure is collateral: its exception or last lines."""
    return read_or(lambda: _error_text(phase, end), "")


def _error_text(phase: PhaseEnd, end: Exit) -> str:
    noted = phase.exceptions.get(end.process)
    trace = read_exception(noted) if noted is not None else None
    if trace is not None:
        return trace.error
    crashed = find_crash(phase, end)
    if crashed is not None:
        trace = _find_traceback_before(crashed)
        return "\n".join((*crashed.words, trace.error if trace is not None else ""))
    trace = find_traceback(phase, end)
    return trace.error if trace is not None else tail.last_lines(_stderr(phase, end), LAST_LINES, LAST_CHARACTERS)


def handled_errors(phase: PhaseEnd, end: Exit) -> str:
    """Return the errors that a process was handling when it raised the one that ended it.

    If a script wraps the error of a broken collective, or hides it (`raise ... from None`), it has still lost its peer.
    """
    return read_or(lambda: _handled_errors(phase, end), "")


def _handled_errors(phase: PhaseEnd, end: Exit) -> str:
    noted = phase.exceptions.get(end.process)
    behind = [f"{exception.kind}: {exception.message}" for exception in noted.behind] if noted is not None else []
    trace = find_traceback(phase, end)
    return "\n".join((*behind, *(traceback.read_chained_errors(trace.text) if trace is not None else ())))


def find_traceback(phase: PhaseEnd, end: Exit) -> Traceback | None:
    """Return the exception of a process, None if it has none.

    The exception that the rank hook recorded comes before the last printed one. A printed one counts only if few lines
    follow it.
    """
    return read_or(lambda: _find_traceback(phase, end), None)


def _find_traceback(phase: PhaseEnd, end: Exit) -> Traceback | None:
    noted = phase.exceptions.get(end.process)
    trace = read_exception(noted) if noted is not None else None
    return trace or _find_printed(phase, end, FAR_LINES if end.code == 1 else NEAR_LINES)


def describe_exception(phase: PhaseEnd, end: Exit) -> tuple[str, str]:
    """Return (the exception that ended a process, with its place; its traceback), ("", "") if none did."""
    trace = find_traceback(phase, end)
    if trace is None or end.signal is not None or trace.after > NEAR_LINES:
        return "", ""
    return ("", "") if trace.kind == "KeyboardInterrupt" else (_describe_error(phase, trace), trace.text)


def find_crash(phase: PhaseEnd, end: Exit) -> Crash | None:
    """Return what a process printed about the fatal signal that ended it or its child; None if it printed nothing."""
    number = end.signal or signal_in(end.code or 0)
    return read_or(lambda: crash.read_crash(_stderr(phase, end), phase.user_paths), None) if number in CRASHES else None


def _read_fatal_signal(phase: PhaseEnd, culprit: Exit, crashed: Crash | None) -> Reading:
    """Return the cause of the end of a process that a signal ended."""
    stderr, stdout = phase.tails.get(culprit.process, (b"", b""))
    cause = f"{culprit.process} {'was ' if culprit.signal else ''}{describe_end(culprit)}"
    if culprit.signalled:
        cause += " after train had signalled it"
    elif culprit.signal == signal.SIGKILL:
        cause += _describe_sigkill(phase.memory)
    recorded = phase.exceptions.get(culprit.process)
    trace = read_exception(recorded) if recorded is not None else None
    if trace is None:
        trace = find_traceback(phase, culprit) if crashed is None else _find_traceback_before(crashed)
    parts = [cause]
    if trace is not None:
        parts.append(f"its last traceback: {_describe_error(phase, trace)}")
    elif crashed is None:
        parts.append(_describe_last_words(stderr, stdout, 3))
    if crashed is None:
        text = "; ".join(filter(None, parts))
        output = tail.last_lines(stderr, LAST_LINES, LAST_CHARACTERS) if trace is None else ""
    else:
        text = "; ".join((*parts, "\n".join(crashed.words)) if crashed.words else parts)
        if crashed.places:
            text += f"\nPython was in {', called from '.join(crashed.places)}"
        output = crashed.stacks
    return Reading(text=text, traceback=trace.text if trace is not None else "", error=f"{text}\n{output}")


def _find_traceback_before(crashed: Crash) -> Traceback | None:
    """Return the traceback that a process had printed before it crashed."""
    trace = traceback.find_last(crashed.output_before)
    return trace if trace is not None and trace.after <= NEAR_LINES else None


def _read_sys_exit(phase: PhaseEnd, culprit: Exit, noted: Raised) -> Reading:
    """Return the cause of the end of a process that called sys.exit or raised SystemExit.

    The message given to sys.exit comes first, then the exception that the process was handling or had handled.
    """
    printed = _find_printed(phase, culprit, NEAR_LINES)
    words = _cut_lines(
        noted.message.strip() or _read_last_words(phase, culprit.process, behind=printed, code=culprit.code)
    )
    handling, thrown = read_exception(noted), noted.handling
    if handling is not None and thrown is not None:
        is_shown = printed is not None and printed.error.startswith(handling.error.partition("\n")[0])
        if is_shown or not words or thrown.kind.rpartition(".")[2] in words:  # It was shown, in whatever style.
            return _make_reading(_describe_chain(phase, handling), handling)
        if not noted.message and OPTION_ERROR.match(words):
            return Reading(text=words, error=words)
        is_repeated = thrown.message.strip() and thrown.message.strip() in words
        frame = error_frame.describe_place(handling.frames, phase.user_paths)
        error = f"{thrown.kind} (at {frame})" if is_repeated and frame else _describe_error(phase, handling)
        text = f"{words}\nwhile it was handling {error}"
        return Reading(text=text, traceback=handling.text, error=words, caused_by=(_text_for_advice(handling),))
    left = f"called sys.exit at {noted.place}" if noted.place else "ended by itself"
    if printed is None:
        silent = f"{culprit.process} {describe_end(culprit)} without a word"
        if words:
            return Reading(text=words, error=words)
        return _read_silent_end(phase, culprit, f"{silent}; it {left}" if noted.place else silent)
    child = printed.of_child or any(_is_same_exception(child, printed) for child in phase.child_exceptions)
    # "except Exception: traceback.print_exc(); return 1" and "sys.exit(main())": its traceback is the reason.
    error = _describe_error(phase, printed)
    if not words and child:
        return _make_reading(
            f"{error}\nit ended a process that the script had started; the script then {left}", printed
        )
    if not words and culprit.code == 1 and not noted.place and not printed.after:
        # What ends a script without the hook's knowledge: both an exception and "raise SystemExit(1)" after one.
        return _make_reading(error, printed)
    if not words:
        return _make_reading(f"{error}\nthe script went on after this and {left}", printed)
    if culprit.code == 1 and not noted.message and printed.after <= AT_ONCE_LINES:
        text = f"{error}\nthe script then {left} and last said: {words}"
        return Reading(text=text, traceback=printed.text, error=words, caused_by=(_text_for_advice(printed),))
    survived = error.partition("\n")[0]
    text = f"{words}\nbefore that it printed a traceback and went on: {survived}"
    return Reading(text=text, traceback=printed.text, error=words)


def _describe_with_context(phase: PhaseEnd, culprit: Exit, trace: Traceback) -> str:
    """Return an exception with its context: the last line if many lines followed, the assertion of the GPU, or what a
    command said whose failure it reports."""
    reported = phase.reported_by.get(culprit.process, "")
    error = _describe_chain(phase, trace)
    if trace.kind == "ChildFailedError" and _find_child_exception(phase, culprit, trace) is None:
        error = "\n".join(filter(None, (error, _read_rank_words(phase, culprit))))
    if reported:
        first, newline, rest = error.partition("\n")
        return f"{first} ({reported}){newline}{rest}"
    stderr, stdout = phase.tails.get(culprit.process, (b"", b""))
    addition = ""
    chosen = culprit.code != 1 and culprit.process not in phase.exceptions
    if trace.after > NEAR_LINES or (chosen and trace.after):
        addition = _describe_last_words(stderr, stdout, 1)
    elif chosen and phase.last_on.get(culprit.process, "stderr") != "stderr":
        addition = _describe_last_words(b"", stdout, 1)
    if "device-side assert" in trace.error:
        addition = crash.find_assertion(stderr)
    of_child = any(_is_same_exception(child, trace) for child in phase.child_exceptions)
    if of_child:
        addition = ""  # What a shell or a launcher says after its child's exception only repeats it.
    child = None if of_child or addition else _find_child_exception(phase, culprit, trace)
    if child is not None:
        addition = _describe_child(phase, child)
    if trace.kind.startswith(REPORTS) and trace.kind != "ChildFailedError":
        error = beginning(_describe_error(phase, trace, CHAINED_CHARACTERS), 2 * CHAINED_CHARACTERS)
        words = _read_command_words(trace, stderr)
        addition = f"the command last said: {words}" if words else addition
    return f"{error}\n{addition}" if addition else error


def _find_child_exception(phase: PhaseEnd, culprit: Exit, trace: Traceback) -> Traceback | None:
    """Return the exception that ended a child of the script just before *trace*, None if none is known: *trace* may say
    only that a child failed (a RuntimeError after Popen.wait). The script may as well have handled it."""
    child = _find_recorded_child(phase, culprit)
    if child is not None:
        return child
    earlier = traceback.find_before(_stderr(phase, culprit), trace.error.partition("\n")[0])
    return next(
        (candidate for candidate in earlier if candidate.of_child and candidate.after - trace.after <= NEAR_LINES * 2),
        None,
    )


def _find_recorded_child(phase: PhaseEnd, culprit: Exit) -> Traceback | None:
    """Return the exception that the rank hook recorded of a child of *culprit* just before it failed."""
    at_ns = culprit.failed_ns
    recent = [child for child in phase.child_exceptions if at_ns - CHILD_NS <= child.time_ns <= at_ns]
    recent = [child for child in recent if child.kind != "SystemExit" and not _is_report(child)]
    children = [child for child in recent if child.parent == culprit.pid]
    if not children and sum(end.rank is not None for end in phase.exits) == 1:  # A shell in between: os.system.
        pids = {child.pid for child in recent}
        children = [child for child in recent if child.parent not in pids]
    return read_exception(max(children, key=lambda child: child.time_ns)) if children else None


def _describe_child(phase: PhaseEnd, child: Traceback) -> str:
    return f"before that a process that it had started ended by {_first_line(phase, child)}"


def _is_report(noted: Raised) -> bool:
    return noted.kind.rpartition(".")[2].startswith(REPORTS)


def _first_line(phase: PhaseEnd, trace: Traceback) -> str:
    return beginning(_describe_error(phase, trace, CHAINED_CHARACTERS).partition("\n")[0], CHAINED_CHARACTERS)


def _read_command_words(trace: Traceback, stderr: bytes) -> str:
    """Return the last words of the command whose failure *trace* reports: as captured, else as printed before it."""
    if trace.command_output:
        return tail.last_words(trace.command_output.encode("utf-8", "replace"), 3, LAST_CHARACTERS // 2)
    printed = stderr[: stderr.rfind(b"Traceback (most recent call last):")] if not trace.after else b""
    return tail.last_words(printed, 3, LAST_CHARACTERS // 2)


def _read_rank_words(phase: PhaseEnd, culprit: Exit) -> str:
    """Return what a rank said last, before torchrun reported its failure."""
    streams = phase.tails.get(culprit.process, ())
    stream = next((output for output in streams if traceback.REPEATS.encode() in output), b"")
    report = stream.rfind(b"Traceback (most recent call last):", 0, stream.rfind(traceback.REPEATS.encode()))
    lines = stream[: max(report, 0)].split(b"\n")
    printed = b"\n".join(line for line in lines if not any(words in line for words in OF_TORCHRUN))
    crashed = crash.read_crash(printed, phase.user_paths)
    if crashed is None:
        words = tail.last_words(printed, 3, LAST_CHARACTERS // 2)
        return f"before that the ranks last said: {words}" if words else ""
    places = f"Python was in {', called from '.join(crashed.places)}" if crashed.places else ""
    return "\n".join(filter(None, (*crashed.words, places)))


def _is_same_exception(noted: Raised, printed: Traceback) -> bool:
    """True if *printed* is the traceback of the exception *noted*."""
    recorded = read_exception(noted)
    return recorded is not None and recorded.error.partition("\n")[0] == printed.error.partition("\n")[0]


def _make_reading(text: str, trace: Traceback) -> Reading:
    """Return *text*, which tells of *trace*, with what advice is given for."""
    causes = next((index for index, link in enumerate(trace.chain) if link.how == "context"), len(trace.chain))
    return Reading(
        text=text,
        traceback=trace.text,
        error=_text_for_advice(trace),
        caused_by=tuple(link.error for link in trace.chain[:causes]),
        handled=tuple(link.error for link in trace.chain[causes:]),
    )


def _text_for_advice(trace: Traceback) -> str:
    return "\n".join((trace.error, trace.command_output, *trace.frames[:EVIDENCE_FRAMES]))


def _describe_chain(phase: PhaseEnd, trace: Traceback) -> str:
    """Return an exception with its place, and the first of its chain: what it was raised from, or what was being
    handled when it was raised."""
    causes = next((index for index, link in enumerate(trace.chain) if link.how == "context"), len(trace.chain))
    parts = []
    if causes:
        parts.append(("caused by", trace.chain[causes - 1]))
    if causes < len(trace.chain):
        parts.append(("which was raised while handling" if causes else "raised while handling", trace.chain[-1]))
    parts = [(relation, link) for relation, link in parts if link.error != trace.error]
    if not parts:
        return _describe_error(phase, trace)
    error = beginning(_describe_error(phase, trace, CHAINED_CHARACTERS), 2 * CHAINED_CHARACTERS)
    return "\n".join((error, *(f"{relation} {_describe_link(phase, link, trace.error)}" for relation, link in parts)))


def _describe_link(phase: PhaseEnd, link: ChainedError, following: str) -> str:
    """Return *link* with its place; without its message if *following*, the exception that it led to, repeats it."""
    kind, _, message = link.error.partition("\n")[0].partition(": ")
    text = kind if not message or message in following else f"{kind}: {message}"
    users = error_frame.find_user_frame(link.frames, phase.user_paths)
    frame = (
        error_frame.describe_place(link.frames, phase.user_paths)
        if users
        else error_frame.shorten_frame("".join(link.frames[:1]), ())
    )
    return beginning(text, LINK_CHARACTERS) + (f" (at {frame})" if frame else "")


def _find_printed(phase: PhaseEnd, end: Exit, within: int) -> Traceback | None:
    for stream in phase.tails.get(end.process, ()):
        trace = traceback.find_last(stream)
        if trace is not None and trace.after <= within:
            return trace
    return None


def _read_last_words(phase: PhaseEnd, process: str, *, behind: Traceback | None = None, code: int | None = None) -> str:
    """Return the last lines of a process, from the stream to which it wrote last.

    *behind*: only lines after this traceback, whose message has one line if the script chose *code*. Warnings count
    only if there are no other lines.
    """
    words = _read_streams(phase, process, behind, code, warnings=False)
    return words or ("" if behind is not None else _read_streams(phase, process, None, code, warnings=True))


def _read_streams(phase: PhaseEnd, process: str, behind: Traceback | None, code: int | None, *, warnings: bool) -> str:
    stderr, stdout = phase.tails.get(process, (b"", b""))
    if behind is not None:
        more = behind.error.count("\n") if code != 1 else 0
        lines = [line for line in stderr.split(b"\n") if line.strip()]
        stderr = b"\n".join(lines[len(lines) - behind.after - more :])
    option_error = tail.last_lines(stderr, 1, LAST_CHARACTERS)
    if OPTION_ERROR.match(option_error):
        return option_error
    last_on = phase.last_on.get(process, "stderr")
    errors = tail.last_words(stderr, LAST_LINES, LAST_CHARACTERS, warnings=warnings)
    if last_on == "stderr" and (errors or behind is not None):
        return errors
    if not errors:
        return tail.last_words(stdout, LAST_LINES, LAST_CHARACTERS, warnings=warnings)
    half = LAST_CHARACTERS // 2
    words = tail.last_words(stdout, LAST_LINES // 2, half, warnings=warnings)
    if not words:
        return errors
    if last_on == "both":
        return f"{words}\n{tail.last_words(stderr, LAST_LINES // 2, half, warnings=warnings)}"
    return f"{words}\nits last words on stderr, before that: {tail.last_words(stderr, 1, half, warnings=warnings)}"


def _cut_lines(words: str) -> str:
    return "\n".join(beginning(line, LAST_CHARACTERS) for line in words.splitlines()[:LAST_LINES])


def read_or(reading: Callable[[], _T], otherwise: _T) -> _T:
    """Return what *reading* returns, *otherwise* if it raises: an unreadable text must not change a known status."""
    try:
        return reading()
    except Exception:  # noqa: BLE001 - a fault in the reading of texts is no fault of the job
        return otherwise


def _stderr(phase: PhaseEnd, end: Exit) -> bytes:
    return phase.tails.get(end.process, (b"", b""))[0]


def _describe_sigkill(memory: MemoryUse | None) -> str:
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


def _describe_error(phase: PhaseEnd, trace: Traceback, room: int = MESSAGE_CHARACTERS) -> str:
    """Return an exception with its place; before a message of more than *room* characters, whose end would not fit into
    the failure text."""
    first, *rest = trace.error.split("\n")
    frame = error_frame.describe_place(trace.frames, phase.user_paths) or trace.place
    suffix = f" (at {frame})" if frame else ""
    kind, colon, message = first.partition(":")
    first = f"{first}{suffix}" if len(first) <= room else f"{kind}{suffix}{colon}{message}"
    return "\n".join((first, *(beginning(line, MESSAGE_CHARACTERS) for line in rest)))


def _describe_last_words(stderr: bytes, stdout: bytes, count: int) -> str:
    words = tail.last_words(stderr, count, LAST_CHARACTERS) or tail.last_words(stdout, count, LAST_CHARACTERS)
    return f"it last said: {words}" if words else ""


def describe_end(end: Exit) -> str:
    """Return "ended with code 3", "killed by SIGSEGV (signal 11)"."""
    if end.signal is not None:
        name = signal_name(end.signal)
        return f"killed by {name}" + (f" (signal {end.signal})" if name.startswith("SIG") else "")
    return f"ended with code {end.code}"
