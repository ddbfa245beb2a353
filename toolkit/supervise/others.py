"""What the loop knows of the job's other hosts: one descriptor, events that come, a few messages that go."""

from typing import Protocol

from toolkit.job.events import Heard, Stop
from toolkit.job.outcome import Ended, Exit, Ruled
from toolkit.supervise.daemons import Wire


class Rules(Protocol):
    """Who watches the ranks' lines and may ask for the job's end."""

    @property
    def ruled(self) -> Ruled | None:
        """What the job is to end for."""

    def started(self, rank: int, pid: int) -> None:
        """Note which process a rank is."""

    def rest_s(self) -> float | None:
        """Return the seconds after which `tick` is due, None if it is not."""

    def tick(self) -> None:
        """Look for what has become late."""


class Others(Wire, Protocol):
    """The link to the other hosts, as the loop uses it. Nothing here blocks."""

    @property
    def fd(self) -> int:
        """Readable when `serve` has something to do."""

    def serve(self) -> list[Heard]:
        """Do what is due, and return what came."""

    def rest_s(self) -> float:
        """Return the seconds after which `serve` is due in any case."""

    def ready(self) -> None:
        """Say that this host could start."""

    def waits(self, missing: tuple[str, ...]) -> None:
        """Say what this host waits for before it could start."""

    def stop(self, stop: Stop) -> None:
        """Tell the other hosts of *stop*, which came here."""

    def idle(self, seconds: float) -> None:
        """Say that no rank here has moved for so long (0: they move again)."""

    def propose(self, step: int) -> None:
        """Say the first step at which this host's ranks could stop."""

    def rested(self) -> None:
        """Say that no rank lives here: the job stops, its services wait for all hosts', or all ranks ended well."""

    def left(self, ended: Exit, ranks_left: int) -> None:
        """Say that a rank here ended with 0 while others may wait for it, and how many ranks of this host live."""

    def failing(self, so_far: Ended) -> None:
        """Say that something failed here."""

    def answer(self, so_far: Ended) -> None:
        """Say what had failed here when another host failed."""
