"""Pure: the actions that the stop machine returns. Each holds all that carrying it out needs (effects.py).

`JobAction`: the actions that may also come while no phase runs. `StopAction`: all of them.
"""

from enum import Enum
from typing import Literal

from toolkit.job.events import Hang, HangNoticed, LeaderDone, RankDone, Stop
from toolkit.job.outcome import Exit
from toolkit.records import Record


class PlainAction(Enum):
    """An action without a payload."""

    FORWARD_SIGNAL = "the signal that came goes to every rank (before there is one: to the launcher)"
    TERMINATE_RANKS = "SIGTERM to every living rank"
    TERMINATE_RANKS_OR_LAUNCHER = "SIGTERM to every living rank, before there is one: to the launcher"
    TERMINATE_LAUNCHER = "SIGTERM to the launcher"
    TERMINATE_LEFTOVERS = "SIGTERM to every descendant left"
    KILL_ALL = "SIGKILL to every descendant left"
    KILL_OPTIONAL = "SIGKILL to optional services: a script that left processes behind keeps its grace, they do not"
    KILL_LAUNCHER = "SIGKILL to the launcher: its ranks have ended, and its own report of that adds nothing"
    CHECK_FOR_PROCESSES = "ended processes are reaped; in the state killing, new ones are killed"
    DUMP_STACKS = "every rank's stacks are written"
    BEGIN_DRAIN = "the time for the last output begins"
    REPORT_SURVIVORS = "the processes that SIGKILL has not ended are named, and left alone"
    AWAIT_UNSERVED = "a process waits until no host uses this one's services"
    SERVE_DAEMONS = "MPI's agents and daemons get what they wait for"
    DISMISS_DAEMONS = "MPI's agents and daemons hear that nothing will be launched any more"
    LOG_NO_RANK = "the log says that a stop signal found no rank here"


class HurryConsole(Record, frozen=True, kw_only=True):
    """From now on ranks wait less long for a stalled console."""


class TellStop(Record, frozen=True, kw_only=True):
    """Send *stop*, which came to this host, to the other hosts."""

    stop: Stop


class AnswerShim(Record, frozen=True, kw_only=True):
    """The shim of the rank that ended with *exit* ends in the same way."""

    exit: Exit


class HoldShim(Record, frozen=True, kw_only=True):
    """The shim of the rank that ended with *exit* waits, so that the launcher does not hear of that end."""

    exit: Exit


class ReleaseShims(Record, frozen=True, kw_only=True):
    """The shims that wait end. *exit*: of the main process; the other hosts hear of it where MPI needs that."""

    exit: Exit


class WriteStopStep(Record, frozen=True, kw_only=True):
    """Every rank here gets *step*, at which all stop."""

    step: int


class ShowRankDone(Record, frozen=True, kw_only=True):
    """The ranks here can see *done*: the first rank that ended with 0."""

    done: RankDone


class ReportHang(Record, frozen=True, kw_only=True):
    """The log says that no rank moves."""

    hang: Hang | HangNoticed


class WriteLog(Record, frozen=True, kw_only=True):
    """The log gets a line."""

    level: Literal["info", "warning", "error"]
    text: str


class UnfinalizedExit(Record, frozen=True, kw_only=True):
    """A rank ended with 0 and without MPI_Finalize."""

    exit: Exit


class HostState(Enum):
    """The state of a host, as it tells the others."""

    FAILING = "this failed here"
    OWN_FAILURE = "this had failed here when another host failed"
    RANKS_ENDED = "no rank of this host lives"


class TellHosts(Record, frozen=True, kw_only=True):
    """The other hosts hear *message*. A RankDone is for all hosts: others may wait for all ranks."""

    message: HostState | UnfinalizedExit | RankDone | LeaderDone


JobAction = HurryConsole | TellStop
StopAction = (
    JobAction
    | PlainAction
    | AnswerShim
    | HoldShim
    | ReleaseShims
    | WriteStopStep
    | ShowRankDone
    | ReportHang
    | WriteLog
    | TellHosts
)
