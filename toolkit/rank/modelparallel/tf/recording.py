"""The timeline of a step: what this rank computes for which microbatch, between its exchanges with other ranks.

A graph says nothing of when it computes. But a rank's exchanges run one after another, and what it computes between two
of them belongs to one microbatch: the time from the end of one to the begin of the next is a span.
"""

import time
from typing import Any, Literal

from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.world import World

Work = tuple[Literal["forward", "backward"], int]


class Spot:
    """One exchange in the graph. `before`: what is computed between the one before it and this one, if anything."""

    def __init__(self) -> None:
        self.before: Work | None = None


class Clock:
    """Records the steps of this process. Its methods are called by the graph, one after another."""

    def __init__(self, here: World) -> None:
        cfg = here.cfg
        self._recorder = Recorder(
            here.folder,
            rank=here.rank,
            pp_rank=here.rank_in("pp"),
            rdp_rank=here.rank_in("rdp"),
            pipeline=cfg.pipeline,
        )
        self._microbatches = cfg.microbatches
        self._since_ns = 0

    def begin(self) -> None:
        """A step begins."""
        self._recorder.begin()
        self._since_ns = time.monotonic_ns()

    def enter(self, spot: Spot) -> None:
        """The exchange at *spot* begins."""
        if spot.before is not None:
            self._recorder.add(*spot.before, self._since_ns)

    def leave(self) -> None:
        """The exchange has ended."""
        if self._recorder.is_recording:
            self._since_ns = time.monotonic_ns()

    def end(self, parameter_bytes: int) -> None:
        """The step ends; this rank holds *parameter_bytes*."""
        self._recorder.end(path="graph", microbatches=self._microbatches, parameter_bytes=parameter_bytes)


def assigned(items: Any, spots: dict[int, Spot]) -> None:
    """Tell each of *spots* (by the number of its item in *items*, schedule.py's) what is computed before it.

    The item that costs most since the exchange before is what was computed.
    """
    since: list[tuple[float, Work]] = []
    for number, item in enumerate(items):
        if item.event.cost:
            since.append((item.event.cost, ("backward" if item.its.is_backward else "forward", item.microbatch)))
        spot = spots.get(number)
        if spot is not None:
            spot.before = max(since)[1] if since else None
            since = []
