"""Interrupts regex matches that take too long, by a signal.

CPython's `re` runs Python's signal handlers while it matches, and a handler that raises ends the match. A timer of this
process's CPU time (ITIMER_VIRTUAL: waiting for a core does not count) ticks during a search. Its handler raises if the
same match is running at two ticks in a row: a match is interrupted after one to two times the budget. The timer is set
once for a block of lines, which costs under 1 us.

The handler is installed at the first use; `close` restores the one before it. Python also writes each SIGVTALRM to the
wakeup descriptor, if there is one: its reader must ignore that number.
"""

import signal
from types import FrameType, TracebackType

from toolkit.metrics.capture import OverrunError

BUDGET_S = 0.05


class MatchGuard:
    """Raises OverrunError in a match that takes more than *budget_s* of CPU time. Works in the main thread only."""

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self.match_count = 0
        self.inside = False
        self._seen = -1
        self._budget_s = budget_s
        self._before: object = None
        self._state = "new"

    def __enter__(self) -> "MatchGuard":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def arm(self) -> None:
        """Begin to watch."""
        if self._state == "new":
            self._install()
        if self._state == "installed":
            self._seen = -1
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, self._budget_s, self._budget_s)
            except OSError:
                self._state = "denied"  # By a sandbox: a match takes as long as it takes, as in another thread.

    def disarm(self) -> None:
        """Stop watching; no OverrunError comes after this."""
        self.inside = False
        if self._state == "installed":
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def close(self) -> None:
        """Restore the previous handler."""
        self.disarm()
        if self._state == "installed":
            # A handler that Python did not install is None here and cannot be put back by Python.
            signal.signal(signal.SIGVTALRM, self._before or signal.SIG_DFL)  # type: ignore[arg-type]
        self._state = "new"

    def _install(self) -> None:
        try:
            self._before = signal.signal(signal.SIGVTALRM, self._tick)
        except ValueError:  # Not the main thread: handlers run elsewhere and could not interrupt us.
            self._state = "impossible"
        else:
            self._state = "installed"

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        if not self.inside:
            return
        if self.match_count == self._seen:
            self.inside = False  # Once: not again while the first one is being handled.
            raise OverrunError
        self._seen = self.match_count
