"""Pure: the protocol between the hosts of a job: its actions and its timeouts. leader.py and follower.py implement it.

Every host joins and sends Ready; the leader sends Go. The leader sends the first failure on any host (a rank that
failed, a host that vanished) to all hosts as Failing: they stop their ranks and answer with OwnFailure: what
had failed on them by then. When all have answered, the leader selects the cause and sends the Verdict; it does not
wait for hosts that end slowly. If nothing fails, the Verdict comes when every host has ended. A host that has received
the Verdict sends Bye.

If restarts are allowed and the cause may be worth one, the leader waits until every host has ended, and sends
NextAttempt in place of the Verdict. The state is then that of the start, except for hosts that vanished and for a stop,
which are final. A host sends the number of its attempt before any message of that attempt. So a late message, or one
that is sent again over a new connection, never counts for another attempt.

There are no sockets or clocks here. Times are arguments, in seconds and nanoseconds of this host's monotonic clock, and
the link converts the times in messages between the hosts' clocks. So tests replay histories of two to fifty hosts.
"""

import msgspec

from toolkit.job.events import Heard
from toolkit.job.rank_work import RankWork
from toolkit.records import Record
from toolkit.train.peers.messages import Message, TraceRanks

TELL_EVERY_S = 10.0
# If the other end lives, a lost connection is re-established within milliseconds.
RECONNECT_S = 1.0
# If thousands lose theirs at once, the leader needs time for all: on a busy machine for so many in a second.
RECONNECTS_PER_S = 1000
# How long the leader waits for the answers: every host answers within a heartbeat interval, unless it is busy.
ANSWER_S = 1.5
# How long the leader waits for another cause when failures are explained only by a rank that had ended with 0.
EARLY_S = 0.5
# After a hang the answer holds the ranks' stacks, which take 2 s to be written.
HANG_ANSWER_S = 4.0
# The leader refuses a host with a different key once a second. After REFUSED_S the host gives up, after CLAIM_S the
# leader does. Before, either may belong to an earlier job at the same address, which is about to be replaced.
REFUSED_S = 5.0
CLAIM_S = 8.0
LEAST_CLAIMS = 3
# How long hosts may take to report the step at which they can stop.
AGREE_S = 0.5
# After the Verdict: the least time that a host may take to send Bye (longer while it would count as alive, but not
# beyond a stop's grace); and, after a failure or a stop (not beyond its grace), how long a host waits for one that it
# has not met, so that this one does not wait for the whole of TOOLKIT_JOIN_S.
FAREWELL_S = 2.0
LINGER_S = 30.0
# The time after the grace in which a stopped host kills its remaining processes and reports its end.
STOPPED_S = 10.0
# The time after the grace in which a failed host kills its remaining processes, writes its output and can start again.
RESTART_S = 60.0
# A host may have died this long before its connection is seen to be lost, and may have caused other ranks to fail.
BREAK_NS = 200_000_000
# The most heartbeats per second from all followers together: at about 25 us each, a tenth of a core on the leader.
HEARTBEATS_PER_S = 4000
MIN_HEARTBEAT_S = 0.05


class Send(Record, frozen=True, kw_only=True):
    """Send *message* to those of these hosts that are connected."""

    hosts: tuple[str, ...]
    message: Message


class LogLine(Record, frozen=True, kw_only=True):
    """Log *text*."""

    text: str
    warns: bool = False


class HostStepTimes(Record, frozen=True, kw_only=True):
    """*host* has sent the leader (rank, step, seconds) for steps of its ranks."""

    host: str
    times: tuple[tuple[int, int, float], ...]


class RanksWork(Record, frozen=True, kw_only=True):
    """*host* has sent the leader the own work of its ranks."""

    host: str
    ranks: tuple[RankWork, ...]


Action = Send | LogLine | HostStepTimes | RanksWork | TraceRanks | Heard


class Timeouts(Record, frozen=True, kw_only=True):
    """The timeouts of a job, in seconds."""

    heartbeat_s: float
    """From one heartbeat to the next."""
    heartbeat_timeout_s: float
    """A host that is silent for so long has vanished."""
    join_s: float
    """By then every host must be ready to start."""
    finish_timeout_s: float
    """For the other hosts once the first has succeeded (0: no limit)."""
    grace_s: float
    """From a stop signal to SIGKILL."""

    def among(self, hosts: int) -> "Timeouts":
        """Return these timeouts for a job of so many hosts: heartbeats no more often than the leader can handle, and
        three of them within the heartbeat timeout."""
        heartbeat_s = max(
            min(self.heartbeat_s, self.heartbeat_timeout_s / 3), hosts / HEARTBEATS_PER_S, MIN_HEARTBEAT_S
        )
        return msgspec.structs.replace(
            self, heartbeat_s=heartbeat_s, heartbeat_timeout_s=max(self.heartbeat_timeout_s, 3 * heartbeat_s)
        )
