"""The state of this process: the trace of a step function, or saving the whole model."""

import contextlib
from collections.abc import Iterator
from typing import Any

from toolkit.rank.modelparallel.tf.recording import StepClock
from toolkit.rank.modelparallel.world import World


class ProcessState:
    """`trace`: the running trace (trace.py), None outside step functions. `is_whole`: this rank has all variables
    temporarily (saving.py), so that the model may be called directly. `traces`: the number of traces so far."""

    def __init__(self) -> None:
        self.trace: Any | None = None
        self.is_whole = False
        self.traces = 0
        self._clock: tuple[World, StepClock] | None = None

    def clock_of(self, current_world: World) -> StepClock:
        """Return the clock that records the steps of *current_world*."""
        if self._clock is None or self._clock[0] is not current_world:
            self._clock = current_world, StepClock(current_world)
        return self._clock[1]

    def next_trace(self) -> int:
        """Return the number of the next trace."""
        self.traces += 1
        return self.traces

    @contextlib.contextmanager
    def tracing(self, trace: Any) -> Iterator[None]:
        """Within the block, *trace* is the running trace."""
        outer_trace, self.trace = self.trace, trace
        try:
            yield
        finally:
            self.trace = outer_trace

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Within the block, the model is whole."""
        self.is_whole = True
        try:
            yield
        finally:
            self.is_whole = False


PROCESS_STATE = ProcessState()
