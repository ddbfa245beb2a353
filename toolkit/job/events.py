"""Events: what one host can hear from the job's other hosts, and what it sees of its own processes.

Frozen, each of one type on its whole way.

A SIGTERM is a `Stop` from the moment `train` takes it off its signal pipe: in the supervisor, on the wire, in the
leader, in the followers and in their supervisors. Events with a tag are messages between hosts as they stand
(peers/messages.py); the tags and fields are the wire format, which other versions of the toolkit read.
"""

from typing import Annotated

from msgspec import Meta

from toolkit.job.outcome import Exit, Ruled
from toolkit.job.restart import Restart
from toolkit.records import Record

Name = Annotated[str, Meta(min_length=1, max_length=255)]
SignalNumber = Annotated[int, Meta(ge=1, le=64)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class AllReady(Record, frozen=True, kw_only=True):
    """Every host is ready: the main phase may start."""


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """The stop signal *signal* came to *host*: every host stops as if it had come to itself."""

    host: Name
    signal: SignalNumber


class StopStep(Record, frozen=True, kw_only=True):
    """Every rank of the job stops at *step*."""

    step: int


class PeerFailed(Record, frozen=True, kw_only=True):
    """A rank of another host failed, or a host is gone: *text* says so in one line. The ranks here must stop."""

    text: str


class Hang(Record, frozen=True, kw_only=True):
    """No rank of any host has moved for so long, and the job ends for it."""

    seconds: float


class Stalled(Record, frozen=True, kw_only=True, tag="stalled"):
    """No rank of any host has moved for so long: the stacks of those here are written, and they go on."""

    seconds: Seconds


class NextAttempt(Record, frozen=True, kw_only=True, tag="again"):
    """Every host's ranks are started again, in place of a Verdict. The next attempt is `restart.attempt`; `used` of
    `allowed` restarts are used."""

    restart: Restart
    used: Count
    allowed: Count


class Launch(Record, frozen=True, kw_only=True, tag="launch"):
    """*host* runs *command*, MPI's daemon, for a shell."""

    host: Name
    command: str


class DaemonEnded(Record, frozen=True, kw_only=True, tag="daemon ended"):
    """That daemon has ended, or could not be started, with *code*; *host* is filled in by the leader."""

    code: ExitCode
    host: Annotated[str, Meta(max_length=255)] = ""


class LeaderDone(Record, frozen=True, kw_only=True, tag="over"):
    """The leader's main process has ended; nothing will be launched any more."""


class AllRanksEnded(Record, frozen=True, kw_only=True):
    """No rank of any host lives: the job stops, its services wait for all hosts', or all ranks ended well."""


class JobEnded(Record, frozen=True, kw_only=True):
    """The leader has decided how the job ended."""


# --- seen on this host


class RankEnded(Record, frozen=True, kw_only=True):
    """A rank that is not the phase's own process has ended."""

    exit: Exit


class MainEnded(Record, frozen=True, kw_only=True):
    """The phase's own process has ended: the launcher, or the script."""

    exit: Exit


class ServiceEnded(Record, frozen=True, kw_only=True):
    """A service of the phase has ended."""

    exit: Exit


class LauncherSignals(Record, frozen=True, kw_only=True):
    """The launcher signals a rank shim or has killed it: it wants its ranks to end."""


class NobodyServed(Record, frozen=True, kw_only=True):
    """No host uses this host's services any more."""


class RuleMatched(Record, frozen=True, kw_only=True):
    """A log rule asks for the job's end."""

    ruled: Ruled


class RanksSave(Record, frozen=True, kw_only=True):
    """These ranks hold a checkpoint open, so that no rank was signalled."""

    names: tuple[str, ...]


class StacksWritten(Record, frozen=True, kw_only=True):
    """The stacks of this host's ranks are written and read, or cannot be had."""


class NothingLeft(Record, frozen=True, kw_only=True):
    """No descendant of `train` lives."""


class Tick(Record, frozen=True, kw_only=True):
    """Time has passed."""


Heard = (
    AllReady
    | Stop
    | StopStep
    | PeerFailed
    | Hang
    | Stalled
    | NextAttempt
    | Launch
    | DaemonEnded
    | LeaderDone
    | AllRanksEnded
    | JobEnded
)
Seen = (
    RankEnded
    | MainEnded
    | ServiceEnded
    | LauncherSignals
    | NobodyServed
    | RuleMatched
    | RanksSave
    | StacksWritten
    | NothingLeft
    | Tick
)
Event = Heard | Seen
