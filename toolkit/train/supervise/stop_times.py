"""Pure: the deadlines for ending processes, in seconds, and the timers that run towards them."""

import math
from typing import Literal

from toolkit.train.supervise.stop_facts import Policy
from toolkit.train.supervise.stop_table import Arm

# Ranks that hang rarely react to a signal: a Python handler does not run while the main thread is in a collective.
HUNG_GRACE_S = 5.0
# Stacks are read 2 s after the request (stacks.WITHIN_S). If StacksWritten does not come, ranks are stopped after this.
DUMP_S = 5.0
LAUNCHER_S = 1.0
# During a stop a launcher may have more to do, or wait for other hosts, whose ranks are still saving.
STOPPED_LAUNCHER_S = 5.0
# When a rank calls MPI_Abort, its launcher ends all ranks before the rank itself ends. If `train` signalled that rank
# first, its exit code would be lost. A launcher waits longer than this before it kills.
ABORT_S = 0.25
SWEEP_S = 1.0
KILL_S = 5.0
# Where services serve all hosts: how long other hosts' scripts may run on after the leader's has ended well. A worker
# needs time for its last steps; a script that only serves would run forever.
LEADER_DONE_S = 10.0
# The interval at which the machine looks for remaining processes, and for checkpoints that are still being written.
LOOK_S = 0.05


def within_s(arm: Arm, policy: Policy) -> float:
    """Return the seconds until the time that *arm* sets; Arm.RANKS_END sets one that was computed before."""
    return {
        Arm.GRACE: policy.grace_s,
        Arm.FAILURE: min(policy.grace_s, policy.failure_s),
        Arm.DUMP: DUMP_S,
        Arm.HUNG: min(policy.grace_s, HUNG_GRACE_S),
        Arm.LAUNCHER: LAUNCHER_S,
        Arm.STOPPED_LAUNCHER: STOPPED_LAUNCHER_S,
        Arm.SWEEP: SWEEP_S,
        Arm.OPTIONAL: SWEEP_S,
        Arm.KILL: KILL_S,
        Arm.DRAIN: 0.0,
    }[arm]


# deadline: of the state that the table arms. abort: of a launcher that handles MPI_Abort. optional: of processes that
# are killed before the others. unfinished rank: others wait for one that ended with 0 without MPI_Finalize. leader
# done: of ranks that live on after the launcher on the leader's host has ended well.
Timer = Literal["deadline", "abort", "optional", "unfinished rank", "leader done"]


class Timers:
    """The timers that run. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._due_s: dict[Timer, float] = {}

    def set(self, timer: Timer, due_s: float) -> None:
        """Start *timer*, or move its time."""
        self._due_s[timer] = due_s

    def rings(self, timer: Timer, now_s: float) -> bool:
        """Return True, once, if *timer* is due."""
        due = now_s >= self._due_s.get(timer, math.inf)
        if due:
            del self._due_s[timer]
        return due

    def first_s(self) -> float:
        """Return when the first timer is due, infinity if none runs."""
        return min(self._due_s.values(), default=math.inf)
