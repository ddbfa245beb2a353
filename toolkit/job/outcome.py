"""How processes and the job ended."""

import signal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolkit.exit_codes import of_signal
from toolkit.job.cause import Cause
from toolkit.job.compilation import Compilation
from toolkit.job.restart import Restart
from toolkit.job.stuck import Stuck
from toolkit.records import Record, convert, decode
from toolkit.status_pages.pages import Raised

# The first word of a failure text, as in sagemaker-training: what `train` was doing when a process failed.
PhaseFailure = Literal["ExecuteUserScriptError", "InstallModuleError", "InstallRequirementsError"]
# The most that may pass between the first and the last process, where each process of a job is signalled. Slurm 22.05
# on two busy cores took less than 0.1 s for most of 100 jobs.
SIGNALLING_S = 5.0
INSTALL_FAILURES: tuple[PhaseFailure, ...] = ("InstallModuleError", "InstallRequirementsError")


class Exit(Record, frozen=True, kw_only=True):
    """The end of one process: exactly one of `code` and `signal` (a number) is set. Times: time.monotonic_ns()
    (in outcome.json, since the epoch: `dated`).

    `signalled`: `train` had signalled it before it failed, so its end is not a cause of its own.
    `raised_ns`: when the exception that ended it was raised, if the rank hook saw one; the teardown may take long.
    `left`: it ended with 0 and without MPI_Finalize while others may wait for it.
    """

    process: str
    pid: int
    started_ns: int
    ended_ns: int
    code: int | None = None
    signal: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    signalled: bool = False
    raised_ns: int | None = None
    left: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def failed_ns(self) -> int:
        """The time of its exception, else of its end."""
        return self.raised_ns or self.ended_ns

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
    """A rank that ended with 0 by itself: the cause if the other ranks then lost it.

    `at_ns`: its end, on the monotonic clock of the host that holds this value.
    """

    host: str
    process: str
    pid: Annotated[int, Meta(ge=0)]
    at_ns: int
    rank: Annotated[int, Meta(ge=0)] | None = None
    local_rank: int | None = None

    def explains(self, lost_ns: int) -> bool:
        """Return True if ranks that lost another one at *lost_ns* can have lost this one."""
        return self.at_ns <= lost_ns + SEEN_LATE_NS

    def cause(self, of: Cause) -> Cause:
        """Return the cause of a job whose first rank to lose this one failed with the cause *of*."""
        before_s = (of.failed_ns - self.at_ns) / 1e9
        when = f"{before_s:.1f} s earlier" if before_s >= 0.1 else "a moment earlier"
        waited = WAITED_IN in of.text
        loss = f"the others waited for it in {WAITED_IN}" if waited else "the others lost it"
        return Cause(
            blame=of.blame,
            kind=of.kind,
            text=f"{self.process} of host {self.host} ended with 0, {when}; {loss}",
            process=self.process,
            pid=self.pid,
            rank=self.rank,
            local_rank=self.local_rank,
            ended="ended with code 0",
            advice=JOIN_ALL if waited else WAIT_FOR_ALL,
            primary=True,
            lost=True,
            failed_ns=self.at_ns,
        )


class Memory(Record, frozen=True, kw_only=True):
    """The kernel's figures at the end. `oom_kills`: processes killed for want of memory, None if not counted."""

    oom_kills: int | None
    peak_bytes: int | None
    limit_bytes: int


class Hung(Record, frozen=True, kw_only=True):
    """A hang. `idle_s`: seconds without progress when it was detected at `seen_ns` (time.monotonic_ns()); `stuck`:
    where this host's ranks were."""

    idle_s: float
    seen_ns: int = 0
    stuck: tuple[Stuck, ...] = ()


class Ruled(Record, frozen=True, kw_only=True):
    """Why a log rule ended the job: the exit code of its action, what it found, and when."""

    exit_code: int
    at_ns: int
    text: str
    rank: int | None = None


class Ended(Record, frozen=True, kw_only=True):
    """What the supervisor observed of a phase: the input of the verdict.

    `attempt`: of the script, 0 for the first.
    `tails`: by process name, the last 64 KiB of stderr and of stdout, in this order. `last_on`: by process name, to
    which of them it wrote last ("both": too close in time). `raised`: the exceptions that the rank hook recorded;
    `raised_by_children`: those of processes that the script started itself. `reported_by`: by process name, what
    reported the failure of such a child, whose exception is in `raised` in place of its own ("CalledProcessError in
    train.py:12").
    `own_code`: what is in the paths of the user's own code (train/verdict/place.py).
    `stopped_by`: the signal that asked `train` to stop, at `stopped_at_ns`. `signalled_each`: it was sent to each
    process of the job, one after the other, so the script may have had it before `train`. `stop_rule`: the profiler
    rule that asked for the stop, "" if a signal came.
    `missing`: needs that were not met in time. `forced`: SIGKILL was needed. `peer_failed`: another host failed first.
    `launcher_first`: nothing had failed yet when the launcher asked for the end of the ranks.
    `over`: `train` ended the rest here because the leader's script, or all ranks, had ended with 0.
    `open_files`: the (soft, hard) limit of open files that the processes were started with.
    `long_lines`: lines above 1 MiB, relayed in pieces. `notes`: further lines for the report.
    """

    phase: str
    attempt: int = 0
    failure: PhaseFailure
    command: tuple[str, ...]
    exits: tuple[Exit, ...]
    main: str
    tails: dict[str, tuple[bytes, bytes]] = {}
    last_on: dict[str, Literal["stderr", "stdout", "both"]] = {}
    raised: dict[str, Raised] = {}
    raised_by_children: tuple[Raised, ...] = ()
    reported_by: dict[str, str] = {}
    own_code: tuple[str, ...] = ()
    stopped_by: int | None = None
    stopped_at_ns: int | None = None
    signalled_each: bool = False
    stop_rule: str = ""
    missing: tuple[str, ...] = ()
    forced: bool = False
    peer_failed: bool = False
    launcher_first: bool = False
    over: bool = False
    memory: Memory | None = None
    hung: Hung | None = None
    ruled: Ruled | None = None
    open_files: tuple[int, int] | None = None
    long_lines: int = 0
    notes: tuple[str, ...] = ()


class Outcome(Record, frozen=True, kw_only=True):
    """How the job ended on this host, computed once and never changed.

    `host`: the one of the cause. `here`: this host's part in the end of a job that another host caused ("was healthy").
    `stuck`: where this host's ranks were in a hang. `restarts`: the attempts before this one.
    `text`: the failure text that a framework plug-in wrote itself, "" for none.
    `lost_bytes`: output of this host that the console did not take.
    `compiler`: what the compiler did on this host, None: it was not asked for.
    """

    status: Literal["succeeded", "failed", "stopped"]
    exit_code: int
    host: str = ""
    cause: Cause = Cause()
    text: str = ""
    here: str = ""
    stuck: tuple[Stuck, ...] = ()
    lost_bytes: int = 0
    command: tuple[str, ...] = ()
    exits: tuple[Exit, ...] = ()
    notes: tuple[str, ...] = ()
    restarts: tuple[Restart, ...] = ()
    compiler: Compilation | None = None


def document(outcome: Outcome) -> dict[str, Any]:
    """Return *outcome* as outcome.json has it: the fields of the cause stand beside the others."""
    fields: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(outcome).items():
        fields |= value if name == "cause" else {name: value}
    return fields


def from_document(text: bytes, source: str) -> Outcome:
    """Return the outcome in *text*, an outcome.json; *source* names the file in errors.

    Raises:
        ContractError: it is none.
    """
    fields = decode(text, dict[str, Any], source)
    return convert({**fields, "cause": fields}, Outcome, source)


def dated(outcome: Outcome, ahead_ns: int) -> Outcome:
    """Return *outcome* with wall-clock times, for reports: *ahead_ns* is the wall clock less the monotonic one.

    Compare times only before this: the wall clock may be set at any moment.
    """

    def date(at_ns: int) -> int:
        return at_ns + ahead_ns if at_ns else 0

    exits = (
        msgspec.structs.replace(
            each,
            started_ns=date(each.started_ns),
            ended_ns=date(each.ended_ns),
            raised_ns=None if each.raised_ns is None else date(each.raised_ns),
        )
        for each in outcome.exits
    )
    restarts = (msgspec.structs.replace(each, failed_ns=date(each.failed_ns)) for each in outcome.restarts)
    cause = msgspec.structs.replace(outcome.cause, failed_ns=date(outcome.cause.failed_ns))
    return msgspec.structs.replace(outcome, cause=cause, exits=tuple(exits), restarts=tuple(restarts))


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15, "signal 63" for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
