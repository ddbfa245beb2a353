"""Pure: collects the hosts' reports of a job's failure, and selects the cause."""

import msgspec

from toolkit.collectives.records import RankCalls
from toolkit.collectives.wording import describe_hang
from toolkit.job.outcome import EarlyExit
from toolkit.job.stuck import StuckRank
from toolkit.train.peers.messages import EndReport
from toolkit.train.peers.reports import HANG, choose_cause, name_hosts, report_vanished, with_cause


class FailureReports:
    """The failure reports of one attempt."""

    def __init__(self) -> None:
        self.cause_report: EndReport | None = None
        # The first rank that ended with 0.
        self.early: EarlyExit | None = None
        self._stuck: dict[str, tuple[StuckRank, ...]] = {}
        self._calls: dict[str, tuple[RankCalls, ...]] = {}
        # The report of the host on which mpirun runs, if mpirun printed there why a rank of another host aborted.
        self._said: EndReport | None = None
        # By host: its failure in short. The whole report follows, unless the network loses it.
        self._first_news: dict[str, EndReport] = {}
        # The report of the first host that vanished; it also names those that vanished later.
        self._gone: EndReport | None = None
        self._gone_cause = ""
        self._gone_hosts: list[str] = []
        # By host: the last report with a traceback.
        self._by_fingerprint: dict[str, EndReport] = {}

    @property
    def is_hang(self) -> bool:
        return self.cause_report is not None and self.cause_report.cause.kind == HANG

    def take_report(self, host: str, report: EndReport, *, is_whole: bool) -> None:
        """Take the report of a failure from *host* ("": made by the leader). Not *is_whole*: its short form."""
        self.note_early(report.early)
        first = self._first_news.get(host)
        if is_whole and first is not None and self.cause_report is first and _is_of_one_end(first, report):
            self.cause_report = with_cause(report, failed_ns=first.cause.failed_ns)
        else:
            self.cause_report = choose_cause(self.cause_report, report)
        if report.cause.fingerprint:
            self._by_fingerprint[report.host] = report
        if not is_whole:
            self._first_news[host] = report

    def report_vanished(self, host: str, how: str, at_ns: int, *, of: tuple[str, ...], exact: bool = True) -> EndReport:
        """Return the report of *host*, which vanished. If other hosts have vanished before, it is the first one's
        report, which then names them all. If all followers (*of*) have vanished, the leader may be cut off itself.

        Not *exact*: *at_ns* is when the host was last heard, which is earlier than any failure since. So its silence
        does not replace a cause that is known.
        """
        self._gone_hosts.append(host)
        report = report_vanished(host, how, at_ns)
        if not exact and self.cause_report is not None and self.cause_report.cause.primary and self._gone is None:
            return with_cause(report, primary=False)
        previous = self._gone
        if previous is None:
            self._gone, self._gone_cause = report, report.cause.message
            return report
        cause = f"{self._gone_cause}\n{name_hosts(self._gone_hosts[1:])} vanished, too"
        if len(of) == len(self._gone_hosts):
            cause += ": perhaps this host, which leads, is the one that is cut off"
        self._gone = with_cause(previous, message=cause, failed_ns=min(previous.cause.failed_ns, at_ns))
        if self.cause_report is previous:
            self.cause_report = self._gone  # The same report, with all hosts.
        return self._gone

    def take_answer(self, host: str, report: EndReport) -> None:
        """Take from *report* what *host* knows besides its own failure."""
        if report.cause.kind == HANG:
            self._stuck[host] = report.stuck_ranks
            self._calls[host] = report.rank_calls
        self.note_early(report.early)
        if report.abort_text:
            self._said = report

    def note_early(self, early: EarlyExit | None) -> None:
        if early is not None and (self.early is None or early.at_ns < self.early.at_ns):
            self.early = early

    def has_stacks_of(self, host: str) -> bool:
        return host in self._stuck

    def complete_report(self, report: EndReport, hosts: tuple[str, ...]) -> EndReport:
        """Return *report* with what all *hosts* (the first is the leader) know: where the ranks are in a hang, and how
        many more ranks ended with the same traceback."""
        if report.cause.kind == HANG:
            stacks = {host: self._stuck.get(host, ()) for host in hosts}
            described = describe_hang(stacks, self._calls, alone=False)
            cause = "; ".join((report.cause.message, *described.sentences))
            # If no host or several are named, the cause belongs to the job, not to a host.
            is_one = len(described.hosts) == 1
            host = next(iter(described.hosts)) if is_one else hosts[0]
            report = msgspec.structs.replace(
                with_cause(report, message=cause), host=host, of_job=not is_one, collectives=described.compared
            )
        report = _with_abort(report, self._said)
        same = [
            twin
            for twin in self._by_fingerprint.values()
            if report.cause.fingerprint and twin.cause.fingerprint == report.cause.fingerprint
        ]
        more = max(sum(1 + twin.cause.identical_failures for twin in same) - 1, report.cause.identical_failures)
        return with_cause(report, identical_failures=more)


def blame_early_exit(cause_report: EndReport, early: EarlyExit | None) -> EndReport:
    """Return *cause_report*; if its rank only lost a peer that had ended with 0 before (*early*), the report of that
    peer."""
    if (
        cause_report.cause.primary
        or not cause_report.cause.peer_lost
        or early is None
        or not early.explains(cause_report.cause.failed_ns)
    ):
        return cause_report
    return EndReport(
        host=early.host,
        exit_code=cause_report.exit_code,
        cause=early.cause(cause_report.cause),
    )


def _with_abort(report: EndReport, abort_report: EndReport | None) -> EndReport:
    """Return *report*, of a rank that MPI aborted, with the text that mpirun printed about it on another host.

    *abort_report*: that host's report. Open MPI does not write to the rank's own stderr that it called MPI_Abort, or
    which MPI call failed.
    """
    if (
        abort_report is None
        or report.cause.rank is None
        or report.cause.rank != abort_report.abort_rank
        or abort_report.host == report.host
    ):
        return report
    if report.cause.evidence == "error" or report.cause.peer_lost:
        return report
    cause = (
        abort_report.abort_text
        if report.cause.evidence == "exit_code"
        else f"{abort_report.abort_text}\nit last said: {report.cause.message}"
    )
    return msgspec.structs.replace(
        with_cause(report, message=cause), abort_text=abort_report.abort_text, abort_rank=abort_report.abort_rank
    )


def _is_of_one_end(first: EndReport, other: EndReport) -> bool:
    """True if both reports are about the same process."""
    return (first.host, first.cause.process, first.cause.pid) == (other.host, other.cause.process, other.cause.pid)
