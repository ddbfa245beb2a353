"""Pure: what the hosts say of a job's failure, and which of it is the cause."""

import msgspec

from toolkit.job.outcome import WAIT_FOR_ALL, EarlyExit
from toolkit.job.stuck import Stuck, culprits, described
from toolkit.peers.messages import EndReport
from toolkit.peers.reports import HANG, named, vanished, worse


class Findings:
    """The reports of one attempt's failure."""

    def __init__(self) -> None:
        self.worst: EndReport | None = None
        # The first rank that ended with 0.
        self.early: EarlyExit | None = None
        self._stuck: dict[str, tuple[Stuck, ...]] = {}
        # Of the host on which mpirun runs, where that says why a rank of another host aborted.
        self._said: EndReport | None = None
        # By host: its failure in short; the whole report follows, if the network lets it.
        self._first_news: dict[str, EndReport] = {}
        # The first host that vanished, with those after it.
        self._gone: EndReport | None = None
        self._gone_cause = ""
        self._gone_hosts: list[str] = []
        # By host: the last report of a traceback.
        self._by_fingerprint: dict[str, EndReport] = {}

    @property
    def is_hang(self) -> bool:
        return self.worst is not None and self.worst.kind == HANG

    def take(self, host: str, report: EndReport, *, whole: bool) -> None:
        """Take the report of a failure from *host* ("": made here); not *whole*: only its first news."""
        self.note_early(report.early)
        first = self._first_news.get(host)
        if whole and first is not None and self.worst is first and _is_of_one_end(first, report):
            self.worst = msgspec.structs.replace(report, failed_ns=first.failed_ns)
        else:
            self.worst = worse(self.worst, report)
        if report.fingerprint:
            self._by_fingerprint[report.host] = report
        if not whole:
            self._first_news[host] = report

    def vanished(self, host: str, how: str, at_ns: int, *, of: tuple[str, ...]) -> EndReport:
        """Return the report of *host*, which is gone: where others are gone already, of the first of them, which was
        told, and the others. Where all followers (*of*) are gone the leader may be the one that is cut off."""
        self._gone_hosts.append(host)
        report = vanished(host, how, at_ns)
        before = self._gone
        if before is None:
            self._gone, self._gone_cause = report, report.cause
            return report
        cause = f"{self._gone_cause}\n{named(self._gone_hosts[1:])} vanished, too"
        if len(of) == len(self._gone_hosts):
            cause += ": perhaps this host, which leads, is the one that is cut off"
        self._gone = msgspec.structs.replace(before, cause=cause, failed_ns=min(before.failed_ns, at_ns))
        if self.worst is before:
            self.worst = self._gone  # The same, told more fully.
        return self._gone

    def note(self, host: str, report: EndReport) -> None:
        """Take what *host* knows beside a failure of its own."""
        if report.kind == HANG:
            self._stuck[host] = report.stuck
        self.note_early(report.early)
        if report.said:
            self._said = report

    def note_early(self, early: EarlyExit | None) -> None:
        found = [each for each in (self.early, early) if each is not None]
        self.early = min(found, key=lambda each: each.at_ns, default=None)

    def has_stacks_of(self, host: str) -> bool:
        return host in self._stuck

    def whole(self, report: EndReport, hosts: tuple[str, ...]) -> EndReport:
        """Return *report* with what *hosts*, the first of which leads, together know: of a hang where the ranks are,
        and how many more ranks had ended with the same traceback."""
        if report.kind == HANG:
            found = {host: self._stuck.get(host, ()) for host in hosts}
            cause = "; ".join((report.cause, *described(found, alone=False)))
            accused = {host for host, _ in culprits(found)}
            # Where nobody is accused, or several are, the cause is the job's, and no host's.
            one = len(accused) == 1
            host = accused.pop() if one else hosts[0]
            report = msgspec.structs.replace(report, cause=cause, host=host, of_job=not one)
        report = _with_abort(report, self._said)
        same = [
            each
            for each in self._by_fingerprint.values()
            if report.fingerprint and each.fingerprint == report.fingerprint
        ]
        return msgspec.structs.replace(
            report,
            identical_failures=max(sum(1 + each.identical_failures for each in same) - 1, report.identical_failures),
        )


def blamed(worst: EndReport, early: EarlyExit | None) -> EndReport:
    """Return *worst*, or where its rank only lost another one, and one had ended with 0 before, the report of that."""
    if worst.primary or not worst.lost or early is None or not early.explains(worst.failed_ns):
        return worst
    return EndReport(
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


def _with_abort(report: EndReport, seen: EndReport | None) -> EndReport:
    """Return *report*, of a rank that MPI aborted, with what mpirun said of it on another host, where *seen* tells so:
    Open MPI says on the rank's own stderr neither that it called MPI_Abort nor which call of MPI failed."""
    if seen is None or report.rank is None or report.rank != seen.said_of or seen.host == report.host:
        return report
    if report.grounds == "reason" or report.lost:
        return report
    cause = seen.said if report.grounds == "nothing" else f"{seen.said}\nit last said: {report.cause}"
    return msgspec.structs.replace(report, cause=cause, said=seen.said, said_of=seen.said_of)


def _is_of_one_end(one: EndReport, other: EndReport) -> bool:
    """True if both tell of the end of the same process."""
    return (one.host, one.process, one.pid) == (other.host, other.process, other.pid)
