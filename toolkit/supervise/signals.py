"""Signals as bytes on a descriptor that the loop waits for, from the first moment of `train` on."""

import os
import signal
from types import FrameType, TracebackType

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
FORWARDED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
# `timeout` signals its child and then its own process group, a terminal and a platform may both ask: a stop signal that
# comes so soon after the first one asks for nothing new.
SAME_WISH_S = 1.0


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wakeup descriptor has the number. A handler must exist for it to be written (and for PID 1)."""


class Signals:
    """Installs the handlers while in use. A signal that the parent had us ignore (nohup) stays ignored.

    *last*: the process ends after this use, and has reported how. A stop signal that comes then is ignored for good: it
    could only replace the exit status that was reported (with 143).
    """

    def __init__(self, *, last: bool = False) -> None:
        self._last = last
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_end, False)
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (*STOPPING, *FORWARDED, signal.SIGCHLD):
            before = signal.getsignal(number)
            if before is signal.SIG_IGN and number == signal.SIGHUP:
                continue
            self._before[number] = before
            signal.signal(number, _noted)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, before in self._before.items():
            ignored = self._last and number in STOPPING
            signal.signal(number, signal.SIG_IGN if ignored else before)  # type: ignore[arg-type]
        os.close(self.fd)
        os.close(self._write_end)

    def take(self) -> list[int]:
        """Return the numbers of the signals that came since last time, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []


class Wishes:
    """Tells a new wish to stop from a repeated signal. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self.insisted = False

    def is_new(self, now_s: float) -> bool:
        """Return True if a stop signal that comes now is the first, or comes SAME_WISH_S or more after the first; the
        latter sets `insisted`."""
        if self._first_s is None:
            self._first_s = now_s
            return True
        again = now_s >= self._first_s + SAME_WISH_S
        self.insisted = self.insisted or again
        return again


def name_of(number: int) -> str:
    """Return "SIGTERM" for 15, "signal 63" for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
