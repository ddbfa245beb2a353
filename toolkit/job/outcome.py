"""The ends of processes and of the job."""

import signal
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from toolkit.collectives.comparison import GroupComparison
from toolkit.collectives.records import RankCalls
from toolkit.exit_codes import of_signal
from toolkit.job.cause import Cause
from toolkit.job.compilation import Compilation
from toolkit.job.restart import Restart
from toolkit.job.stuck import StuckRank
from toolkit.records import Record, decode, meaning
from toolkit.status_pages.pages import Raised

# The first word of a failure text, as in sagemaker-training: what `train` was doing when a process failed.
PhaseFailure = Literal["ExecuteUserScriptError", "InstallModuleError", "InstallRequirementsError"]
# The most that may pass between the first and the last process, where each process of a job is signalled. Slurm 22.05
# on two busy cores took less than 0.1 s for most of 100 jobs.
SIGNALLING_S = 5.0
# The version of outcome.json's format: docs/versions.md says what raises it.
SCHEMA_VERSION: Final = 1
INSTALL_FAILURES: tuple[PhaseFailure, ...] = ("InstallModuleError", "InstallRequirementsError")


# Its times are time.monotonic_ns(), and in outcome.json since 1970 (`dated`).
class Exit(Record, frozen=True, kw_only=True):
    """The end of one process: exactly one of `code` and `signal` is set."""

    process: Annotated[str, meaning("the process: rank 3, or script, torchrun, ...")]
    pid: Annotated[int, meaning("its process ID")]
    started_ns: Annotated[int, meaning("when it was started, in nanoseconds since 1970")]
    ended_ns: Annotated[int, meaning("when it ended, in nanoseconds since 1970")]
    code: Annotated[int | None, meaning("its exit code; null if a signal ended it")] = None
    signal: Annotated[int | None, meaning("the number of the signal that ended it; null if none did")] = None
    rank: Annotated[int | None, meaning("its rank in the job; null if it is no rank")] = None
    local_rank: Annotated[int | None, meaning("its rank on this host; null if it is no rank")] = None
    signalled: Annotated[
        bool, meaning("`train` had signalled it before it failed, so that its end is not a cause of its own")
    ] = False
    exception_raised_ns: Annotated[
        int | None,
        meaning(
            "when the exception that ended it was raised, in nanoseconds since 1970 (it may take long to end after"
            " that); null if the rank hook saw none"
        ),
    ] = None
    without_mpi_finalize: Annotated[
        bool, meaning("it ended with 0 and without MPI_Finalize, while others might wait for it")
    ] = False

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def failed_ns(self) -> int:
        """The time of its exception, else of its end."""
        return self.exception_raised_ns or self.ended_ns

    @property
    def status(self) -> int:
        """The exit status a shell would show: the code, or 128 + the signal."""
        return of_signal(self.signal or 0) if self.code is None else self.code


# Advice for a rank that ends before the others.
WAIT_FOR_ALL = "Give every rank the same number of steps, or let each wait for the others (a barrier) before it ends."
# The same for one that ends before the others have met it.
JOIN_ALL = "Let every rank call jax.distributed.initialize(), also one that has nothing to do, or start fewer ranks."
WAITED_IN = "jax.distributed.initialize"
# A rank's end may be recorded so much later than its loss: another host reaps it, by another clock.
SEEN_LATE_NS = 1_000_000_000


# Seconds that the other ranks have to end, too, after one ended with 0 and without MPI_Finalize.
UNFINISHED_S = 2.0


class EarlyExit(Record, frozen=True, kw_only=True):
    """A rank that ended with 0 by itself: the cause if the other ranks then lost it."""

    host: str
    process: str
    pid: Annotated[int, Meta(ge=0)]
    at_ns: int
    """Its end, on the monotonic clock of the host that holds this value."""
    rank: Annotated[int, Meta(ge=0)] | None = None
    local_rank: int | None = None

    def explains(self, lost_ns: int) -> bool:
        """Return True if ranks that lost another one at *lost_ns* can have lost this one."""
        return self.at_ns <= lost_ns + SEEN_LATE_NS

    def cause(self, collateral: Cause) -> Cause:
        """Return the cause of a job whose first rank to lose this one failed with the cause *collateral*."""
        before_s = (collateral.failed_ns - self.at_ns) / 1e9
        when = f"{before_s:.1f} s earlier" if before_s >= 0.1 else "a moment earlier"
        waited = WAITED_IN in collateral.message
        loss = f"the others waited for it in {WAITED_IN}" if waited else "the others lost it"
        return Cause(
            blame=collateral.blame,
            kind=collateral.kind,
            message=f"{self.process} of host {self.host} ended with 0, {when}; {loss}",
            process=self.process,
            pid=self.pid,
            rank=self.rank,
            local_rank=self.local_rank,
            process_end="ended with code 0",
            advice=JOIN_ALL if waited else WAIT_FOR_ALL,
            primary=True,
            peer_lost=True,
            failed_ns=self.at_ns,
        )


class MemoryUse(Record, frozen=True, kw_only=True):
    """The kernel's figures at the end. `oom_kills`: processes killed for want of memory, None if not counted."""

    oom_kills: int | None
    peak_bytes: int | None
    limit_bytes: int


class DetectedHang(Record, frozen=True, kw_only=True):
    """A hang. `idle_s`: seconds without progress when it was detected at `seen_ns` (time.monotonic_ns());
    `stuck_ranks`: where this host's ranks were; `rank_calls`: the collectives of those that could be read."""

    idle_s: float
    seen_ns: int = 0
    stuck_ranks: tuple[StuckRank, ...] = ()
    rank_calls: tuple[RankCalls, ...] = ()


class RuleMatch(Record, frozen=True, kw_only=True):
    """The match by which a log rule ended the job."""

    exit_code: int
    at_ns: int
    text: str
    rank: int | None = None


class PhaseEnd(Record, frozen=True, kw_only=True):
    """The supervisor's account of a phase, an install or the script: the input of the verdict."""

    name: str
    """The phase: "install" or "script"."""
    attempt: int = 0
    """The attempt of the script, 0 for the first."""
    failure_kind: PhaseFailure
    """The kind of failure if one of its processes fails."""
    command: tuple[str, ...]
    """The command of the main process."""
    exits: tuple[Exit, ...]
    """The processes that ended, in the order of their ends."""
    main: str
    """The name of the main process: the script, or the launcher of the ranks."""
    tails: dict[str, tuple[bytes, bytes]] = {}
    """By process name: the last 64 KiB of stderr and of stdout, in this order."""
    last_on: dict[str, Literal["stderr", "stdout", "both"]] = {}
    """By process name: to which of them it wrote last; both: too close in time."""
    exceptions: dict[str, Raised] = {}
    """By process name: the exception that the rank hook recorded."""
    child_exceptions: tuple[Raised, ...] = ()
    """The exceptions of processes that the script started itself."""
    reported_by: dict[str, str] = {}
    """By process name: what reported the failure of such a child ("CalledProcessError in train.py:12"). `exceptions`
    then has the child's exception in place of that one."""
    user_paths: tuple[str, ...] = ()
    """Parts of the paths of the user's own code (train/verdict/error_frame.py)."""
    stopped_by: int | None = None
    """The signal that asked `train` to stop."""
    stopped_at_ns: int | None = None
    """When that signal came."""
    signalled_each: bool = False
    """The signal was sent to each process of the job in turn: the script may have had it before `train`."""
    stop_rule: str = ""
    """The profiler rule that asked for the stop, "" if a signal came."""
    missing: tuple[str, ...] = ()
    """The needs that were not met in time."""
    forced: bool = False
    """SIGKILL was needed."""
    peer_failed: bool = False
    """Another host failed first."""
    launcher_first: bool = False
    """Nothing had failed yet when the launcher asked for the end of the ranks."""
    job_finished: bool = False
    """`train` ended the rest on this host because the leader's script, or all ranks, had ended with 0."""
    memory: MemoryUse | None = None
    """The memory of this host at the end, None if it was not measured."""
    hang: DetectedHang | None = None
    """The hang that ended the phase."""
    rule_match: RuleMatch | None = None
    """The match of a log rule that ended the phase."""
    open_files: tuple[int, int] | None = None
    """The (soft, hard) limit of open files that the processes were started with."""
    long_lines: int = 0
    """The number of lines above 1 MiB that were relayed in pieces."""
    notes: tuple[str, ...] = ()
    """Further lines for the report."""


# Computed once and never changed. Its JSON is output/outcome.json (document_schemas.py makes docs/outcome.md).
class Outcome(Record, frozen=True, kw_only=True):
    """The end of the job on this host."""

    schema_version: Annotated[Literal[1], meaning("the version of this file's format")] = SCHEMA_VERSION
    status: Annotated[
        Literal["succeeded", "failed", "stopped"], meaning("how the job ended; stopped: by a signal or a rule")
    ]
    exit_code: Annotated[int, meaning("the exit status of `train` (docs/exit-codes.md)")]
    cause_host: Annotated[
        str, meaning("the host of the cause; of a success this host; empty if the cause belongs to no single host")
    ] = ""
    cause: Annotated[Cause, meaning("the process that failed first, and why; of a success its texts are empty")] = (
        Cause()
    )
    plugin_failure_text: Annotated[
        str, meaning("the failure text that a framework plug-in wrote itself; empty if none did")
    ] = ""
    this_host_end: Annotated[
        str,
        meaning(
            "how this host ended, if another host is the cause: was healthy, was stopped, lost it, ended with it, or"
            " failed, too (how)"
        ),
    ] = ""
    stuck_ranks: Annotated[tuple[StuckRank, ...], meaning("where this host's ranks were in a hang")] = ()
    collectives: Annotated[
        tuple[GroupComparison, ...],
        meaning("in a hang: the collectives of all ranks, compared, of each process group (docs/hangs.md)"),
    ] = ()
    console_lost_bytes: Annotated[
        int, meaning("bytes of this host's output that the console did not take (docs/supervision.md)")
    ] = 0
    command: Annotated[
        tuple[str, ...], meaning("the command of the main process, with secrets masked; empty if none was started")
    ] = ()
    exits: Annotated[tuple[Exit, ...], meaning("the end of every process that `train` started on this host")] = ()
    notes: Annotated[tuple[str, ...], meaning("further lines for people, as of files that were not uploaded")] = ()
    restarts: Annotated[tuple[Restart, ...], meaning("the failures of the attempts before this one")] = ()
    compiler: Annotated[
        Compilation | None, meaning("what the compiler did on this host (docs/compiler.md); null: it was not asked for")
    ] = None


def from_document(text: bytes, source: str) -> Outcome:
    """Return the outcome in *text*, an outcome.json; *source* names the file in errors.

    Raises:
        ContractError: it is none.
    """
    return decode(text, Outcome, source)


def dated(outcome: Outcome, ahead_ns: int) -> Outcome:
    """Return *outcome* with wall-clock times, for reports: *ahead_ns* is the wall clock less the monotonic one.

    Compare times only before this: the wall clock may be set at any moment.
    """

    def date(at_ns: int) -> int:
        return at_ns + ahead_ns if at_ns else 0

    exits = (
        msgspec.structs.replace(
            end,
            started_ns=date(end.started_ns),
            ended_ns=date(end.ended_ns),
            exception_raised_ns=None if end.exception_raised_ns is None else date(end.exception_raised_ns),
        )
        for end in outcome.exits
    )
    restarts = (msgspec.structs.replace(restart, failed_ns=date(restart.failed_ns)) for restart in outcome.restarts)
    cause = msgspec.structs.replace(outcome.cause, failed_ns=date(outcome.cause.failed_ns))
    return msgspec.structs.replace(outcome, cause=cause, exits=tuple(exits), restarts=tuple(restarts))


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15, "signal 63" for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
