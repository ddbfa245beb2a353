"""Pure: the stop machine's input beside events: the policy of a phase, and the state of the host at one moment."""

from typing import Literal

from toolkit.job.plan import Phase
from toolkit.records import Record

OnHang = Literal["unseen", "report", "stop"]


class Policy(Record, frozen=True, kw_only=True):
    """The rules that apply to a whole phase. Times in seconds."""

    grace_s: float = 20.0
    """From a stop signal to SIGKILL."""
    failure_s: float = 30.0
    """From a failure to SIGKILL, if that is less than the grace."""
    as_one: bool = False
    """The launcher ends all hosts' ranks once one ends."""
    ends_as_one: bool = False
    """`train` keeps the launcher from doing so while the ranks are stopped."""
    ends_with_ranks: bool = False
    """The launcher has nothing to do after the job's last rank, so `train` ends it then."""
    serves_all: bool = False
    """The services serve other hosts, too."""
    is_served: bool = False
    """Hosts to which there is no link use this host's services."""
    leads: bool = False
    """This is the leader's phase."""
    ranks_join: bool = False
    """The ranks of all hosts should see when the first rank has ended with 0."""
    on_hang: OnHang = "unseen"
    """With "stop" a hang ends the job; with "report" it is only reported; with "unseen" nobody here looks for hangs."""

    @property
    def waits_for_others(self) -> bool:
        """True if a launcher whose ranks have ended may still be waiting for the ranks of other hosts."""
        return self.as_one or self.ends_with_ranks


class HostFacts(Record, frozen=True, kw_only=True):
    """The state of the host's processes at one moment."""

    now_ns: int
    ranks: int = 0
    """The number of living ranks."""
    main: bool = False
    """The phase's own process lives."""
    living: bool = False
    """Any process lives, services included."""
    had_ranks: bool = False
    """The launcher has started ranks."""
    ranks_ended_well: bool = False
    """All ranks that the launcher was to start ended with 0."""
    drained: bool = False
    """Every pipe is at its end."""
    drained_by_s: float = 0.0
    """When to stop waiting for the pipes (monotonic)."""

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
    """Return the policy for *phase* of a job without other hosts (*alone*), or with a link to them (*linked*)."""
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
