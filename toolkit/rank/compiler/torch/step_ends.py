"""Counts the steps of the thread that trains, and keeps the times of the last ones."""

from collections import deque

from ..trial import median

MOST_TIMES = 512


class MainOptimizer:
    """Decides which optimizer ends a training step, as the profiler does: the first that stepped; another one takes
    over when it steps twice without it."""

    def __init__(self) -> None:
        self._main = 0
        self._others: set[int] = set()

    def counts(self, optimizer: int) -> bool:
        """True if a step of the optimizer with the id *optimizer* ends a step of the job."""
        if optimizer != self._main:
            if self._main and optimizer not in self._others:
                self._others.add(optimizer)
                return False
            self._main = optimizer
        if self._others:
            self._others.clear()
        return True


class SteadyTimes:
    """The times of the last steps, in seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_TIMES)
        self.add = self._times.append

    def step_ms(self) -> "float | None":
        """Return the median step, None before the first one."""
        return round(median(self._times) * 1000, 3) if self._times else None
