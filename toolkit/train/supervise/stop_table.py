"""Pure: how a host's processes are ended, as one table: (state, cue, guards) -> (next state, answers).

Terms: the *launcher* is the phase's main process; the *ranks* are the processes that do the work. A script without a
launcher is both. A process has "ended" when it is reaped; end-of-file on its pipes does not count. A *cue* is what an
event (job/events.py) means for the table; stop_machine.py derives cues from events. A *guard* is a condition that the
machine evaluates: of the rows for a state and a cue, the first one whose guards all hold applies.

The required order: the script gets the signal first, and alone, so that its own children (DataLoader workers) live
while it saves; then the processes that it left behind; then the launcher. SIGKILL comes only at the deadline, or after
a second stop signal.
"""

from collections.abc import Callable
from enum import Enum
from typing import Literal

from toolkit.train.supervise.stop_actions import HostState, PlainAction, StopAction, TellHosts

# "idle": no phase runs. "stopping launcher": the launcher has got SIGTERM.
State = Literal[
    "idle",
    "running",
    "stopping",
    "dumping",
    "failing",
    "leaving",
    "stopping launcher",
    "sweeping",
    "killing",
    "draining",
    "done",
]


class Cue(Enum):
    """The meaning of an event for the table. A row may give a further cue, which is looked up in the next state."""

    STOP = "a stop signal came"
    STOP_AGAIN = "another stop signal came to this host"
    RANK_FAILED = "a rank ended badly while others live"
    LAUNCHER_STOPS = "the launcher asks its ranks to end, or ended before them"
    PEER_FAILED = "another host failed"
    HUNG = "nothing has moved on any host for too long"
    RULED = "a log rule asks for the job's end"
    SERVICE_FAILED = "a service that the ranks need has ended badly"
    LEADER_DONE = "the leader's script has ended well, and this host's goes on for too long"
    RANKS_ENDED = "the last rank ended, the launcher lives"
    ALL_RANKS_ENDED = "no rank of any host lives: the job stops, or all have ended well"
    ALL_ENDED = "launcher and ranks have ended"
    NOTHING_LEFT = "no descendant lives"
    DUMPED = "the ranks' stacks are written"
    DRAINED = "every pipe is at its end"
    DEADLINE = "the time that the last Arm set is over"


class StopGuard(Enum):
    """A condition of a row."""

    NOTHING_AT_WORK = "neither launcher nor script nor rank lives"
    LAUNCHER_WAITS = "only the launcher lives, and it may wait for the ranks of other hosts"
    LAUNCHER_ENDS_WITH_RANKS = "only the launcher lives, and has nothing to do after the job's last rank"
    RANKS_ENDED_WELL = "every rank ended with 0, and the launcher has nothing to do after the job's last rank"
    TRAIN_ENDS_LAUNCHER = "`train` ends the launcher once the ranks that it waits for have ended"
    LAUNCHER_ADDS_NOTHING = "`train` ends the launcher, whose own report of its ranks adds nothing"
    LAST_HOST = "no rank of another host lives, as far as this host was told, or there is no link to other hosts"


class Arm(Enum):
    """A timer that the machine sets: the deadline, or that of optional services."""

    GRACE = "the end of the script's grace"
    FAILURE = "the end of the grace that ranks have after a sibling failed"
    DUMP = "the time by which the stacks must be written"
    HUNG = "the end of the grace that ranks have in a hang"
    LAUNCHER = "the end of the time that the launcher has to end by itself"
    STOPPED_LAUNCHER = "the same during a stop, in which the launcher may have more to do"
    RANKS_END = "the end of the ranks' grace, which the launcher shares, as it ends with those of every host"
    SWEEP = "the end of the time that processes have which a finished script left behind"
    OPTIONAL = "the end of the time that optional services have"
    KILL = "the time after which a process that survives SIGKILL (in the kernel) is left alone"
    DRAIN = "now: the next Tick has the time by which the output must be read"


class StopMark(Enum):
    """A fact that a row records for the verdict."""

    JOB_DONE = "the processes that still live are ended because the job is done, not because of a failure"


Answer = StopAction | Arm | StopMark | Cue
_TELL_RANKS_ENDED = TellHosts(message=HostState.RANKS_ENDED)

TABLE: dict[tuple[State, Cue, tuple[StopGuard, ...]], tuple[State, tuple[Answer, ...]]] = {
    ("running", Cue.STOP, (StopGuard.LAUNCHER_WAITS,)): (
        "stopping",
        (PlainAction.LOG_NO_RANK, Arm.GRACE, Cue.RANKS_ENDED),
    ),
    ("running", Cue.STOP, (StopGuard.NOTHING_AT_WORK,)): ("stopping", (PlainAction.LOG_NO_RANK, Arm.GRACE)),
    ("running", Cue.STOP, ()): ("stopping", (PlainAction.FORWARD_SIGNAL, Arm.GRACE)),
    ("running", Cue.RANK_FAILED, ()): ("failing", (PlainAction.TERMINATE_RANKS, Arm.FAILURE)),
    ("running", Cue.LAUNCHER_STOPS, ()): ("failing", (PlainAction.TERMINATE_RANKS, Arm.FAILURE)),
    ("running", Cue.PEER_FAILED, (StopGuard.LAUNCHER_ENDS_WITH_RANKS,)): ("failing", (Arm.FAILURE, Cue.RANKS_ENDED)),
    ("running", Cue.PEER_FAILED, ()): ("failing", (Arm.FAILURE, PlainAction.TERMINATE_RANKS_OR_LAUNCHER)),
    ("running", Cue.RULED, (StopGuard.LAUNCHER_ENDS_WITH_RANKS,)): ("failing", (Arm.FAILURE, Cue.RANKS_ENDED)),
    ("running", Cue.RULED, ()): ("failing", (Arm.FAILURE, PlainAction.TERMINATE_RANKS_OR_LAUNCHER)),
    ("running", Cue.SERVICE_FAILED, (StopGuard.LAUNCHER_ENDS_WITH_RANKS,)): ("failing", (Arm.FAILURE, Cue.RANKS_ENDED)),
    ("running", Cue.SERVICE_FAILED, ()): ("failing", (Arm.FAILURE, PlainAction.TERMINATE_RANKS_OR_LAUNCHER)),
    ("running", Cue.LEADER_DONE, (StopGuard.LAUNCHER_ENDS_WITH_RANKS,)): (
        "failing",
        (StopMark.JOB_DONE, Arm.FAILURE, Cue.RANKS_ENDED),
    ),
    ("running", Cue.LEADER_DONE, ()): (
        "failing",
        (StopMark.JOB_DONE, Arm.FAILURE, PlainAction.TERMINATE_RANKS_OR_LAUNCHER),
    ),
    ("running", Cue.HUNG, ()): ("dumping", (PlainAction.DUMP_STACKS, Arm.DUMP)),
    ("dumping", Cue.DUMPED, (StopGuard.LAUNCHER_ENDS_WITH_RANKS,)): ("failing", (Arm.HUNG, Cue.RANKS_ENDED)),
    ("dumping", Cue.DUMPED, ()): ("failing", (Arm.HUNG, PlainAction.TERMINATE_RANKS_OR_LAUNCHER)),
    ("dumping", Cue.DEADLINE, (StopGuard.LAUNCHER_ENDS_WITH_RANKS,)): ("failing", (Arm.HUNG, Cue.RANKS_ENDED)),
    ("dumping", Cue.DEADLINE, ()): ("failing", (Arm.HUNG, PlainAction.TERMINATE_RANKS_OR_LAUNCHER)),
    ("dumping", Cue.STOP, (StopGuard.LAUNCHER_WAITS,)): (
        "stopping",
        (PlainAction.LOG_NO_RANK, Arm.GRACE, Cue.RANKS_ENDED),
    ),
    ("dumping", Cue.STOP, (StopGuard.NOTHING_AT_WORK,)): ("stopping", (PlainAction.LOG_NO_RANK, Arm.GRACE)),
    ("dumping", Cue.STOP, ()): ("stopping", (PlainAction.FORWARD_SIGNAL, Arm.GRACE)),
    ("dumping", Cue.STOP_AGAIN, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("dumping", Cue.RANK_FAILED, ()): ("failing", (PlainAction.TERMINATE_RANKS, Arm.HUNG)),
    ("dumping", Cue.LAUNCHER_STOPS, ()): ("failing", (PlainAction.TERMINATE_RANKS, Arm.HUNG)),
    ("dumping", Cue.ALL_ENDED, ()): ("sweeping", (PlainAction.TERMINATE_LEFTOVERS, Arm.OPTIONAL, Arm.SWEEP)),
    ("running", Cue.ALL_ENDED, ()): ("sweeping", (PlainAction.TERMINATE_LEFTOVERS, Arm.OPTIONAL, Arm.SWEEP)),
    # A launcher may wait for other hosts for as long as they train.
    ("running", Cue.RANKS_ENDED, (StopGuard.RANKS_ENDED_WELL, StopGuard.LAST_HOST)): (
        "running",
        (Cue.ALL_RANKS_ENDED,),
    ),
    ("running", Cue.RANKS_ENDED, (StopGuard.RANKS_ENDED_WELL,)): ("running", (_TELL_RANKS_ENDED,)),
    ("running", Cue.ALL_RANKS_ENDED, ()): ("leaving", (StopMark.JOB_DONE, PlainAction.KILL_LAUNCHER, Arm.LAUNCHER)),
    ("stopping", Cue.STOP_AGAIN, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("stopping", Cue.DEADLINE, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("stopping", Cue.RANKS_ENDED, (StopGuard.TRAIN_ENDS_LAUNCHER, StopGuard.LAST_HOST)): (
        "leaving",
        (Arm.RANKS_END, Cue.ALL_RANKS_ENDED),
    ),
    ("stopping", Cue.RANKS_ENDED, (StopGuard.TRAIN_ENDS_LAUNCHER,)): ("leaving", (Arm.RANKS_END, _TELL_RANKS_ENDED)),
    ("stopping", Cue.RANKS_ENDED, ()): ("leaving", (Arm.STOPPED_LAUNCHER,)),
    # If the script was a shell that died of the signal, the processes that it left may be the real program: they keep
    # the rest of the grace.
    ("stopping", Cue.ALL_ENDED, ()): ("sweeping", (PlainAction.TERMINATE_LEFTOVERS, Arm.OPTIONAL)),
    ("failing", Cue.STOP, (StopGuard.LAUNCHER_WAITS,)): ("failing", (PlainAction.LOG_NO_RANK, Cue.RANKS_ENDED)),
    ("failing", Cue.STOP, (StopGuard.NOTHING_AT_WORK,)): ("failing", (PlainAction.LOG_NO_RANK,)),
    ("failing", Cue.STOP, ()): ("failing", (PlainAction.FORWARD_SIGNAL,)),
    ("failing", Cue.STOP_AGAIN, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("failing", Cue.DEADLINE, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("failing", Cue.RANKS_ENDED, (StopGuard.LAUNCHER_ADDS_NOTHING,)): (
        "leaving",
        (Arm.LAUNCHER, PlainAction.KILL_LAUNCHER),
    ),
    ("failing", Cue.RANKS_ENDED, ()): ("leaving", (Arm.LAUNCHER,)),
    ("failing", Cue.ALL_ENDED, ()): ("sweeping", (PlainAction.TERMINATE_LEFTOVERS, Arm.OPTIONAL, Arm.SWEEP)),
    ("leaving", Cue.ALL_RANKS_ENDED, ()): ("leaving", (StopMark.JOB_DONE, PlainAction.KILL_LAUNCHER, Arm.LAUNCHER)),
    ("leaving", Cue.DEADLINE, ()): ("stopping launcher", (PlainAction.TERMINATE_LAUNCHER, Arm.LAUNCHER)),
    ("leaving", Cue.STOP_AGAIN, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("leaving", Cue.ALL_ENDED, ()): ("sweeping", (PlainAction.TERMINATE_LEFTOVERS, Arm.OPTIONAL, Arm.SWEEP)),
    ("stopping launcher", Cue.DEADLINE, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("stopping launcher", Cue.STOP_AGAIN, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("stopping launcher", Cue.ALL_ENDED, ()): ("sweeping", (PlainAction.TERMINATE_LEFTOVERS, Arm.OPTIONAL, Arm.SWEEP)),
    ("sweeping", Cue.NOTHING_LEFT, ()): ("draining", (PlainAction.BEGIN_DRAIN, Arm.DRAIN)),
    ("sweeping", Cue.DEADLINE, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("sweeping", Cue.STOP_AGAIN, ()): ("killing", (PlainAction.KILL_ALL, Arm.KILL)),
    ("killing", Cue.NOTHING_LEFT, ()): ("draining", (PlainAction.BEGIN_DRAIN, Arm.DRAIN)),
    ("killing", Cue.DEADLINE, ()): ("draining", (PlainAction.REPORT_SURVIVORS, PlainAction.BEGIN_DRAIN, Arm.DRAIN)),
    ("draining", Cue.DRAINED, ()): ("done", ()),
    ("draining", Cue.DEADLINE, ()): ("done", ()),
    ("draining", Cue.STOP_AGAIN, ()): ("done", ()),
}


def answer(state: State, cue: Cue, holds: Callable[[StopGuard], bool]) -> tuple[State, tuple[Answer, ...]]:
    """Return the next state and the answers of the first row for *state* and *cue* whose guards all hold.

    A cue for which there is no row changes nothing.
    """
    for (row_state, row_cue, guards), following in TABLE.items():
        if row_state == state and row_cue is cue and all(holds(guard) for guard in guards):
            return following
    return state, ()
