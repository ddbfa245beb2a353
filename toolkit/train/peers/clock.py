"""Pure: converts times of one host to another host's clock."""

import msgspec

from toolkit.job.events import NextAttempt
from toolkit.train.peers.messages import Failing, HostEnded, Message, OwnFailure, UnfinalizedRank, Verdict, WithReport

# The types of messages that have times. A set: every heartbeat is looked up in it (see messages.NAMES_HOST).
WITH_TIMES = frozenset({Failing, OwnFailure, HostEnded, Verdict, UnfinalizedRank, NextAttempt})


class LeaderClock:
    """Estimates the leader's monotonic clock: the offset of the fastest of the last few exchanges.

    Monotonic clocks of two machines are unrelated, but neither is ever set. The clock of a suspended machine stops:
    exchanges that contradict the newest one are then dropped.

    `offset_ns`: the number to add to a time of this host; its error is at most half of `way_ns`, the shortest time that
    an answer took.
    """

    def __init__(self) -> None:
        self._best: list[tuple[int, int]] = []
        self.way_ns = 0
        self.offset_ns = 0

    def note_exchange(self, sent_ns: int, leader_ns: int, now_ns: int) -> None:
        """Take the answer *leader_ns* to a message sent at *sent_ns*; it came at *now_ns* (this host's clock)."""
        way_ns = now_ns - sent_ns
        if way_ns < 0:
            return
        offset_ns = leader_ns - (sent_ns + now_ns) // 2
        agreeing = [
            exchange for exchange in self._best[-15:] if abs(exchange[1] - offset_ns) <= (exchange[0] + way_ns) // 2 + 1
        ]
        self._best = [*agreeing, (way_ns, offset_ns)]
        self.way_ns, self.offset_ns = min(self._best)


def move_clock(message: Message, offset_ns: int) -> Message:
    """Return *message* with the times in it converted to another host's clock, by adding *offset_ns*."""
    if type(message) not in WITH_TIMES:
        return message
    if isinstance(message, WithReport) and message.report is not None:
        report, early = message.report, message.report.early
        if early is None and not report.cause.failed_ns:
            return message
        if early is not None:
            early = msgspec.structs.replace(early, at_ns=_moved(early.at_ns, offset_ns))
        cause = msgspec.structs.replace(report.cause, failed_ns=_moved(report.cause.failed_ns, offset_ns))
        report = msgspec.structs.replace(report, cause=cause, early=early)
        return msgspec.structs.replace(message, report=report)
    if isinstance(message, UnfinalizedRank):
        early = msgspec.structs.replace(message.early, at_ns=_moved(message.early.at_ns, offset_ns))
        return msgspec.structs.replace(message, early=early)
    if isinstance(message, NextAttempt):
        restart = msgspec.structs.replace(message.restart, failed_ns=_moved(message.restart.failed_ns, offset_ns))
        return msgspec.structs.replace(message, restart=restart)
    return message


def _moved(at_ns: int, offset_ns: int) -> int:
    """Return a time on another clock; 0 means unknown and stays 0."""
    return max(at_ns + offset_ns, 1) if at_ns else 0
