"""The plan of one host: data about processes. Launchers write it, the loop follows it, `toolkit check` prints it."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from toolkit.job.outcome import PhaseFailure
from toolkit.log import masked
from toolkit.records import Record

# What a shell takes as it is, of ASCII: shlex.quote has the same set.
PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-")


# In the run's folder: what the launcher starts in place of a rank, what mpirun starts in place of ssh, and the socket
# at which both reach `train`.
RANK_WRAPPER = "rank"
AGENT_WRAPPER = "agent"
SHIM_SOCKET = "ranks.sock"


class Resolves(Record, frozen=True, kw_only=True, tag="resolves"):
    """A host name that must resolve."""

    host: str
    within_s: float

    def __str__(self) -> str:
        return f"host {self.host} to resolve"


class Listens(Record, frozen=True, kw_only=True, tag="listens"):
    """A port that must accept connections; `host` names it for people, `address` reaches it."""

    host: str
    address: str
    port: int
    within_s: float

    def __str__(self) -> str:
        return f"host {self.host} to listen on {self.address}:{self.port}"


class Locked(Record, frozen=True, kw_only=True, tag="locked"):
    """A lock file that must be free; it is held until the phase ends (one pip at a time in a container)."""

    path: Path
    within_s: float

    def __str__(self) -> str:
        return f"the lock {self.path}"


Need = Resolves | Listens | Locked


class StopPolicy(Record, frozen=True, kw_only=True):
    """The steps of a stop: a signal to the process alone first, SIGKILL to all that is left later."""

    grace_s: float = 20.0
    """The time from the signal to SIGKILL."""
    failure_s: float = 30.0
    """The most that ranks get after another one failed."""
    as_one: bool = False
    """The launcher ends all hosts' ranks once it hears that one ended. So while the job stops, it hears of none before
    every host's have ended."""
    with_ranks: bool = False
    """The launcher has nothing to do once the job's ranks have ended, and is ended then."""


TaggedBy = Literal["openmpi4", "openmpi5", "mpich"]


class Tags(Record, frozen=True, kw_only=True):
    """The form in which mpirun tags the output of its ranks."""

    by: TaggedBy
    hosts: dict[str, str] = {}
    """Maps mpirun's names of hosts to the job's, where they differ."""


class ProcessSpec(Record, frozen=True, kw_only=True):
    """A process to start."""

    name: str
    argv: tuple[str, ...]
    """argv[0] is looked up in the PATH of `environ`."""
    environ: dict[str, str]
    """The complete environment."""
    cwd: Path
    stop: StopPolicy
    rank: int | None = None
    """The global rank that this process is; None: it is no rank."""
    starts_ranks: tuple[int, ...] = ()
    """The global ranks, by local rank, that a launcher such as torchrun starts by itself."""
    has_rank_shim: bool = False
    """The launcher starts the rank shim in place of each rank, and the shim asks `train` to start the rank."""
    rank_python: str = ""
    """The interpreter of the ranks of a launcher that starts RANK_WRAPPER in its place; "": it does not."""
    rank_variables: tuple[str, str] = ("RANK", "LOCAL_RANK")
    """The variables in which such a rank finds its rank and local rank."""
    rank_aliases: dict[str, str] = {}
    """Variables that a rank gets with the values of others: {"OMPI_COMM_WORLD_RANK": "RANK"}."""
    own_variables: tuple[str, ...] = ()
    """Variables that each rank gets from `environ` (set or unset), even if the launcher changed them."""
    own_environ: bool = False
    """Each rank gets all variables from `environ`, even if the launcher changed them."""
    launcher_environ: dict[str, str] = {}
    """Variables of this process that its ranks do not get."""
    mpi_role: Literal["", "agent", "daemon"] = ""
    """"agent": mpirun asks `train` for daemons on other hosts; "daemon": the process asks `train` for the command that
    it becomes."""
    tags: Tags | None = None
    """The tags of the output of ranks that this process relays; None: it relays none."""
    optional: bool = False
    """A service whose failure, also to start, does not fail the job."""
    gives: str = ""
    """The loss to the job once an optional service has ended, for the log."""
    masked: bool = False
    """Its output is relayed line by line, with secrets masked."""


class Phase(Record, frozen=True, kw_only=True):
    """A step of the plan: its needs, and the process whose end ends it."""

    name: str
    main: ProcessSpec
    needs: tuple[Need, ...] = ()
    """The conditions that must hold before it begins."""
    failure: PhaseFailure = "ExecuteUserScriptError"
    """The kind that its failure text begins with."""
    skip_if: Path | None = None
    """The step is skipped where this file exists."""
    choice: str = ""
    """The way that was chosen of several, and the reason."""
    together: bool = False
    """No host begins it before all are ready."""
    services: tuple[ProcessSpec, ...] = ()
    """Processes that are started before `main` and ended after it. One that fails while `main` runs fails the step,
    unless it is optional."""
    serves_all: bool = False
    """The services serve other hosts, too, and stay until every host's main has ended. Once the leader's has, the
    others have a moment to end, and are then ended."""
    leads: bool = False
    """This is the leader's."""
    ranks_join: bool = False
    """A rank may wait, at some time after its start, for all others to join it: it can see when one of them has
    ended."""
    served: Listens | None = None
    """Without the link, the services of any host but the leader stay until nothing listens here any more."""


class Plan(Record, frozen=True, kw_only=True):
    """The processes that `train` starts on this host."""

    launcher: str
    """The launcher's name."""
    role: Literal["alone", "leader", "follower"]
    phase: Phase
    """The step that runs the script."""
    installing: Phase | None = None
    """The step before it, which `toolkit check` shows; `train` makes its own once the script is in place."""
    world_size: int = 1
    """The total number of ranks."""
    modules: tuple[str, ...] = ()
    """Modules that the script's interpreter must have."""
    choice: str = ""
    """The way that was chosen of several, and the reason."""
    notes: tuple[str, ...] = ()
    """Warnings for the log."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, in order."""
        return (self.phase,) if self.installing is None else (self.installing, self.phase)

    def with_main(self, **changes: Any) -> "Plan":
        """Return the plan with *changes* to the script's process or launcher."""
        main = msgspec.structs.replace(self.phase.main, **changes)
        return msgspec.structs.replace(self, phase=msgspec.structs.replace(self.phase, main=main))

    def text(self, base_environ: dict[str, str]) -> str:
        """Return the plan for people and goldens; of the environment only what differs from *base_environ*, masked."""
        lines = [f"launcher: {self.launcher}", f"role: {self.role}", f"world size: {self.world_size}"]
        lines += [f"choice: {self.choice}"] if self.choice else []
        lines += [f"note: {note}" for note in self.notes]
        for phase in self.phases:
            lines.append(f"phase: {phase.name}")
            lines += [f"  needs: {need}, within {need.within_s:g} s" for need in phase.needs]
            lines += _process(phase.main, base_environ)
            for service in phase.services:
                lines += [f"  service: {service.name}", *(f"  {line}" for line in _process(service, base_environ))]
            if phase.served is not None:
                lines.append(f"  services stay until nothing listens on {phase.served.address}:{phase.served.port}")
        return "\n".join(lines) + "\n"


def _process(spec: ProcessSpec, base_environ: dict[str, str]) -> list[str]:
    environ = {**spec.environ, **spec.launcher_environ}
    added = {k: v for k, v in environ.items() if base_environ.get(k) != v}
    return [
        "  argv: " + " ".join(quoted(token) for token in spec.argv),
        f"  cwd: {spec.cwd}",
        *(f"  env: {k}={v}" for k, v in sorted(masked(added).items())),
    ]


def quoted(token: str) -> str:
    """Return *token* as it could be typed in a shell."""
    if token and PLAIN.issuperset(token):
        return token
    import shlex

    return shlex.quote(token)
