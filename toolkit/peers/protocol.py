"""Pure: the protocol between the hosts of a job, carried out by leader.py and follower.py: its actions and its
timeouts.

The course: every host joins and says Ready; the leader says Go. The first bad news from anywhere (a rank that failed,
a host that is gone) goes to all as Failing: they stop their ranks and answer with Evidence, what had failed on their
side by then. With all evidence the leader names the cause and sends the Verdict; nobody waits for another host's slow
end. A job that ends well has its Verdict when every host has ended. A host that has taken the Verdict says Bye.

Where restarts are allowed and the cause may be worth one, the leader waits until every host has ended, and says
NextAttempt in place of the Verdict: all is as at the start, but for those who vanished, and a stop, which are for good.
A host says which attempt it is in before it says anything of it, so that what is late, or said again over a new
connection, is never taken for news of another attempt.

Nothing here knows sockets or clocks (seconds and nanoseconds of this host's monotonic clock are arguments; the link
moves the times in messages from one host's clock to the other's): tests replay histories of two to fifty hosts.
"""

import msgspec

from toolkit.job.events import Heard
from toolkit.peers.messages import Message
from toolkit.records import Record

TELL_EVERY_S = 10.0
# A connection that broke is made again within milliseconds where the other end lives.
RECONNECT_S = 1.0
# How long evidence is waited for: every host answers within a heartbeat interval, unless it is busy.
EVIDENCE_S = 1.5
# How long a rank's end with 0, which the others lost, must have been all that explains their failures.
EARLY_S = 0.5
# After a hang the evidence is the ranks' stacks, which take 2 s to be written.
HANG_EVIDENCE_S = 4.0
# A host whose key differs is refused once a second. After so long it gives up, and then the leader gives it up: before,
# either may have been of an earlier job at the same address, about to be replaced.
REFUSED_S = 5.0
CLAIM_S = 8.0
LEAST_CLAIMS = 3
# How long hosts may take to say at which step they could stop.
AGREE_S = 0.5
# After the Verdict: how long a host that is there may take to say Bye, and how long one that has not come yet is
# waited for after a failure, so that it learns of it and does not wait for the whole of TOOLKIT_JOIN_S.
FAREWELL_S = 2.0
LINGER_S = 30.0
# Beyond the grace: until a stopped host has killed and swept its processes and reported its end.
STOPPED_S = 10.0
# Beyond the grace: until a host that failed has killed, swept and drained its console, and could start again.
RESTART_S = 60.0
# When a broken connection is noticed, its host may have died this much earlier, and another's ranks by it.
BREAK_NS = 200_000_000
# The most heartbeats a second that the leader takes from all followers together: at some 25 us each a tenth of a core.
HEARTBEATS_PER_S = 4000
MIN_HEARTBEAT_S = 0.05


class Send(Record, frozen=True, kw_only=True):
    """Send *message* to those of these hosts that are connected."""

    hosts: tuple[str, ...]
    message: Message


class LogLine(Record, frozen=True, kw_only=True):
    """Say *text* in the log."""

    text: str
    warns: bool = False


class HostStepTimes(Record, frozen=True, kw_only=True):
    """*host* tells the leader (rank, step, seconds) of steps of its ranks."""

    host: str
    times: tuple[tuple[int, int, float], ...]


Action = Send | LogLine | HostStepTimes | Heard


class Timeouts(Record, frozen=True, kw_only=True):
    """How long things may take, seconds. `finish_timeout_s`: for the other hosts once the first has succeeded (0: no
    limit)."""

    heartbeat_s: float
    heartbeat_timeout_s: float
    join_s: float
    finish_timeout_s: float
    grace_s: float

    def among(self, hosts: int) -> "Timeouts":
        """Return these times for a job of so many hosts: heartbeats no more often than the leader can take, and three
        of them within the heartbeat timeout."""
        heartbeat_s = max(
            min(self.heartbeat_s, self.heartbeat_timeout_s / 3), hosts / HEARTBEATS_PER_S, MIN_HEARTBEAT_S
        )
        return msgspec.structs.replace(
            self, heartbeat_s=heartbeat_s, heartbeat_timeout_s=max(self.heartbeat_timeout_s, 3 * heartbeat_s)
        )
