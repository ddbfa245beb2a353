"""Counts the steps of the thread that trains, and keeps the times of the last ones."""

from collections import deque

from ..trial import median

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Iterable

KEPT = 512


class MainOptimizer:
    """Which optimizer's steps count, as for the profiler: the first one's, until another one steps twice without it."""

    def __init__(self) -> None:
        self._main = 0
        self._others: set[int] = set()

    def counts(self, which: int) -> bool:
        """True if a step of the optimizer *which*, its id, ends a step of the job."""
        if which != self._main:
            if self._main and which not in self._others:
                self._others.add(which)
                return False
            self._main = which
        if self._others:
            self._others.clear()
        return True


class Steady:
    """The times of the last steps, in seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=KEPT)
        self.add = self._times.append

    def step_ms(self) -> "float | None":
        """Return the median step, None before the first one."""
        return round(median(self._times) * 1000, 3) if self._times else None


def milliseconds(seconds: float) -> str:
    """Return *seconds* as text: 0.0182 as "18.2 ms"."""
    return "%.3g ms" % (seconds * 1000) if seconds < 0.1 else "%.1f ms" % (seconds * 1000)


def listed(names: "Iterable[str]") -> str:
    """Return *names* for a sentence: "A", "A and B", "A, B and 3 more"."""
    known = list(names)
    if len(known) > 3:
        return "%s and %d more" % (", ".join(known[:2]), len(known) - 2)
    return " and ".join(known)
