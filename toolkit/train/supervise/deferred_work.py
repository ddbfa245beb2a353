"""Does work once, shortly after the first process of the job was started."""

import math
from collections.abc import Callable

# The script comes first: its interpreter needs 20 ms of a core to start, which it may share with `train` and others.
DEFERRED_S = 0.25


class DeferredWork:
    """Calls *work* once, DEFERRED_S after `note_start` was first called. Times are monotonic seconds."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._due_s: float | None = None

    def note_start(self, now_s: float) -> None:
        """Note that a process was started."""
        if self._due_s is None:
            self._due_s = now_s + DEFERRED_S

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `serve` is due; infinite if it is not."""
        return math.inf if self._due_s is None else max(self._due_s - now_s, 0.0)

    def serve(self, now_s: float) -> None:
        """Do the work if it is due."""
        if self._due_s is not None and now_s >= self._due_s:
            self._due_s = math.inf
            self._work()
