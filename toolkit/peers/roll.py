"""Pure: the words of the roll call, which leader.py and follower.py hold: what is to be done, and how long things take.

The course: every host joins and says Ready; the leader says Go. The first bad news from anywhere (a rank that failed,
a host that is gone) goes to all as Failing: they stop their ranks and answer with Evidence, what had failed on their
side by then. With all evidence the leader names the cause and sends the Verdict; nobody waits for another host's slow
end. A job that ends well has its Verdict when every host has ended. A host that has taken the Verdict says Bye.

Where restarts are allowed and the cause may be worth one, the leader waits until every host has ended, and says Again
in place of the Verdict: all is as at the start, but for those who vanished, and a stop, which are for good. A host says
in which round it is before it says anything of it, so that what is late, or said again over a new connection, is never
taken for news of another round.

Nothing here knows sockets or clocks (seconds and nanoseconds of this host's monotonic clock are arguments; the link
moves the times in messages from one host's clock to the other's): tests replay histories of two to fifty hosts.
"""

import msgspec

from toolkit.job.outcome import WAIT_FOR_ALL, EarlyExit
from toolkit.job.restart import Restart
from toolkit.peers.messages import Message, Report
from toolkit.records import Record

TELL_EVERY_S = 10.0
# A connection that broke is made again within milliseconds where the other end lives.
RECONNECT_S = 1.0
# How long evidence is waited for: every host answers within a beat, unless it is busy.
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
# Beyond the grace: until a stopped host's own walk has killed, swept and reported.
STOPPED_S = 10.0
# Beyond the grace: until a host that failed has killed, swept and drained its console, and could start again.
AGAIN_S = 60.0
# When a broken connection is noticed, its host may have died this much earlier, and another's ranks by it.
BREAK_NS = 200_000_000
# What the leader takes of all followers' beats together, a second: at some 25 us each a tenth of a core.
BEATS_PER_S = 4000
LEAST_BEAT_S = 0.05
# What a Verdict may hold of cause and of traceback, for all hosts together: at 10,000 hosts 1,600 characters each.
FAN_OUT = 1 << 24
LEAST_TEXT = 1024
# Of hosts that wait for something, how many are told of.
MOST = 3
# What first news may hold of each text.
FIRST_NEWS = {"cause": 400, "ended": 100, "advice": 80, "same": 0, "process": 80, "kind": 80}
VANISHED = 75
MISCONFIGURED = 78
HUNG = 124
HANG = "Hang"


class Send(Record, frozen=True, kw_only=True):
    """Send *message* to those of these hosts that are connected."""

    hosts: tuple[str, ...]
    message: Message


class Say(Record, frozen=True, kw_only=True):
    """Say *text* in the log."""

    text: str
    warns: bool = False


class Start(Record, frozen=True, kw_only=True):
    """The main phase may start."""


class StopHere(Record, frozen=True, kw_only=True):
    """Stop as if *signal* had come here; it came to *host*."""

    host: str
    signal: int


class StopAt(Record, frozen=True, kw_only=True):
    """Every rank of the job stops at *step*."""

    step: int


class FailHere(Record, frozen=True, kw_only=True):
    """Stop the ranks here: *text* says why. `report` is the worst known."""

    text: str
    report: Report


class Repeat(Record, frozen=True, kw_only=True):
    """The ranks here are started again, with those of all hosts."""

    restart: Restart
    used: int
    allowed: int


class Timed(Record, frozen=True, kw_only=True):
    """*host* tells the leader (rank, step, seconds) of steps of its ranks."""

    host: str
    times: tuple[tuple[int, int, float], ...]


class LaunchHere(Record, frozen=True, kw_only=True):
    """Run *command*, MPI's daemon, here."""

    command: str


class Landed(Record, frozen=True, kw_only=True):
    """The daemon on *host* has ended with *code*."""

    host: str
    code: int


class StalledHere(Record, frozen=True, kw_only=True):
    """No rank of the job has moved for so long: have the stacks of those here written. They go on."""

    seconds: float


class OverHere(Record, frozen=True, kw_only=True):
    """The leader's main process has ended; nothing will be launched any more."""


class AllRested(Record, frozen=True, kw_only=True):
    """Every rank of every host has ended."""


class Settled(Record, frozen=True, kw_only=True):
    """The job's end is known: *report*."""

    report: Report


Action = (
    Send
    | Say
    | Start
    | StopHere
    | StopAt
    | FailHere
    | Settled
    | Repeat
    | Timed
    | LaunchHere
    | Landed
    | StalledHere
    | OverHere
    | AllRested
)


class Times(Record, frozen=True, kw_only=True):
    """How long things may take, seconds. `end_s`: from the first host that ended well to the last (0: for ever)."""

    beat_s: float
    patience_s: float
    join_s: float
    end_s: float
    grace_s: float

    def among(self, hosts: int) -> "Times":
        """Return these times as they hold in a job of so many hosts: beats that the leader can take, three of them
        within the patience."""
        beat_s = max(min(self.beat_s, self.patience_s / 3), hosts / BEATS_PER_S, LEAST_BEAT_S)
        return msgspec.structs.replace(self, beat_s=beat_s, patience_s=max(self.patience_s, 3 * beat_s))


def vanished(host: str, how: str, at_ns: int) -> Report:
    """Return the report of a host that is gone, made by one that lives."""
    return Report(
        host=host,
        exit_code=VANISHED,
        primary=True,
        failed_ns=at_ns,
        blame="platform",
        kind="PlatformError",
        cause=f"host {host} vanished: {how}",
    )


def broken(seen: str = "") -> str:
    """Return what a connection that broke means; *seen*: what took connections in the leader's place since."""
    why = seen or "its train was killed, or its machine is gone"
    return f"its connection broke and was not made again: {why}"


def silent(seconds: float) -> str:
    return f"nothing was heard of it for {seconds:.1f} s: it is stopped, overloaded or cut off"


def in_vain(missing: list[str], join_s: float, at_ns: int, *, came: bool = False, waits: dict[str, str]) -> Report:
    """Return the report of a job for which *missing* hosts did not come in time; or *came*, and are not ready. *waits*:
    by host that is not ready, what it waits for itself."""
    known = [host for host in missing if host in waits][:MOST]
    if came and known:
        cause = "; ".join(f"host {host} waited {join_s:g} s in vain for {waits[host]}" for host in known)
        cause += " (TOOLKIT_JOIN_S)"
    else:
        cause = f"waited {join_s:g} s in vain for {named(missing)} (TOOLKIT_JOIN_S)"
        cause += "".join(f"; host {host} waited for {needs}" for host, needs in sorted(waits.items())[:MOST])
    return Report(
        host=known[0] if came and known else missing[0],
        exit_code=VANISHED,
        primary=True,
        failed_ns=at_ns,
        blame="platform",
        kind="PlatformError",
        cause=cause,
    )


def no_leader(leader: str, join_s: float, at_ns: int, hint: str) -> Report:
    """Return the report of a follower that has not met its leader in time."""
    report = in_vain([leader], join_s, at_ns, waits={})
    cause = f"waited {join_s:g} s in vain for host {leader}, the leader (TOOLKIT_JOIN_S){hint}"
    return msgspec.structs.replace(report, cause=cause)


def of_what(hosts: list[str], waits: dict[str, str]) -> str:
    """Return what the first of *hosts* that has told waits for, in brackets, "" if none has."""
    known = [host for host in hosts if host in waits]
    if not known:
        return ""
    return f" ({'it' if len(hosts) == 1 else f'host {known[0]}'} waits for {waits[known[0]]})"


def other_key(host: str, leader: str = "") -> Report:
    """Return the report of *host*, which the leader refuses; made by *host* itself where *leader* is named."""
    who = f"host {leader}, the leader, refuses this host, {host}" if leader else f"host {host} was refused"
    return Report(
        host=host,
        exit_code=MISCONFIGURED,
        primary=True,
        blame="user",
        kind="ClientError",
        cause=f"{who}: its TOOLKIT_JOB_SECRET, or the job's documents, differ from the leader's",
        advice="Give every host the same secret, job name, hosts and hyperparameters",
    )


def shared_address(me: str, one: str, other: str, address: str) -> Report:
    """Return the report of a job of which two hosts have one *address*, seen by *me*."""
    return Report(
        host=me,
        exit_code=MISCONFIGURED,
        primary=True,
        blame="user",
        kind="ClientError",
        cause=f"hosts {one} and {other} both have the address {address}, seen from host {me}, but are two machines or"
        " containers: one of the two names leads to the other host",
        advice="Correct their entries in the name service or in /etc/hosts, or give every host all addresses:"
        f" TOOLKIT_HOST_ADDRESSES={one}=ADDRESS,{other}=ADDRESS",
    )


def twins(found: dict[str, frozenset[str]], spaces: dict[str, str]) -> tuple[str, str, str] | None:
    """Return (host, other host, address) of two that have an address in common, though they are not in one network
    namespace; None if there are none. *spaces*: by host that has told."""
    owners: dict[str, str] = {}
    for host in found:
        for address in sorted(found[host]):
            other = owners.setdefault(address, host)
            if other != host and not (spaces.get(host) and spaces.get(host) == spaces.get(other)):
                return other, host, address
    return None


def worse(one: Report | None, other: Report | None) -> Report | None:
    """Return which of two is the cause: one of its own before an echo, then the earlier (0, unknown, is last)."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda report: (not report.primary, not report.failed_ns, report.failed_ns))


def blamed(worst: Report, early: EarlyExit | None) -> Report:
    """Return *worst*, or where its rank only lost another one, and one had ended with 0 before, the report of that."""
    if worst.primary or not worst.lost or early is None or not early.explains(worst.failed_ns):
        return worst
    return Report(
        host=early.host,
        exit_code=worst.exit_code,
        primary=True,
        failed_ns=early.at_ns,
        blame=worst.blame,
        kind=worst.kind,
        cause=early.cause(worst.failed_ns),
        process=early.process,
        pid=early.pid,
        rank=early.rank,
        local_rank=early.local_rank,
        ended="ended with code 0",
        advice=WAIT_FOR_ALL,
        lost=True,
    )


def with_abort(report: Report, seen: Report | None) -> Report:
    """Return *report*, of a rank that MPI aborted, with what mpirun said of it on another host, where *seen* tells so:
    Open MPI says on the rank's own stderr neither that it called MPI_Abort nor which call of MPI failed."""
    if seen is None or report.rank is None or report.rank != seen.said_of or seen.host == report.host:
        return report
    if report.traceback or report.lost or not report.ended.startswith("ended with code"):
        return report
    if "without a word; it called" in report.cause:
        return report  # sys.exit, which mpi4py makes an MPI_Abort of.
    silent = report.cause.endswith("without a word")
    cause = seen.said if silent else f"{seen.said}\nit last said: {report.cause}"
    return msgspec.structs.replace(report, cause=cause, said=seen.said, said_of=seen.said_of)


def news(report: Report) -> str:
    """Return in one line who failed. What a rank failed of is said once, at the end of the host's log."""
    if not report.process:
        return f"host {report.host} failed: {report.cause.splitlines()[0] if report.cause else report.ended}"
    who = f"{report.process} of host {report.host}"
    if report.lost:
        return (
            f"{who} {'ended while others trained' if report.blames_an_early_exit else 'lost another rank of the job'}"
        )
    return f"{who} failed: {report.ended}" if report.ended else f"{who} failed"


def named(hosts: list[str]) -> str:
    """Return "host algo-2" or "hosts algo-2, algo-3 and 5 more"."""
    shown = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    return f"host {shown}" if len(hosts) == 1 else f"hosts {shown}"


def light(report: Report) -> Report:
    """Return *report* as first news, which must be quick, and pass where larger messages are lost: about 1 KB."""
    texts = {name: getattr(report, name)[:most] for name, most in FIRST_NEWS.items()}
    return msgspec.structs.replace(report, traceback="", stuck=(), **texts)


def is_of_one_end(one: Report, other: Report) -> bool:
    """True if both tell of the end of the same process."""
    return (one.host, one.process, one.pid) == (other.host, other.process, other.pid)


def shared(report: Report, hosts: int) -> Report:
    """Return *report* as *hosts* hosts can be told: of a traceback the end, of a cause the beginning."""
    most = max(FAN_OUT // hosts, LEAST_TEXT)
    if len(report.cause) <= most and len(report.traceback) <= most:
        return report
    return msgspec.structs.replace(report, cause=report.cause[:most], traceback=report.traceback[-most:])
