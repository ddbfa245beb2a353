"""What this process does now: the trace of a step function, or saving the whole model."""

import contextlib
from collections.abc import Iterator
from typing import Any

from toolkit.rank.modelparallel.tf.recording import Clock
from toolkit.rank.modelparallel.world import World


class Running:
    """`trace`: the trace (trace.py) under way, None outside step functions. `is_whole`: this rank has all variables
    for a while (saving.py), so that the model may be called as it is. `traces`: how many there were."""

    def __init__(self) -> None:
        self.trace: Any | None = None
        self.is_whole = False
        self.traces = 0
        self._clock: tuple[World, Clock] | None = None

    def clock_of(self, here: World) -> Clock:
        """Return the clock that records *here*'s steps."""
        if self._clock is None or self._clock[0] is not here:
            self._clock = here, Clock(here)
        return self._clock[1]

    def next_trace(self) -> int:
        """Return the number of the trace that begins."""
        self.traces += 1
        return self.traces

    @contextlib.contextmanager
    def traced(self, trace: Any) -> Iterator[None]:
        """Within the block, *trace* is under way."""
        before, self.trace = self.trace, trace
        try:
            yield
        finally:
            self.trace = before

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Within the block, the model is whole."""
        self.is_whole = True
        try:
            yield
        finally:
            self.is_whole = False


RUNNING = Running()
