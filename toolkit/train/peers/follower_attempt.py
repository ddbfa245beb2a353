"""Pure: what a follower knows of one attempt, and the messages that the leader may not have received."""

from toolkit.job.events import Stop
from toolkit.train.peers.messages import EndReport, HostEnded, HostOwnWork, Idle, Message, NotReady, RankStepTimes
from toolkit.train.peers.reports import choose_cause


class FollowerAttempt:
    """One attempt, as this host and the leader have reported it to each other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended_s: float | None = None
        # True once the leader's Go came, once its Launch came, and once this host's ranks end because of a failure.
        self.started = False
        self.launched = False
        self.failing = False
        # The worst failure of this host, and the worst of which the leader sent news.
        self.own_failure: EndReport | None = None
        self._job_failure: EndReport | None = None

    @property
    def known_cause(self) -> EndReport | None:
        return choose_cause(self._job_failure, self.own_failure)

    def take_own_failure(self, report: EndReport) -> None:
        self.own_failure = choose_cause(self.own_failure, report)

    def take_job_failure(self, report: EndReport) -> None:
        self._job_failure = choose_cause(self._job_failure, report)

    def cause_without_leader(self, lost: EndReport, *, exact: bool) -> EndReport:
        """Return the cause of the job's end on a host whose leader is gone: the worst report known here, or *lost*, the
        leader's loss.

        Not *exact*: only the time at which the leader was last heard is known. A cause known here then stays the
        cause: the network may have been too bad to transmit it.
        """
        known_cause = self.known_cause
        if known_cause is not None and known_cause.cause.primary and not exact:
            return known_cause
        return choose_cause(known_cause, lost) or lost


class Outbox:
    """The messages to the leader that it may not have received: they are sent again on each new connection."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add(self, message: Message) -> None:
        if isinstance(message, NotReady):  # Only the last one counts.
            self.messages = [earlier for earlier in self.messages if not isinstance(earlier, NotReady)]
        if not isinstance(message, Idle | RankStepTimes | HostOwnWork):
            self.messages.append(message)

    def keep_stop(self) -> None:
        """Drop the messages of an attempt that is over; a stop is the job's."""
        self.messages = [message for message in self.messages if isinstance(message, Stop)]

    def last_report(self) -> EndReport:
        """Return the report of this host's end, which it has sent."""
        return next(message.report for message in reversed(self.messages) if isinstance(message, HostEnded))
