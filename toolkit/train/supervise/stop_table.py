"""Pure: how a host's processes are ended, as one table (state, cue) -> (state, actions).

Terms: the *launcher* is the phase's main process; the *ranks* are the processes that do the work. A script without a
launcher is both. A process has "ended" when it is reaped; end-of-file on its pipes does not count. A *cue* is what an
event (job/events.py) means for the table; stop_machine.py derives cues from events.

The required order: the script gets the signal first, and alone, so that its own children (DataLoader workers) live
while it saves; then the processes that it left behind; then the launcher. SIGKILL comes only at the deadline, or after
a second stop signal.
"""

from enum import Enum
from typing import Literal

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
    """What an event means for the table."""

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


class Arm(Enum):
    """A deadline that the machine sets."""

    GRACE = "of the script's grace"
    FAILURE = "of the grace of ranks whose sibling failed"
    DUMP = "for the stacks to be written"
    HUNG = "of the grace of ranks that hang"
    LAUNCHER = "of the launcher's own time to end"
    REST = "of the launcher: the rest of the ranks' grace, where it ends with every host's"
    SWEEP = "of what a finished script left behind"
    KILL = "of what even SIGKILL may take (a process in the kernel)"


class Action(Enum):
    """What the supervisor does (effects.py)."""

    FORWARD = "the signal that came goes to every rank (before there is one: to the launcher)"
    STOP_RANKS = "SIGTERM to every living rank"
    STOP_HERE = "SIGTERM to every living rank, before there is one: to the launcher"
    TELL_LAUNCHER = "SIGTERM to the launcher"
    SWEEP = "SIGTERM to every descendant left"
    KILL = "SIGKILL to every descendant left"
    KILL_OPTIONAL = "SIGKILL to optional services: a script that left processes behind keeps its grace, they do not"
    KILL_LAUNCHER = "SIGKILL to the launcher: its ranks have ended, and its own report of that adds nothing"
    END_LAUNCHER = "SIGKILL to the launcher, too, unless it ended its ranks first and has to report why"
    LOOK = "ended processes are reaped; in the state killing, new ones are killed"
    DUMP = "every rank's stacks are written"
    BEGIN_DRAIN = "the time for the last output begins"
    HURRY = "from now on ranks wait less long for a stalled console"
    WAIT_UNSERVED = "a process waits until no host uses this one's services"
    AGREE_STEP = "every rank gets the step at which all stop"
    ANSWER_SHIM = "the shim of the rank that ended ends in the same way"
    HOLD_SHIM = "the shim of the rank that ended waits, so that the launcher does not hear of it"
    RELEASE_SHIMS = "the shims that wait end; the other hosts hear of the main process's end where MPI needs that"
    SERVE_DAEMONS = "what MPI's agents and daemons wait for is given to them"
    DISMISS_DAEMONS = "MPI's agents and daemons hear that nothing will be launched any more"
    TELL_STOP = "the other hosts hear of the stop"
    TELL_FAILING = "the other hosts hear what failed here"
    TELL_OWN_FAILURE = "the other hosts hear what had failed here when another one failed"
    TELL_LEFT = "the other hosts hear of a rank that ended without MPI_Finalize"
    TELL_RANK_DONE = "all hosts hear of the first rank that ended with 0, since others may wait for all ranks"
    SHOW_RANK_DONE = "the ranks here can see it"
    TELL_RANKS_ENDED = "the other hosts hear that no rank of this one lives"
    TELL_LEADER_DONE = "the other hosts hear that the leader's main process has ended"
    SAY_DONE = "the other hosts hear that all ranks of this one have ended well"
    SAY_NO_RANK = "the log says that a stop signal found no rank here"
    SAY_SAVING = "the log says which ranks write a checkpoint and are waited for"
    SAY_RANK_FAILED = "the log says which rank failed"
    SAY_SERVICE_FAILED = "the log says which service failed"
    SAY_LEFT = "the log says which rank ended without MPI_Finalize"
    SAY_LEFT_WAIT = "the log says that ranks wait for it, and are stopped"
    SAY_LEADER_DONE = "the log says that the leader's script ended, and this host's is stopped"
    SAY_HANG = "the log says that no rank moves"
    NAME_LEFT = "what SIGKILL has not ended is named, and left alone"


TABLE: dict[tuple[State, Cue], tuple[State, tuple[Action | Arm, ...]]] = {
    ("running", Cue.STOP): ("stopping", (Action.FORWARD, Arm.GRACE)),
    ("running", Cue.RANK_FAILED): ("failing", (Action.STOP_RANKS, Arm.FAILURE)),
    ("running", Cue.LAUNCHER_STOPS): ("failing", (Action.STOP_RANKS, Arm.FAILURE)),
    ("running", Cue.PEER_FAILED): ("failing", (Arm.FAILURE, Action.STOP_HERE)),
    ("running", Cue.RULED): ("failing", (Arm.FAILURE, Action.STOP_HERE)),
    ("running", Cue.SERVICE_FAILED): ("failing", (Arm.FAILURE, Action.STOP_HERE)),
    ("running", Cue.LEADER_DONE): ("failing", (Arm.FAILURE, Action.STOP_HERE)),
    ("running", Cue.HUNG): ("dumping", (Action.DUMP, Arm.DUMP)),
    ("dumping", Cue.DUMPED): ("failing", (Arm.HUNG, Action.STOP_HERE)),
    ("dumping", Cue.DEADLINE): ("failing", (Arm.HUNG, Action.STOP_HERE)),
    ("dumping", Cue.STOP): ("stopping", (Action.FORWARD, Arm.GRACE)),
    ("dumping", Cue.STOP_AGAIN): ("killing", (Action.KILL, Arm.KILL)),
    ("dumping", Cue.RANK_FAILED): ("failing", (Action.STOP_RANKS, Arm.HUNG)),
    ("dumping", Cue.LAUNCHER_STOPS): ("failing", (Action.STOP_RANKS, Arm.HUNG)),
    ("dumping", Cue.ALL_ENDED): ("sweeping", (Action.SWEEP, Arm.SWEEP)),
    ("running", Cue.ALL_ENDED): ("sweeping", (Action.SWEEP, Arm.SWEEP)),
    # A launcher may wait for other hosts for as long as they train.
    ("running", Cue.RANKS_ENDED): ("running", (Action.SAY_DONE,)),
    ("running", Cue.ALL_RANKS_ENDED): ("leaving", (Action.KILL_LAUNCHER, Arm.LAUNCHER)),
    ("stopping", Cue.STOP_AGAIN): ("killing", (Action.KILL, Arm.KILL)),
    ("stopping", Cue.DEADLINE): ("killing", (Action.KILL, Arm.KILL)),
    ("stopping", Cue.RANKS_ENDED): ("leaving", (Arm.REST,)),
    # If the script was a shell that died of the signal, the processes that it left may be the real program: they keep
    # the rest of the grace.
    ("stopping", Cue.ALL_ENDED): ("sweeping", (Action.SWEEP,)),
    ("failing", Cue.STOP): ("failing", (Action.FORWARD,)),
    ("failing", Cue.STOP_AGAIN): ("killing", (Action.KILL, Arm.KILL)),
    ("failing", Cue.DEADLINE): ("killing", (Action.KILL, Arm.KILL)),
    ("failing", Cue.RANKS_ENDED): ("leaving", (Arm.LAUNCHER, Action.END_LAUNCHER)),
    ("failing", Cue.ALL_ENDED): ("sweeping", (Action.SWEEP, Arm.SWEEP)),
    ("leaving", Cue.ALL_RANKS_ENDED): ("leaving", (Action.KILL_LAUNCHER, Arm.LAUNCHER)),
    ("leaving", Cue.DEADLINE): ("stopping launcher", (Action.TELL_LAUNCHER, Arm.LAUNCHER)),
    ("leaving", Cue.STOP_AGAIN): ("killing", (Action.KILL, Arm.KILL)),
    ("leaving", Cue.ALL_ENDED): ("sweeping", (Action.SWEEP, Arm.SWEEP)),
    ("stopping launcher", Cue.DEADLINE): ("killing", (Action.KILL, Arm.KILL)),
    ("stopping launcher", Cue.STOP_AGAIN): ("killing", (Action.KILL, Arm.KILL)),
    ("stopping launcher", Cue.ALL_ENDED): ("sweeping", (Action.SWEEP, Arm.SWEEP)),
    ("sweeping", Cue.NOTHING_LEFT): ("draining", (Action.BEGIN_DRAIN,)),
    ("sweeping", Cue.DEADLINE): ("killing", (Action.KILL, Arm.KILL)),
    ("sweeping", Cue.STOP_AGAIN): ("killing", (Action.KILL, Arm.KILL)),
    ("killing", Cue.NOTHING_LEFT): ("draining", (Action.BEGIN_DRAIN,)),
    ("killing", Cue.DEADLINE): ("draining", (Action.NAME_LEFT, Action.BEGIN_DRAIN)),
    ("draining", Cue.DRAINED): ("done", ()),
    ("draining", Cue.DEADLINE): ("done", ()),
    ("draining", Cue.STOP_AGAIN): ("done", ()),
}


def answer(state: State, cue: Cue) -> tuple[State, tuple[Action | Arm, ...]]:
    """Return the next state, actions and deadlines for *cue*; a pair that is not in the table changes nothing."""
    return TABLE.get((state, cue), (state, ()))
