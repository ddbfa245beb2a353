"""Times of one host on another's clock. Pure."""

import msgspec

from toolkit.job.events import NextAttempt
from toolkit.peers.messages import Evidence, Failing, HostEnded, Left, Message, Verdict


class Clock:
    """The leader's monotonic clock seen from here: the offset of the exchange with the shortest way, of the last few.

    Monotonic clocks of two machines have nothing in common, but neither is ever set. A machine that was suspended
    stops its own: exchanges that contradict the newest one are then dropped.
    """

    def __init__(self) -> None:
        self._best: list[tuple[int, int]] = []

    def heard(self, sent_ns: int, leader_ns: int, now_ns: int) -> None:
        """Take the answer *leader_ns* to what was sent at *sent_ns* and answered by *now_ns* (this host's clock)."""
        way_ns = now_ns - sent_ns
        if way_ns < 0:
            return
        offset_ns = leader_ns - (sent_ns + now_ns) // 2
        agreeing = [each for each in self._best[-15:] if abs(each[1] - offset_ns) <= (each[0] + way_ns) // 2 + 1]
        self._best = [*agreeing, (way_ns, offset_ns)]

    @property
    def way_ns(self) -> int:
        """How long an answer took at least."""
        return min(self._best)[0] if self._best else 0

    @property
    def offset_ns(self) -> int:
        """What to add to a time of this host; wrong by at most half the shortest way."""
        return min(self._best)[1] if self._best else 0


def on_clock(message: Message, offset_ns: int) -> Message:
    """Return *message* with the times in it moved by *offset_ns*, to another host's clock."""
    if isinstance(message, Failing | Evidence | HostEnded | Verdict) and message.report is not None:
        report, early = message.report, message.report.early
        if early is not None:
            early = msgspec.structs.replace(early, at_ns=_moved(early.at_ns, offset_ns))
        report = msgspec.structs.replace(report, failed_ns=_moved(report.failed_ns, offset_ns), early=early)
        return msgspec.structs.replace(message, report=report)
    if isinstance(message, Left):
        early = msgspec.structs.replace(message.early, at_ns=_moved(message.early.at_ns, offset_ns))
        return msgspec.structs.replace(message, early=early)
    if isinstance(message, NextAttempt):
        restart = msgspec.structs.replace(message.restart, failed_ns=_moved(message.restart.failed_ns, offset_ns))
        return msgspec.structs.replace(message, restart=restart)
    return message


def _moved(at_ns: int, offset_ns: int) -> int:
    """Return a time on another clock; 0 is no time, and stays 0."""
    return max(at_ns + offset_ns, 1) if at_ns else 0
