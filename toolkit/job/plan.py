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
    """How a process is stopped: a signal to it alone first, SIGKILL to all that is left after `grace_s`.

    `failure_s`: the most that ranks get after another one failed. `as_one`: the launcher ends all hosts' ranks once it
    hears that one ended, so while the job stops it hears of none before every host's have ended. `with_ranks`: the
    launcher has nothing to do once the job's ranks have ended, and is ended then.
    """

    grace_s: float = 20.0
    failure_s: float = 30.0
    as_one: bool = False
    with_ranks: bool = False


TaggedBy = Literal["openmpi4", "openmpi5", "mpich"]


class Tags(Record, frozen=True, kw_only=True):
    """That a launcher puts its ranks' lines out itself, tagged as this mpirun does it.

    `hosts`: the job's names of hosts by the launcher's, where these differ.
    """

    by: TaggedBy
    hosts: dict[str, str] = {}


class ProcessSpec(Record, frozen=True, kw_only=True):
    """A process to start. `environ` is complete. argv[0] is looked up in environ's PATH.

    `rank`: the global rank this process is (None: it is no rank). `starts_ranks`: the global ranks, by local rank,
    that it will start by itself (torchrun); they come back to `train` through the rank shim if `has_rank_shim`.
    `rank_python`: the interpreter of the ranks of a launcher that starts RANK_WRAPPER in its place ("": it does not).
    `rank_variables`: where such a rank finds its rank and local rank. `own_variables`: those that it has as they stand
    in `environ` (or do not), whatever the launcher made of them; `own_environ`: all of them. `launcher_environ`: what
    this process has besides, and its ranks have not. `mpi_role`: what it asks of `train` besides
    ranks. "agent": mpirun asks for daemons on other hosts; "daemon": the process asks for the command that it becomes.
    `rank_aliases`: variables that a rank gets with the values of others, {"OMPI_COMM_WORLD_RANK": "RANK"}.
    `tags`: whose lines its output is made of, where it relays that of ranks. `optional`: a service whose failure, also
    to start, is none of the job's; `gives`: what the job lacks once it has ended. `masked`: its output is relayed line
    by line, with secrets masked.
    """

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    cwd: Path
    stop: StopPolicy
    rank: int | None = None
    starts_ranks: tuple[int, ...] = ()
    has_rank_shim: bool = False
    rank_python: str = ""
    rank_variables: tuple[str, str] = ("RANK", "LOCAL_RANK")
    rank_aliases: dict[str, str] = {}
    own_variables: tuple[str, ...] = ()
    own_environ: bool = False
    launcher_environ: dict[str, str] = {}
    mpi_role: Literal["", "agent", "daemon"] = ""
    tags: Tags | None = None
    optional: bool = False
    gives: str = ""
    masked: bool = False


class Phase(Record, frozen=True, kw_only=True):
    """A step of the plan: what must be there first, and the process whose end ends it.

    `failure` opens its failure text. The step is skipped where the file `skip_if` exists. `together`: no host begins it
    before all are ready. `services` are started before `main` and ended after it; one that fails while it runs fails
    the step, unless it is optional. `serves_all`: they serve other hosts, too, and stay until every host's main has
    ended; once the leader's has, the others have a moment to end, and are then ended. Without the link they stay, on
    any host but the leader, until nothing listens at `served` any more. `leads`: this is the leader's. `ranks_join`: a
    rank may wait, at some time after its start, for all others to join it: it can see when one of them has ended.
    """

    name: str
    main: ProcessSpec
    needs: tuple[Need, ...] = ()
    failure: PhaseFailure = "ExecuteUserScriptError"
    skip_if: Path | None = None
    together: bool = False
    services: tuple[ProcessSpec, ...] = ()
    serves_all: bool = False
    leads: bool = False
    ranks_join: bool = False
    served: Listens | None = None


class Plan(Record, frozen=True, kw_only=True):
    """What `train` starts on this host.

    `phase` runs the script. `installing`: the phase before it, which `toolkit check` shows; `train` makes its own once
    the script is in place. `modules`: those that the script's interpreter must have. `choice`: which of several ways
    was chosen. `notes`: warnings for the log.
    """

    launcher: str
    role: Literal["alone", "leader", "follower"]
    phase: Phase
    installing: Phase | None = None
    world_size: int = 1
    modules: tuple[str, ...] = ()
    choice: str = ""
    notes: tuple[str, ...] = ()

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
