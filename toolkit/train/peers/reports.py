"""Pure: the reports that the link makes itself (of hosts that are gone, late or misconfigured), and the short forms of
others."""

import msgspec

from toolkit import exit_codes
from toolkit.job.cause import Cause
from toolkit.job.events import Hang, PeerFailed
from toolkit.train.peers.messages import EndReport

# What a Verdict may hold of cause and of traceback, for all hosts together: at 10,000 hosts 1,600 characters each.
FAN_OUT = 1 << 24
LEAST_TEXT = 1024
# Of hosts that wait for something, how many are told of.
MOST = 3
# What first news may hold of each text.
FIRST_NEWS = {"message": 370, "process_end": 100, "advice": 80, "fingerprint": 0, "process": 80, "kind": 80}
HANG = "Hang"


def report_vanished(host: str, how: str, at_ns: int) -> EndReport:
    """Return the report of a host that is gone, made by one that lives."""
    return EndReport(
        host=host,
        exit_code=exit_codes.TEMPORARY_FAILURE,
        cause=Cause(
            primary=True,
            failed_ns=at_ns,
            blame="platform",
            kind="PlatformError",
            message=f"host {host} vanished: {how}",
        ),
    )


def report_replaced(leader: str, at_ns: int) -> EndReport:
    """Return the report of a job whose *leader*'s process ended while it ran, and of which another answers now."""
    return report_vanished(leader, "its train ended, and another process was started in its place", at_ns)


def report_lost_while_stopping(lost: EndReport, signal: int) -> EndReport:
    """Return the report of a job in which the leader, as *lost* says, vanished after *signal* had stopped the job."""
    text = lost.cause.message.replace(" vanished: ", " vanished while the job was stopping: ", 1)
    report = with_cause(lost, primary=False, blame="", kind="Stopped", message=text)
    return msgspec.structs.replace(report, exit_code=exit_codes.of_signal(signal), stopped=True)


def describe_break(answerer: str = "") -> str:
    """Return what a connection that broke means; *answerer*: what took connections in the leader's place since."""
    reason = answerer or "its train was killed, or its machine is gone"
    return f"its connection was lost and not re-established: {reason}"


def describe_silence(seconds: float) -> str:
    return f"nothing was heard of it for {seconds:.1f} s: it is stopped, overloaded or cut off"


def report_late(
    missing: list[str], join_s: float, at_ns: int, *, came: bool = False, waits: dict[str, str]
) -> EndReport:
    """Return the report of a job for which *missing* hosts did not come in time; or *came*, and are not ready. *waits*:
    by host that is not ready, what it waits for itself."""
    waiting = [host for host in missing if host in waits][:MOST]
    if came and waiting:
        cause = "; ".join(f"host {host} waited {join_s:g} s in vain for {waits[host]}" for host in waiting)
        cause += " (TOOLKIT_JOIN_S)"
    else:
        cause = f"waited {join_s:g} s in vain for {name_hosts(missing)} (TOOLKIT_JOIN_S)"
        cause += "".join(f"; host {host} waited for {needs}" for host, needs in sorted(waits.items())[:MOST])
    return EndReport(
        host=waiting[0] if came and waiting else missing[0],
        exit_code=exit_codes.TEMPORARY_FAILURE,
        cause=Cause(primary=True, failed_ns=at_ns, blame="platform", kind="PlatformError", message=cause),
    )


def describe_two_leaders(me: str, other: str) -> str:
    """Return what it means that at host *other*, which should join *me*, a leader of this job answers, too."""
    way_out = "give every host the same list of hosts, in the same order"
    return f"host {other} leads this job, as this host, {me}, does: {way_out}"


def report_no_leader(leader: str, join_s: float, at_ns: int, hint: str) -> EndReport:
    """Return the report of a follower that has not met its leader in time."""
    report = report_late([leader], join_s, at_ns, waits={})
    cause = f"waited {join_s:g} s in vain for host {leader}, the leader (TOOLKIT_JOIN_S){hint}"
    return with_cause(report, message=cause)


def describe_needs(hosts: list[str], waits: dict[str, str]) -> str:
    """Return what the first of *hosts* that has told waits for, in brackets, "" if none has."""
    waiting = [host for host in hosts if host in waits]
    if not waiting:
        return ""
    return f" ({'it' if len(hosts) == 1 else f'host {waiting[0]}'} waits for {waits[waiting[0]]})"


def report_other_key(host: str, leader: str = "") -> EndReport:
    """Return the report of *host*, which the leader refuses; made by *host* itself where *leader* is named."""
    who = f"host {leader}, the leader, refuses this host, {host}" if leader else f"host {host} was refused"
    text = f"{who}: its TOOLKIT_JOB_SECRET, or the job's documents, differ from the leader's"
    return _report_misconfigured(host, text, "Give every host the same secret, job name, hosts and hyperparameters")


def report_unlike(host: str, leader: str, difference: str) -> EndReport:
    """Return the report of *host*, which has the job's secret, and differs from the *leader* in *difference*."""
    text = f"host {host} and host {leader}, the leader, are not of one job: {difference}"
    return _report_misconfigured(host, text, "Give every host the same documents, settings and version of the toolkit")


def report_shared_address(me: str, first: str, other: str, addresses: frozenset[str]) -> EndReport:
    """Return the report of a job of which two hosts' names have the same *addresses*, seen by *me*."""
    the = f"the address{'' if len(addresses) == 1 else 'es'} {', '.join(sorted(addresses)[:MOST])}"
    text = (
        f"hosts {first} and {other} both have {the}, seen from host {me}, but are two machines"
        " or containers: one of the two names leads to the other host"
    )
    advice = (
        "Correct their entries in the name service or in /etc/hosts, or give every host all addresses:"
        f" TOOLKIT_HOST_ADDRESSES={first}=ADDRESS,{other}=ADDRESS"
    )
    return _report_misconfigured(me, text, advice)


def _report_misconfigured(host: str, text: str, advice: str) -> EndReport:
    """Return the report of a job that its user has to correct, made by *host* or about it."""
    cause = Cause(primary=True, blame="user", kind="ClientError", message=text, advice=advice)
    return EndReport(host=host, exit_code=exit_codes.MISCONFIGURED, cause=cause)


def choose_cause(first: EndReport | None, other: EndReport | None) -> EndReport | None:
    """Return which of two is the cause: one of its own before a collateral failure, then the earlier (0, unknown, is
    last)."""
    if first is None or other is None:
        return first or other

    def place(report: EndReport) -> tuple[bool, bool, int]:
        return not report.cause.primary, not report.cause.failed_ns, report.cause.failed_ns

    return min(first, other, key=place)


def describe_failure(report: EndReport) -> str:
    """Return in one line who failed. What a rank failed of is said once, at the end of the host's log."""
    cause = report.cause
    if not cause.process:
        return f"host {report.host} failed: {cause.message.splitlines()[0] if cause.message else cause.process_end}"
    who = f"{cause.process} of host {report.host}"
    if cause.peer_lost:
        return f"{who} {'ended while others trained' if cause.is_early_exit else 'lost another rank of the job'}"
    return f"{who} failed: {cause.process_end}" if cause.process_end else f"{who} failed"


def make_event(report: EndReport) -> PeerFailed | Hang:
    """Return the event that *report*, of another host or of the whole job, is for this host's ranks."""
    return Hang(seconds=report.idle_s) if report.cause.kind == HANG else PeerFailed(text=describe_failure(report))


def with_cause(report: EndReport, **changes: object) -> EndReport:
    """Return *report* with *changes* of its cause."""
    return msgspec.structs.replace(report, cause=msgspec.structs.replace(report.cause, **changes))


def name_hosts(hosts: list[str]) -> str:
    """Return "host algo-2" or "hosts algo-2, algo-3 and 5 more"."""
    listed = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
    return f"host {listed}" if len(hosts) == 1 else f"hosts {listed}"


def shorten(report: EndReport) -> EndReport:
    """Return *report* as first news, which must be quick, and pass where larger messages are lost: about 1 KB."""
    texts = {name: getattr(report.cause, name)[:most] for name, most in FIRST_NEWS.items()}
    return msgspec.structs.replace(with_cause(report, traceback="", **texts), stuck_ranks=())


def cut_for_hosts(report: EndReport, hosts: int) -> EndReport:
    """Return *report* as *hosts* hosts can be told: of a traceback the end, of a cause the beginning."""
    most = max(FAN_OUT // hosts, LEAST_TEXT)
    text, traceback = report.cause.message, report.cause.traceback
    if len(text) <= most and len(traceback) <= most:
        return report
    return with_cause(report, message=text[:most], traceback=traceback[-most:])


def report_hang(me: str, idle_s: float, now_ns: int) -> EndReport:
    """Return the report of a job of which no rank has moved for *idle_s*."""
    return EndReport(
        host=me,
        exit_code=exit_codes.TIMED_OUT,
        cause=Cause(
            primary=True,
            failed_ns=now_ns - int(idle_s * 1e9),
            blame="user",
            kind=HANG,
            message=f"no rank of any host has written or computed anything for {idle_s:.0f} s (TOOLKIT_STALL_S)",
        ),
        idle_s=idle_s,
    )


def report_not_ended(missing: list[str], finish_timeout_s: float) -> EndReport:
    """Return the report of hosts that run on *finish_timeout_s* after the first host ended."""
    first = f"{finish_timeout_s:g} s after the first host had (TOOLKIT_FINISH_TIMEOUT_S)"
    cause = f"{name_hosts(missing)} had not ended {first}"
    return EndReport(
        host=missing[0],
        exit_code=exit_codes.TEMPORARY_FAILURE,
        cause=Cause(primary=True, blame="platform", kind="PlatformError", message=cause),
    )


def report_stopped(host: str, signal: int, fate: str) -> EndReport:
    """Return the report of *host*, which was to stop because of *signal*, and of which nothing more is known than
    *fate* it did."""
    return EndReport(
        host=host,
        exit_code=exit_codes.of_signal(signal),
        stopped=True,
        cause=Cause(kind="Stopped", message=f"host {host} {fate}"),
    )
