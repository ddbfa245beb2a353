"""The plan of one host: data about processes. Launchers write it, the loop follows it, `toolkit check` prints it."""

from pathlib import Path
from typing import Literal

from toolkit.log import masked
from toolkit.records import Record


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
    """How a process is stopped: `signal` to its leader first, SIGKILL to its group after `grace_s`."""

    signal: str = "SIGTERM"
    grace_s: float = 20.0
    drain_s: float = 1.0


class ProcessSpec(Record, frozen=True, kw_only=True):
    """A process to start. `environ` is complete. argv[0] is looked up in environ's PATH.

    `rank`: the global rank this process is (None: it is no rank). `starts_ranks`: the global ranks, by local rank,
    that it will start by itself (torchrun); they come back to `train` through the stand-in if `stand_in`.
    """

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    cwd: Path
    stop: StopPolicy
    rank: int | None = None
    starts_ranks: tuple[int, ...] = ()
    stand_in: bool = False


class Phase(Record, frozen=True, kw_only=True):
    """A step of the plan: what must be there first, and the process whose end ends it.

    `failure` opens its failure text. The step is skipped where the file `skip_if` exists. `together`: no host begins it
    before all are ready.
    """

    name: str
    main: ProcessSpec
    needs: tuple[Need, ...] = ()
    failure: str = "ExecuteUserScriptError"
    skip_if: Path | None = None
    together: bool = False


class Plan(Record, frozen=True, kw_only=True):
    """All phases of this host, in order, the modules its interpreter must have, and what is worth saying (`notes`)."""

    launcher: str
    role: Literal["alone", "leader", "follower"]
    phases: tuple[Phase, ...]
    world_size: int = 1
    modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self, base_environ: dict[str, str]) -> str:
        """Return the plan for people and goldens; of the environment only what differs from *base_environ*, masked."""
        lines = [f"launcher: {self.launcher}", f"role: {self.role}", f"world size: {self.world_size}"]
        lines += [f"note: {note}" for note in self.notes]
        for phase in self.phases:
            lines.append(f"phase: {phase.name}")
            lines += [f"  needs: {need}, within {need.within_s:g} s" for need in phase.needs]
            lines.append("  argv: " + " ".join(quoted(token) for token in phase.main.argv))
            lines.append(f"  cwd: {phase.main.cwd}")
            added = {k: v for k, v in phase.main.environ.items() if base_environ.get(k) != v}
            lines += [f"  env: {k}={v}" for k, v in sorted(masked(added).items())]
        return "\n".join(lines) + "\n"


def quoted(token: str) -> str:
    """Return *token* as it could be typed in a shell."""
    import shlex

    return shlex.quote(token)
