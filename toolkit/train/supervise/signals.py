"""Turns signals into bytes on a descriptor that the loop polls, from the start of `train` on.

Every signal that would end `train` by default is caught and stops the job instead, so that each end has a report;
docs/supervision.md has a table of all of them. Not caught: SIGKILL and SIGSTOP, which cannot be, and the faults of a
program (SIGSEGV, SIGBUS, SIGFPE, SIGILL), after which a Python handler would return to the same fault.
"""

import os
import signal
from collections.abc import Iterable
from types import FrameType, TracebackType

# The signals by which people and platforms ask for a stop; ranks get the one that came.
STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Notices of a limit or a timer, and signals without a fixed meaning. Ranks get SIGTERM, which scripts handle.
ENDING = frozenset(
    {
        signal.SIGABRT,
        signal.SIGALRM,
        signal.SIGPROF,
        signal.SIGPWR,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGXCPU,
        *(number for number in (16, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1))),  # 16: SIGSTKFLT.
    }
)
FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
# SIGTTIN and SIGTTOU would stop a process that a shell runs in the background and that uses the terminal. SIGIO
# announces input. SIGVTALRM is the timer of metrics/guard.py; Python also writes its number to the wakeup descriptor.
IGNORED = frozenset({signal.SIGTTIN, signal.SIGTTOU, signal.SIGIO, signal.SIGVTALRM})
# A stop signal this soon after the first counts as the same request: `timeout` signals its child and then its own
# process group, and a terminal and a platform may both send one.
SAME_REQUEST_S = 1.0


class Interrupted(BaseException):
    """Stop signal *number* came during work that may block."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """A context in which the handlers are installed, and signals that the parent had blocked are unblocked. If the
    parent ignored SIGHUP (nohup), it stays ignored.

    *last*: the process ends after this context, and has reported its outcome. Signals are ignored from then on: one
    could only replace the reported exit status (by 143). Such a process also ignores a terminal's SIGTSTP: its ranks,
    in sessions of their own, would continue, and other hosts would treat it as vanished.
    """

    def __init__(self, *, last: bool = False) -> None:
        self._last = last
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_end, False)
        self._before: dict[int, object] = {}
        self._stop: int | None = None
        self._interrupts = False

    def __enter__(self) -> "Signals":
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        suspends = (signal.SIGTSTP,) if self._last else ()
        for number in (*STOPPING, *ENDING, *FORWARDED, *IGNORED, *suspends, signal.SIGCHLD):
            handler = signal.getsignal(number)
            if handler is signal.SIG_IGN and number == signal.SIGHUP:
                continue
            self._before[number] = handler
            signal.signal(number, signal.SIG_IGN if number in IGNORED else self._note)
        # After the handlers are installed: a pending signal is delivered now.
        self._mask_before = set_mask(())
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            ignored = self._last and (number in STOPPING or number in ENDING)
            signal.signal(number, signal.SIG_IGN if ignored else handler)  # type: ignore[arg-type]
        if not self._last:
            set_mask(self._mask_before)
        os.close(self.fd)
        os.close(self._write_end)

    def take(self) -> list[int]:
        """Return the numbers of the signals that came since the last call, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def interrupting(self) -> "_Interrupting":
        """Return a context in which a stop signal raises Interrupted at any line, also in a system call that waits.

        A stop signal that came before raises it, too. For work outside the loop that may be interrupted anywhere.
        """
        return _Interrupting(self)

    def interrupt(self, on: bool) -> None:
        """From now on, let the next stop signal raise Interrupted (*on*), or let none do so."""
        self._interrupts = on
        if on and self._stop is not None:
            self._interrupts = False
            raise Interrupted(self._stop)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # Python has written the number to the wakeup descriptor, which it does only for a signal with a handler. PID 1
        # gets only signals with a handler.
        if not stops(number):
            return
        self._stop = self._stop or number
        if self._interrupts:
            self._interrupts = False
            raise Interrupted(number)


class _Interrupting:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def __enter__(self) -> None:
        self._signals.interrupt(True)

    def __exit__(self, *_: object) -> None:
        self._signals.interrupt(False)


def stops(number: int) -> bool:
    """Return True if signal *number* to `train` stops the job."""
    return number in STOPPING or number in ENDING


def passed_on(number: int) -> int:
    """Return the signal that ranks get for stop signal *number*."""
    return number if number in STOPPING else signal.SIGTERM


def set_mask(blocked: Iterable[int]) -> set[int]:
    """Block *blocked* and no other signal; return what was blocked before. A sandbox may deny it: nothing changes."""
    try:
        return set(signal.pthread_sigmask(signal.SIG_SETMASK, blocked))
    except OSError:
        return set()


def defaults() -> None:
    """Restore the default action of every signal and unblock all, for a process that starts: signals that the parent
    blocked or ignored for `train` are not meant to be so for a script."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    set_mask(())


class StopSignals:
    """Distinguishes a new stop request from a repetition of the same one. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self.insisted = False

    def is_new(self, number: int, now_s: float) -> bool:
        """Return True if stop signal *number*, which comes now, is the first, or comes SAME_REQUEST_S or more after the
        first. The latter sets `insisted`, except for notices, which the kernel repeats (SIGXCPU each second)."""
        if self._first_s is None:
            self._first_s = now_s
            return True
        again = number in STOPPING and now_s >= self._first_s + SAME_REQUEST_S
        self.insisted = self.insisted or again
        return again
