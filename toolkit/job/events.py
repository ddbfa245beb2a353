"""Events: messages from the job's other hosts, and changes of this host's own processes.

An event keeps one type in all layers. A SIGTERM is a `Stop` from the moment `train` reads it from its signal pipe: in
the supervisor, on the wire, in the leader, in the followers and in their supervisors.

Events with a tag are also messages between hosts (train/peers/messages.py). Their tags and fields are the wire format,
which other versions of the toolkit read.
"""

from typing import Annotated

from msgspec import Meta

from toolkit.job.outcome import Exit, RuleMatch
from toolkit.job.ranges import Count, ExitCode, Name, Seconds, SignalNumber
from toolkit.job.restart import Restart
from toolkit.records import Record


class AllReady(Record, frozen=True, kw_only=True):
    """Every host is ready: the main phase may start."""


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """The stop signal *signal* came to *host*: every host stops as if the signal had come to it.

    *rule*: no signal came; the profiler rule of this name stops the job early and well, with the whole grace.
    """

    host: Name
    signal: SignalNumber
    rule: Annotated[str, Meta(max_length=255)] = ""


class StopStep(Record, frozen=True, kw_only=True):
    """Every rank of the job stops at *step*."""

    step: int


class PeerFailed(Record, frozen=True, kw_only=True):
    """A rank of another host failed, or a host vanished; *text* describes it in one line. The ranks here must stop."""

    text: str


class Hang(Record, frozen=True, kw_only=True):
    """No rank of any host has been active for *seconds*, and that ends the job."""

    seconds: float


class HangNoticed(Record, frozen=True, kw_only=True, tag="hang_noticed"):
    """No rank of any host has been active for *seconds*: this host writes its ranks' stacks, and they continue."""

    seconds: Seconds


class NextAttempt(Record, frozen=True, kw_only=True, tag="next_attempt"):
    """The ranks of all hosts are started again, in place of a Verdict. The next attempt is `restart.attempt`; `used` of
    `allowed` restarts are used."""

    restart: Restart
    used: Count
    allowed: Count


class Launch(Record, frozen=True, kw_only=True, tag="launch"):
    """*host* is to run *command*, a shell command line that starts MPI's daemon."""

    host: Name
    command: str


class DaemonEnded(Record, frozen=True, kw_only=True, tag="daemon_ended"):
    """The daemon of a Launch ended with *code*, or could not be started; the leader fills in *host*."""

    code: ExitCode
    host: Annotated[str, Meta(max_length=255)] = ""


class LeaderDone(Record, frozen=True, kw_only=True, tag="leader_done"):
    """The leader's main process has ended and will launch no more daemons."""


class RankDone(Record, frozen=True, kw_only=True, tag="rank_done"):
    """Rank *process* of *host* ended with 0, the first of its attempt: a rank that waits for all waits in vain."""

    host: Name
    process: Annotated[str, Meta(max_length=128)]


class AllRanksEnded(Record, frozen=True, kw_only=True):
    """No rank of any host lives: the job stops, or services wait for all hosts' ranks, or all ranks ended with 0."""


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
    """The launcher signalled a rank shim or killed it: it wants its ranks to end."""


class NobodyServed(Record, frozen=True, kw_only=True):
    """No host uses this host's services any more."""


class RuleMatched(Record, frozen=True, kw_only=True):
    """A log rule ends the job."""

    ruled: RuleMatch


class RanksSave(Record, frozen=True, kw_only=True):
    """These ranks hold a checkpoint open, so no rank was signalled."""

    names: tuple[str, ...]


class StacksWritten(Record, frozen=True, kw_only=True):
    """The stacks of this host's ranks were written and read, or cannot be written."""


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
    | HangNoticed
    | NextAttempt
    | Launch
    | DaemonEnded
    | LeaderDone
    | RankDone
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
