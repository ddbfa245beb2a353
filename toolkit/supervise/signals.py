"""Signals as bytes on a descriptor that the loop waits for, from the first moment of `train` on.

Every signal that would end `train` by default is caught and stops the job instead, so that each end has a report; what
each one does is a table in docs/supervision.md. Not caught: SIGKILL and SIGSTOP, which cannot be, and the faults of a
program (SIGSEGV, SIGBUS, SIGFPE, SIGILL), after which a Python handler would only let it fault again.
"""

import os
import signal
from types import FrameType, TracebackType

# People and platforms ask for a stop by these; ranks get the one that came.
STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Notices of a limit or a clock, and signals without a meaning of their own. Ranks get SIGTERM, which scripts handle.
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
# A process that a shell runs in the background would stop as it writes to the terminal; SIGIO announces input;
# SIGVTALRM is our own clock (metrics/guard.py), and Python writes its number to the wakeup descriptor, too.
IGNORED = frozenset({signal.SIGTTIN, signal.SIGTTOU, signal.SIGIO, signal.SIGVTALRM})
# A stop signal this soon after the first counts as the same request: `timeout` signals its child and then its own
# process group, and a terminal and a platform may both send one.
SAME_WISH_S = 1.0


class Interrupted(BaseException):
    """Stop signal *number* came while something that may block was under way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Installs the handlers while in use, and unblocks what the parent had blocked. A SIGHUP that the parent had us
    ignore (nohup) stays ignored.

    *last*: the process ends after this use, and has reported how. A signal that comes then is ignored for good: it
    could only replace the exit status that was reported (with 143). Such a process is not suspended by a terminal
    (SIGTSTP), either: its ranks, in sessions of their own, would go on, and other hosts take it for vanished.
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
            before = signal.getsignal(number)
            if before is signal.SIG_IGN and number == signal.SIGHUP:
                continue
            self._before[number] = before
            signal.signal(number, signal.SIG_IGN if number in IGNORED else self._note)
        # After the handlers: one that waits comes now.
        self._mask_before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, before in self._before.items():
            ignored = self._last and (number in STOPPING or number in ENDING)
            signal.signal(number, signal.SIG_IGN if ignored else before)  # type: ignore[arg-type]
        if not self._last:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
        os.close(self.fd)
        os.close(self._write_end)

    def take(self) -> list[int]:
        """Return the numbers of the signals that came since last time, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def interrupting(self) -> "_Interrupting":
        """Within this block a stop signal, also one that came before it, raises Interrupted wherever the
        program is, also in a system call that waits. For work outside the loop that may stop at any line."""
        return _Interrupting(self)

    def interrupt(self, on: bool) -> None:
        """Let stop signals raise Interrupted, once, from now on or no longer."""
        self._interrupts = on
        if on and self._stop is not None:
            self._interrupts = False
            raise Interrupted(self._stop)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # The wakeup descriptor has the number; a handler must exist for it to be written (and for PID 1).
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
    """Return what ranks get of stop signal *number*."""
    return number if number in STOPPING else signal.SIGTERM


def defaults() -> None:
    """Give every signal its default meaning and unblock all, for a process that starts: what a parent had blocked or
    ignored for `train` is not meant for a script."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class Wishes:
    """Tells a new stop request from a repeated one. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self.insisted = False

    def is_new(self, number: int, now_s: float) -> bool:
        """Return True if the stop signal *number* that comes now is the first, or comes SAME_WISH_S or more after the
        first; the latter sets `insisted`. Notices repeat by themselves (SIGXCPU each second) and never insist."""
        if self._first_s is None:
            self._first_s = now_s
            return True
        again = number in STOPPING and now_s >= self._first_s + SAME_WISH_S
        self.insisted = self.insisted or again
        return again
