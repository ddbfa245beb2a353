"""What the stop machine is told: what holds for a whole phase, and what holds at one moment. Pure."""

from typing import Literal

from toolkit.job.plan import Phase
from toolkit.records import Record

OnHang = Literal["unseen", "report", "stop"]


class Policy(Record, frozen=True, kw_only=True):
    """What holds for a phase; seconds.

    `as_one`: the launcher ends all hosts' ranks once one ends. `ends_as_one`: and is kept from it while they are
    stopped; `ends_with_ranks`: it has nothing to do after the job's last rank, and is ended then. `serves_all`: the
    services serve other hosts, too; `is_served`: this host's are, by hosts that cannot be talked to. `leads`: this is
    the leader's phase. `on_hang`: "stop": a hang ends the job; "report": it is reported; "unseen": nobody looks here.
    """

    grace_s: float = 20.0
    failure_s: float = 30.0
    as_one: bool = False
    ends_as_one: bool = False
    ends_with_ranks: bool = False
    serves_all: bool = False
    is_served: bool = False
    leads: bool = False
    on_hang: OnHang = "unseen"

    @property
    def waits_for_others(self) -> bool:
        """True if a launcher whose ranks have ended may only wait for those of other hosts."""
        return self.as_one or self.ends_with_ranks


class Facts(Record, frozen=True, kw_only=True):
    """What holds now. `ranks`: how many live; `main`: the phase's own process lives; `living`: something does, be it a
    service. `had_ranks`: the launcher has started some; `ranks_ended_well`: all that it was to start ended with 0.
    `drained`: every pipe is at its end; `drained_by_s`: until when they are waited for."""

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
        """True if the script, the launcher or a rank lives: all whose end is awaited."""
        return self.main or self.ranks > 0

    @property
    def at_rest(self) -> bool:
        """True if all that is left of the script is a launcher whose ranks have ended."""
        return self.had_ranks and self.main and not self.ranks


def policy_of(phase: Phase, *, alone: bool, linked: bool, on_hang: OnHang) -> Policy:
    """Return what holds for *phase* of a job without other hosts (*alone*), or with a link to them (*linked*)."""
    main = phase.main
    return Policy(
        grace_s=main.stop.grace_s,
        failure_s=main.stop.failure_s,
        as_one=main.stop.as_one,
        # Without the link only the launcher can tell the other hosts.
        ends_as_one=main.stop.as_one and (linked or not main.mpi_role),
        # Without the link nobody knows of other hosts' ranks, which its torchrun may serve.
        ends_with_ranks=main.stop.with_ranks and (alone or linked),
        serves_all=phase.serves_all,
        is_served=phase.served is not None,
        leads=phase.leads,
        on_hang=on_hang,
    )
