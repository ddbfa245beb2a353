"""Pure: the messages between the `train` processes of one job; frames.py proves each of them.

Messages that are events of the receiving host as they stand (a stop, a restart) are in job/events.py.

Every number has its range: a message with one outside it is refused, whoever sent it, so that no host has to expect a
signal 999. Texts are limited by the frame's size alone.
"""

from typing import Annotated

from msgspec import Meta

from toolkit.collectives.comparison import GroupComparison
from toolkit.collectives.records import RankCalls
from toolkit.job.cause import Cause
from toolkit.job.events import DaemonEnded, HangNoticed, Launch, LeaderDone, NextAttempt, RankDone, Stop
from toolkit.job.outcome import EarlyExit
from toolkit.job.ranges import Count, ExitCode, Name, Nanoseconds, Rank, Seconds
from toolkit.job.rank_work import MOST_RANKS_SENT, RankWork, TraceAsked
from toolkit.job.restart import Steps
from toolkit.job.stuck import StuckRank
from toolkit.records import Record

Fact = Annotated[str, Meta(max_length=64)]
StepNumber = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]


class EndReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one host's part, or its failure. With exit_code 0 and not `stopped`, all is well."""

    host: Name
    exit_code: ExitCode
    stopped: bool = False
    """A stop signal ended it."""
    cause: Cause = Cause()
    idle_s: Seconds = 0.0
    """In a hang: for how long no rank of the job has been active."""
    stuck_ranks: tuple[StuckRank, ...] = ()
    """In a hang: where the host's ranks are."""
    rank_calls: tuple[RankCalls, ...] = ()
    """In a hang, up: the collectives of the host's ranks."""
    collectives: tuple[GroupComparison, ...] = ()
    """In a hang, down: the collectives of all ranks, compared."""
    of_job: bool = False
    """No single host is the cause."""
    early: EarlyExit | None = None
    """The first rank of the host that ended with 0."""
    abort_text: str = ""
    """The text that mpirun on this host printed about the abort of a rank of another host."""
    abort_rank: Rank | None = None
    """The rank that aborted."""

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 and not self.stopped


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """Up, first: who I am."""

    host: Name
    end: Annotated[str, Meta(max_length=128)] = ""
    """This end of the connection, "ADDRESS port N": behind a proxy the leader sees another one."""
    space: Annotated[str, Meta(max_length=128)] = ""
    """The network namespace (space.py)."""
    mark: Annotated[str, Meta(max_length=64)]
    """Of this process: a second connection of the same host with another mark is refused."""
    leader_mark: Annotated[str, Meta(max_length=64)] = ""
    """Of the leader's process that this one has joined, "" if none yet: a leader started again is another process."""
    tag: Annotated[str, Meta(max_length=64)] = ""
    """Of the job, in hex (sameness.py)."""
    facts: Annotated[dict[Fact, Fact], Meta(max_length=16)] = {}
    """Values that must be equal on all hosts."""


class Welcome(Record, frozen=True, kw_only=True, tag="welcome"):
    """Down, first: the leader's settings hold for all, in seconds; and its clock, so that no report is sent before the
    offset between the two clocks is known. `mark`: the leader's process."""

    heartbeat_s: Annotated[float, Meta(gt=0.0, le=1e6)]
    heartbeat_timeout_s: Annotated[float, Meta(gt=0.0, le=1e6)]
    leader_ns: Nanoseconds
    mark: Annotated[str, Meta(max_length=64)] = ""


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """Up: this host could start its main phase."""


class NotReady(Record, frozen=True, kw_only=True, tag="not_ready"):
    """Up: this host is not ready, since it waits for *needs* ("host algo-2 to resolve")."""

    needs: str


class Go(Record, frozen=True, kw_only=True, tag="go"):
    """Down: all are ready."""


class Ping(Record, frozen=True, kw_only=True, tag="ping"):
    """Up, a heartbeat: alive at *sent_ns* (the follower's monotonic clock)."""

    sent_ns: Nanoseconds


class Pong(Record, frozen=True, kw_only=True, tag="pong"):
    """Down: the answer, with the leader's clock."""

    sent_ns: Nanoseconds
    leader_ns: Nanoseconds


class Idle(Record, frozen=True, kw_only=True, tag="idle"):
    """Up: no rank of this host has moved for so long (0: they move again). `limit_s`: when that is a hang, if no other
    host's has either; `stops`: whether that ends the job."""

    seconds: Seconds
    limit_s: Seconds = 0.0
    stops: bool = True


class UnfinalizedRank(Record, frozen=True, kw_only=True, tag="unfinalized_rank"):
    """Up: a rank of this host ended with 0 and without MPI_Finalize; so many of its ranks live."""

    early: EarlyExit
    living_ranks: Count


class Failing(Record, frozen=True, kw_only=True, tag="failing"):
    """Both ways: this is the worst failure known so far. Stop your ranks, and answer with OwnFailure. Not `is_whole`: a
    short form, the whole follows."""

    report: EndReport
    is_whole: bool = True


class OwnFailure(Record, frozen=True, kw_only=True, tag="own_failure"):
    """Up, the answer to Failing: what failed here first, as far as is known now (None: nothing)."""

    report: EndReport | None


class CommonStep(Record, frozen=True, kw_only=True, tag="common_step"):
    """Up: the first step at which this host's ranks could stop. Down: the step at which every rank does."""

    step: StepNumber


class HostEnded(Record, frozen=True, kw_only=True, omit_defaults=True, tag="host_ended"):
    """Up: this host's processes have ended, so; and how far its ranks had come."""

    report: EndReport
    steps: Steps = Steps()


class Attempt(Record, frozen=True, kw_only=True, tag="attempt"):
    """Up: what this host sends from now on belongs to this attempt. A new connection begins in attempt 0."""

    number: Count


class RankStepTimes(Record, frozen=True, kw_only=True, tag="rank_step_times"):
    """Up, every second at most: (rank, step, seconds) of some steps of this host's ranks."""

    times: tuple[tuple[Rank, StepNumber, Seconds], ...]


class HostOwnWork(Record, frozen=True, kw_only=True, tag="host_own_work"):
    """Up, every few seconds at most: the own work of this host's ranks, for the leader's monitor."""

    ranks: Annotated[tuple[RankWork, ...], Meta(max_length=MOST_RANKS_SENT)]


class TraceRanks(Record, frozen=True, kw_only=True, tag="trace_ranks"):
    """Down: these two ranks, a slow and a healthy one, trace their next steps, if they run here."""

    request: TraceAsked


class Notice(Record, frozen=True, kw_only=True, tag="notice"):
    """Down, to one host: say this in the log; it is about a rank there."""

    text: str


class Verdict(Record, frozen=True, kw_only=True, tag="verdict"):
    """Down: how the job ended, for every host."""

    report: EndReport


class RanksEnded(Record, frozen=True, kw_only=True, tag="ranks_ended"):
    """While the job stops, where services wait for all hosts', or where all ranks have ended well. Up: every rank of
    this host has ended. Down: of the job."""


class Bye(Record, frozen=True, kw_only=True, tag="bye"):
    """Up, last: this host has the Verdict."""


Up = (
    Hello
    | Ready
    | NotReady
    | Ping
    | Idle
    | UnfinalizedRank
    | Failing
    | OwnFailure
    | Stop
    | CommonStep
    | HostEnded
    | Attempt
    | RankStepTimes
    | HostOwnWork
    | DaemonEnded
    | RankDone
    | RanksEnded
    | Bye
)
Down = (
    Welcome
    | Go
    | Pong
    | Failing
    | Stop
    | CommonStep
    | Verdict
    | NextAttempt
    | Notice
    | TraceRanks
    | Launch
    | LeaderDone
    | RankDone
    | RanksEnded
    | HangNoticed
)
# Messages with a host's own report.
Reports = Failing | OwnFailure | HostEnded
WithReport = Reports | Verdict
# Up: messages that name a host, which has to be one of the job. A set of types: `isinstance` of a Record costs 0.1 µs
# for each class that does not fit, and the leader asks this of every heartbeat.
NAMES_HOST = frozenset({Failing, OwnFailure, HostEnded, Stop, RankDone})
Message = Up | Down
