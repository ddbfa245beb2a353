"""The interfaces through which the supervisor uses the link to the other hosts, and the line
monitors of this host."""

from typing import Protocol

from toolkit.job.events import Heard, Stop
from toolkit.job.outcome import Exit, PhaseEnd, RuleMatch
from toolkit.train.supervise.daemons import DaemonLink


class HostLineMonitors(Protocol):
    """The line monitors of this host, as the supervisor uses them: a rule that matches may end the job."""

    @property
    def ruled(self) -> RuleMatch | None:
        """Return the match by which a rule ends the job; None while none does."""

    @property
    def stop_rule(self) -> str:
        """The profiler rule that stops the job early and well; "" while none does."""

    def note_rank(self, rank: int, local_rank: int | None, pid: int) -> None:
        """Note that *rank* runs as process *pid*."""

    def due_in_s(self) -> float | None:
        """Return the seconds until `tick` is due, None if it is not."""

    def tick(self) -> None:
        """Apply the rules that depend on time."""


class HostLink(DaemonLink, Protocol):
    """The link to the other hosts, as the supervisor uses it. Nothing here blocks."""

    @property
    def fd(self) -> int:
        """Readable when `serve` has something to do."""

    def serve(self) -> list[Heard]:
        """Do what is due, and return the events that came."""

    def due_in_s(self) -> float:
        """Return the seconds until `serve` is due even if nothing comes."""

    def tell_ready(self) -> None:
        """Report that this host is ready to start."""

    def tell_needs(self, missing: tuple[str, ...]) -> None:
        """Report what this host waits for before it can start."""

    def tell_stop(self, stop: Stop) -> None:
        """Send *stop*, which came to this host, to the other hosts."""

    def tell_idle(self, seconds: float) -> None:
        """Report that no rank here has been active for *seconds* (0: they are active again)."""

    def tell_step(self, step: int) -> None:
        """Report the first step at which this host's ranks can stop."""

    def tell_ranks_ended(self) -> None:
        """Report that no rank lives here: the job stops, or services wait for all hosts' ranks, or all ended with 0."""

    def tell_unfinalized_rank(self, exit: Exit, living_ranks: int) -> None:
        """Report a rank here that ended with 0 while others may wait for it, and how many ranks of this host live."""

    def tell_rank_done(self, process: str) -> None:
        """Report that rank *process* of this host ended with 0. All hosts, this one too, hear of the first one."""

    def tell_failure(self, so_far: PhaseEnd) -> None:
        """Report a failure on this host."""

    def tell_own_failure(self, so_far: PhaseEnd) -> None:
        """Report what had failed here when another host failed."""
