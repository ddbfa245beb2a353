"""The time of a rank's own part of a step: measured on each host, compared by the leader's monitor (SlowRank)."""

from typing import Annotated

from msgspec import Meta

from toolkit.job.ranges import Count, Name, Rank, Seconds
from toolkit.records import Record

# The files in the run's folder: what the monitor tells `train`, and what `train` tells the leader's monitor.
OWN, OTHERS = "own-work.json", "others-work.json"
# A host with more ranks sends those with the least and the most work: 240 bytes each, in a message of 256 KiB at most.
MOST_RANKS_SENT = 256
Epoch = Annotated[float, Meta(ge=0.0, le=1e11)]


class RankWork(Record, frozen=True, kw_only=True):
    """Means over a rank's newest steps; a phase that was not measured counts 0."""

    host: Name
    rank: Rank
    steps: Count
    """The number of these steps."""
    start_s: Epoch
    """When the first of these steps ended, since the epoch."""
    end_s: Epoch
    """When the last of them ended, since the epoch."""
    step_s: Seconds
    data_s: Seconds
    forward_s: Seconds
    own_backward_s: Seconds
    """Backward without the wait for other ranks at its end."""
    optimizer_s: Seconds
    checkpoint_s: Seconds
    evaluation_s: Seconds = 0.0
    collection_s: Seconds = 0.0
    """Garbage collections."""
    pause_s: Seconds = 0.0
    """What lies between the steps and is nothing of the above."""

    @property
    def own_s(self) -> float:
        """Return the seconds that the rank's own work takes a step."""
        training_s = self.data_s + self.forward_s + self.own_backward_s + self.optimizer_s + self.checkpoint_s
        return training_s + self.evaluation_s + self.collection_s + self.pause_s


class TraceAsked(Record, frozen=True, kw_only=True):
    """The monitor asks ranks *slow* and *healthy*, which may run on any host, to trace; *number*: 1, then more."""

    number: Annotated[int, Meta(ge=1, le=1 << 31)]
    slow: Rank
    healthy: Rank


class OwnWork(Record, frozen=True, kw_only=True):
    """The message of a host's monitor to `train`."""

    ranks: tuple[RankWork, ...] = ()
    """The own work of this host's ranks."""
    asked: TraceAsked | None = None
    """On the leader, the newest trace that it asks for."""


class OthersWork(Record, frozen=True, kw_only=True):
    """The message of `train` to the leader's monitor: the own work of the ranks of all other hosts."""

    ranks: tuple[RankWork, ...] = ()
