"""Pure: the stop machine's input beside events: the policy of a phase, and the facts of one moment."""

from typing import Literal

from toolkit.job.plan import Phase
from toolkit.records import Record

OnHang = Literal["unseen", "report", "stop"]


class Policy(Record, frozen=True, kw_only=True):
    """What holds for a whole phase. Times in seconds.

    `as_one`: the launcher ends all hosts' ranks once one ends. `ends_as_one`: `train` keeps the launcher from doing so
    while the ranks are stopped. `ends_with_ranks`: the launcher has nothing to do after the job's last rank, so `train`
    ends it then. `serves_all`: the services serve other hosts, too. `is_served`: hosts to
    which there is no link use this host's services. `leads`: this is the leader's phase.
    `ranks_join`: the ranks of all hosts should see when the first rank has ended with 0.
    `on_hang`: "stop": a hang ends the job; "report": it is only reported; "unseen": this host does not look for hangs.
    """

    grace_s: float = 20.0
    failure_s: float = 30.0
    as_one: bool = False
    ends_as_one: bool = False
    ends_with_ranks: bool = False
    serves_all: bool = False
    is_served: bool = False
    leads: bool = False
    ranks_join: bool = False
    on_hang: OnHang = "unseen"

    @property
    def waits_for_others(self) -> bool:
        """True if a launcher whose ranks have ended may still be waiting for the ranks of other hosts."""
        return self.as_one or self.ends_with_ranks


class HostFacts(Record, frozen=True, kw_only=True):
    """What holds at one moment.

    `ranks`: how many live. `main`: the phase's own process lives. `living`: any process lives, services included.
    `had_ranks`: the launcher has started ranks. `ranks_ended_well`: all ranks that it was to start ended with 0.
    `drained`: every pipe is at its end. `drained_by_s`: when to stop waiting for the pipes (monotonic).
    """

    now_ns: int
    ranks: int = 0
    main: bool = False
    living: bool = False
    had_ranks: bool = False
    ranks_ended_well: bool = False
    drained: bool = False
    drained_by_s: float = 0.0

    @property
    def now_s(self) -> float:
        return self.now_ns / 1e9

    @property
    def at_work(self) -> bool:
        """True if the script, the launcher or a rank lives: a process whose end the phase waits for."""
        return self.main or self.ranks > 0

    @property
    def only_launcher_lives(self) -> bool:
        """True if only the launcher is left: all its ranks have ended."""
        return self.had_ranks and self.main and not self.ranks


def policy_of(phase: Phase, *, alone: bool, linked: bool, on_hang: OnHang) -> Policy:
    """Return what holds for *phase* of a job without other hosts (*alone*), or with a link to them (*linked*)."""
    main = phase.main
    return Policy(
        grace_s=main.stop.grace_s,
        failure_s=main.stop.failure_s,
        as_one=main.stop.as_one,
        # Without the link only the launcher can end the ranks of the other hosts.
        ends_as_one=main.stop.as_one and (linked or not main.mpi_role),
        # Without the link `train` does not know whether other hosts' ranks, which this torchrun may serve, still live.
        ends_with_ranks=main.stop.with_ranks and (alone or linked),
        serves_all=phase.serves_all,
        is_served=phase.served is not None,
        leads=phase.leads,
        ranks_join=phase.ranks_join,
        on_hang=on_hang,
    )
