"""Pure: how a host's processes are brought to their end, as one table (phase, event) -> (phase, actions).

Words: the *launcher* is the plan's main process; the *ranks* are the processes that do the work. Where a script runs
alone, it is both. "Ended" is seen by reaping, never by end-of-file on a pipe.

The order that everything here serves: a script gets the signal first and alone, so that its own children (DataLoader
workers) live while it saves; then what it left behind; then the launcher; SIGKILL only at the deadline or when asked
twice.
"""

from enum import Enum
from typing import Literal

Phase = Literal[
    "running", "stopping", "dumping", "failing", "leaving", "told", "sweeping", "killing", "draining", "done"
]


class Event(Enum):
    """What can happen to a host's processes."""

    STOP = "a stop signal came"
    STOP_AGAIN = "another stop signal came"
    RANK_FAILED = "a rank ended badly while others live"
    LAUNCHER_STOPS = "the launcher asks its ranks to end, or ended before them"
    PEER_FAILED = "another host failed"
    HUNG = "nothing has moved on any host for too long"
    RULED = "a log rule asks for the job's end"
    SERVICE_FAILED = "a service that the ranks need has ended badly"
    LEADER_DONE = "the leader's script has ended well, and this host's goes on for too long"
    RANKS_ENDED = "the last rank ended, the launcher lives"
    ALL_RESTED = "no rank of any host lives: the job stops, or all have ended well"
    ALL_ENDED = "launcher and ranks have ended"
    QUIET = "no descendant lives"
    DRAINED = "every pipe is at its end"
    DEADLINE = "the time set by the last Arm is over"


class Action(Enum):
    """What the loop then does."""

    FORWARD = "the signal that came goes to every rank (before there is one: to the launcher)"
    STOP_RANKS = "SIGTERM to every living rank"
    DUMP = "every rank's stacks are written down"
    STOP_HERE = "SIGTERM to every living rank, before there is one: to the launcher"
    TELL_LAUNCHER = "SIGTERM to the launcher"
    SWEEP = "SIGTERM to every descendant left"
    KILL = "SIGKILL to every descendant left"
    ARM_GRACE = "the script's grace starts"
    ARM_FAILURE = "the grace of ranks whose sibling failed starts"
    ARM_DUMP = "the time for the stacks to be written starts"
    ARM_HUNG = "the grace of ranks that hang starts"
    ARM_LAUNCHER = "the launcher's own time to end starts"
    SAY_DONE = "the other hosts hear that all ranks of this one have ended well"
    REST = "the launcher's own time starts: the rest of the ranks' grace, where it ends with every host's"
    KILL_LAUNCHER = "SIGKILL to the launcher: its ranks have ended, and what it would say of that is news to nobody"
    END_LAUNCHER = "SIGKILL to the launcher, too, unless it was the first to end its ranks and has to say why"
    NAME_LEFT = "what SIGKILL has not ended is named, and left alone"
    ARM_SWEEP = "the time of what a finished script left behind starts"
    ARM_KILL = "the time that even SIGKILL may take (a process in the kernel) starts"
    ARM_DRAIN = "the time for the last output starts"


TABLE: dict[tuple[Phase, Event], tuple[Phase, tuple[Action, ...]]] = {
    ("running", Event.STOP): ("stopping", (Action.FORWARD, Action.ARM_GRACE)),
    ("running", Event.RANK_FAILED): ("failing", (Action.STOP_RANKS, Action.ARM_FAILURE)),
    ("running", Event.LAUNCHER_STOPS): ("failing", (Action.STOP_RANKS, Action.ARM_FAILURE)),
    ("running", Event.PEER_FAILED): ("failing", (Action.ARM_FAILURE, Action.STOP_HERE)),
    ("running", Event.RULED): ("failing", (Action.ARM_FAILURE, Action.STOP_HERE)),
    ("running", Event.SERVICE_FAILED): ("failing", (Action.ARM_FAILURE, Action.STOP_HERE)),
    ("running", Event.LEADER_DONE): ("failing", (Action.ARM_FAILURE, Action.STOP_HERE)),
    ("running", Event.HUNG): ("dumping", (Action.DUMP, Action.ARM_DUMP)),
    ("dumping", Event.DEADLINE): ("failing", (Action.ARM_HUNG, Action.STOP_HERE)),
    ("dumping", Event.STOP): ("stopping", (Action.FORWARD, Action.ARM_GRACE)),
    ("dumping", Event.STOP_AGAIN): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("dumping", Event.RANK_FAILED): ("failing", (Action.STOP_RANKS, Action.ARM_HUNG)),
    ("dumping", Event.LAUNCHER_STOPS): ("failing", (Action.STOP_RANKS, Action.ARM_HUNG)),
    ("dumping", Event.ALL_ENDED): ("sweeping", (Action.SWEEP, Action.ARM_SWEEP)),
    ("running", Event.ALL_ENDED): ("sweeping", (Action.SWEEP, Action.ARM_SWEEP)),
    # A launcher may wait for other hosts as long as they train.
    ("running", Event.RANKS_ENDED): ("running", (Action.SAY_DONE,)),
    ("running", Event.ALL_RESTED): ("leaving", (Action.KILL_LAUNCHER, Action.ARM_LAUNCHER)),
    ("stopping", Event.STOP_AGAIN): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("stopping", Event.DEADLINE): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("stopping", Event.RANKS_ENDED): ("leaving", (Action.REST,)),
    # What a stopped script leaves may be the real one (a shell that died of the signal): it keeps the rest of the
    # grace.
    ("stopping", Event.ALL_ENDED): ("sweeping", (Action.SWEEP,)),
    ("failing", Event.STOP): ("failing", (Action.FORWARD,)),
    ("failing", Event.STOP_AGAIN): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("failing", Event.DEADLINE): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("failing", Event.RANKS_ENDED): ("leaving", (Action.ARM_LAUNCHER, Action.END_LAUNCHER)),
    ("failing", Event.ALL_ENDED): ("sweeping", (Action.SWEEP, Action.ARM_SWEEP)),
    ("leaving", Event.ALL_RESTED): ("leaving", (Action.KILL_LAUNCHER, Action.ARM_LAUNCHER)),
    ("leaving", Event.DEADLINE): ("told", (Action.TELL_LAUNCHER, Action.ARM_LAUNCHER)),
    ("leaving", Event.STOP_AGAIN): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("leaving", Event.ALL_ENDED): ("sweeping", (Action.SWEEP, Action.ARM_SWEEP)),
    ("told", Event.DEADLINE): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("told", Event.STOP_AGAIN): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("told", Event.ALL_ENDED): ("sweeping", (Action.SWEEP, Action.ARM_SWEEP)),
    ("sweeping", Event.QUIET): ("draining", (Action.ARM_DRAIN,)),
    ("sweeping", Event.DEADLINE): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("sweeping", Event.STOP_AGAIN): ("killing", (Action.KILL, Action.ARM_KILL)),
    ("killing", Event.QUIET): ("draining", (Action.ARM_DRAIN,)),
    ("killing", Event.DEADLINE): ("draining", (Action.NAME_LEFT, Action.ARM_DRAIN)),
    ("draining", Event.DRAINED): ("done", ()),
    ("draining", Event.DEADLINE): ("done", ()),
    ("draining", Event.STOP_AGAIN): ("done", ()),
}


def answer(phase: Phase, event: Event) -> tuple[Phase, tuple[Action, ...]]:
    """Return the phase that *event* leads to and what is to be done; what the table does not name changes nothing."""
    return TABLE.get((phase, event), (phase, ()))
