"""The timeline of a step: the computation of this rank for each microbatch, between its exchanges with other ranks.

A graph does not tell when it computes. But a rank's exchanges run one after another, and the computation between two
of them belongs to one microbatch: the time from the end of one to the begin of the next is a span.
"""

import time
from typing import Any, Literal

from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.world import World

Work = tuple[Literal["forward", "backward"], int]


class ExchangePoint:
    """One exchange in the graph. `work_before`: the computation between the previous exchange and this one, if any."""

    def __init__(self) -> None:
        self.work_before: Work | None = None


class StepClock:
    """Records the steps of this process. The graph calls its methods, one after another."""

    def __init__(self, current_world: World) -> None:
        cfg = current_world.cfg
        self._recorder = Recorder(
            current_world.folder,
            rank=current_world.rank,
            pp_rank=current_world.rank_in("pp"),
            rdp_rank=current_world.rank_in("rdp"),
            pipeline=cfg.pipeline,
        )
        self._microbatches = cfg.microbatches
        self._since_ns = 0

    def begin(self) -> None:
        """A step begins."""
        self._recorder.begin()
        self._since_ns = time.monotonic_ns()

    def enter(self, point: ExchangePoint) -> None:
        """The exchange at *point* begins."""
        if point.work_before is not None:
            self._recorder.add(*point.work_before, self._since_ns)

    def leave(self) -> None:
        """The exchange has ended."""
        if self._recorder.is_recording:
            self._since_ns = time.monotonic_ns()

    def end(self, parameter_bytes: int) -> None:
        """The step ends; this rank holds *parameter_bytes*."""
        self._recorder.end(path="graph", microbatches=self._microbatches, parameter_bytes=parameter_bytes)


def assign_work(items: Any, points: dict[int, ExchangePoint]) -> None:
    """Set the work before each of *points* (by the number of its item in *items*, of schedule.py).

    It is the item with the highest cost since the previous exchange.
    """
    since: list[tuple[float, Work]] = []
    for number, item in enumerate(items):
        if item.event.cost:
            since.append((item.event.cost, ("backward" if item.model_pass.is_backward else "forward", item.microbatch)))
        point = points.get(number)
        if point is not None:
            point.work_before = max(since)[1] if since else None
            since = []
