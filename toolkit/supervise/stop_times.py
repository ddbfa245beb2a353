"""How long the ends of processes may take; seconds. Pure."""

from toolkit.supervise.stop import Arm
from toolkit.supervise.stop_facts import Policy

# Ranks that hang rarely hear a signal: a Python handler does not run while the main thread is in a collective.
HUNG_GRACE_S = 5.0
# Stacks are read 2 s after they were asked for (stacks.WITHIN_S); without StacksWritten ranks are stopped this late.
DUMP_S = 5.0
LAUNCHER_S = 1.0
# A stopped launcher may have more to do, or wait for other hosts, whose ranks are still saving.
STOPPED_LAUNCHER_S = 5.0
# A rank that calls MPI_Abort has its launcher end all ranks before it ends itself. It must not be told to by us first,
# or its code would be lost; a launcher waits longer than this before it kills.
ABORT_S = 0.25
SWEEP_S = 1.0
KILL_S = 5.0
# How long other hosts' scripts may go on when the leader's has ended well, where services serve all hosts: the last
# steps of a worker; one that only serves goes on for ever.
LEADER_DONE_S = 10.0
# How often is looked for what is left, and for checkpoints that are still written.
LOOK_S = 0.05


def within_s(arm: Arm, policy: Policy) -> float:
    """Return how long the deadline *arm* leaves."""
    return {
        Arm.GRACE: policy.grace_s,
        Arm.FAILURE: min(policy.grace_s, policy.failure_s),
        Arm.DUMP: DUMP_S,
        Arm.HUNG: min(policy.grace_s, HUNG_GRACE_S),
        Arm.LAUNCHER: LAUNCHER_S,
        Arm.REST: STOPPED_LAUNCHER_S,
        Arm.SWEEP: SWEEP_S,
        Arm.KILL: KILL_S,
    }[arm]
