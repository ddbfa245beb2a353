"""Pure: a follower's contact with the leader: first it is not met, then connected and away in turns."""

from toolkit.train.peers.protocol import RECONNECT_S, REFUSED_S, TELL_EVERY_S, Action, LogLine, Timeouts
from toolkit.train.peers.reports import describe_break


class NotMet:
    """The leader has not accepted this host yet; it may refuse it."""

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self._next_line_s = now_s + TELL_EVERY_S
        self._refused_s: float | None = None
        self._refused_again_s = 0.0

    @property
    def is_refused(self) -> bool:
        """A single refusal does not count: a leader that is being stopped closes connections, too."""
        return self._refused_s is not None and self._refused_again_s > self._refused_s

    @property
    def is_refused_for_good(self) -> bool:
        return self._refused_s is not None and self._refused_again_s >= self._refused_s + REFUSED_S

    def note_refusal(self, now_s: float) -> bool:
        """Note that the leader closed a connection after this host's proof. Return True for the second time."""
        if self._refused_s is None:
            self._refused_s = self._refused_again_s = now_s
            return False
        is_second = not self.is_refused
        self._refused_again_s = now_s
        return is_second

    def take_line_due(self, now_s: float) -> bool:
        """Return True each time the log is due to say that this host waits for the leader."""
        if now_s < self._next_line_s:
            return False
        self._next_line_s = now_s + TELL_EVERY_S
        return True


class Connected:
    """There is a connection on which the leader has proved itself. *heard_s*: when a message last came on it."""

    def __init__(self, heard_s: float) -> None:
        self.heard_s = heard_s


class Away:
    """The connection was lost at *lost_s*, and is not re-established yet."""

    def __init__(self, heard_s: float, lost_s: float) -> None:
        self.heard_s = heard_s
        self.lost_s = lost_s
        # When the leader's end last took a new connection and closed it.
        self._knocked_s = lost_s
        # True once a connection to the leader's address was refused: nothing listens there.
        self._is_deserted = False

    def note_knock(self, now_s: float) -> None:
        self._knocked_s = now_s

    def note_deserted(self) -> None:
        self._is_deserted = True

    def ends_s(self, times: Timeouts) -> float:
        """Return when the leader counts as gone."""
        within_s = max(RECONNECT_S, times.heartbeat_s)  # Longer in a job of thousands of hosts.
        ends_s = max(self.heard_s + times.heartbeat_timeout_s, self.lost_s + within_s)
        return min(max(self.lost_s, self._knocked_s) + within_s, ends_s) if self._is_deserted else ends_s


class LeaderContact:
    """The contact with *leader*, which `state` shows. `times`: the leader's Welcome has those for the real number of
    hosts."""

    def __init__(self, leader: str, times: Timeouts, now_s: float) -> None:
        self._leader = leader
        self.times = times
        self.state: NotMet | Connected | Away = NotMet(now_s)
        # What took connections in the leader's place since the leader was last heard; "" if nothing did.
        self.answerer = ""
        # This process's own longest pause.
        self.paused_s = 0.0

    def connect(self, now_s: float) -> None:
        """Note a new connection on which the leader has proved itself."""
        self.state = Connected(now_s)
        self.answerer = ""

    def disconnect(self, now_s: float) -> None:
        """Note the loss of the connection."""
        if isinstance(self.state, Connected):
            self.state = Away(self.state.heard_s, now_s)

    def hear(self, now_s: float) -> None:
        """Note a message from the leader. One of a lost connection may come late."""
        if not isinstance(self.state, NotMet):
            self.state.heard_s = now_s

    def note_knock(self, now_s: float) -> None:
        """Note that the leader's end took a new connection and closed it: the leader may accept this host again before
        the heartbeat timeout."""
        if isinstance(self.state, Away):
            self.state.note_knock(now_s)

    def note_answerer(self, answerer: str, now_s: float) -> list[Action]:
        """Note that something else answers at the leader's address: another program, or a proxy that does not reach the
        leader yet. *answerer*: a clause about it, for the log."""
        earlier, self.answerer = self.answerer, answerer
        if earlier or not isinstance(self.state, Away):
            return []
        ends_s = max(self.state.heard_s, self.state.lost_s) + self.times.heartbeat_timeout_s
        text = f"link: the connection to host {self._leader}, the leader, broke; {answerer}"
        return [LogLine(text=f"{text}; trying again for {max(ends_s - now_s, 0.0):.0f} s", warns=True)]

    def note_nobody(self, *, refused: bool) -> None:
        """Note that nothing takes connections at the leader's address now. The earlier connections were taken by the
        leader's kernel, which does so for a moment after `train` was killed.

        Not *refused*: no answer came, as on a bad network, or where thousands of hosts reconnect at once and the
        leader's kernel has no room for more. That is silence, and proves nothing before the heartbeat timeout."""
        self.answerer = ""
        if refused and isinstance(self.state, Away):
            self.state.note_deserted()

    def is_quiet(self, now_s: float) -> bool:
        """True if the answers to two heartbeats are late: the leader has sent nothing for a third of the heartbeat
        timeout, and for two heartbeats (2.5 s each in a job of 10,000 hosts, in which it may be busy for a moment). On
        a bad network TCP waits longer before each retransmission; a new connection does not."""
        quiet_s = max(self.times.heartbeat_timeout_s / 3, 2 * self.times.heartbeat_s)
        return not isinstance(self.state, NotMet) and now_s >= self.state.heard_s + quiet_s

    def lost_before(self, at_s: float) -> bool:
        return isinstance(self.state, Away) and self.state.lost_s < at_s

    def describe_break(self) -> str:
        """Return what it means that the connection was not re-established in time."""
        return describe_break(self.answerer)

    def describe_pause(self, me: str) -> str:
        """Return, in brackets, that *me*, this host, was paused itself, "" if it was not."""
        return f" (host {me} itself had been paused for {self.paused_s:.1f} s)" if self.paused_s > RECONNECT_S else ""

    def forgive_pause(self, pause_s: float, now_s: float) -> None:
        """Move the times of the leader on by *pause_s*, in which this process could hear nothing."""
        self.paused_s = max(self.paused_s, pause_s)
        state = self.state
        if not isinstance(state, NotMet):
            state.heard_s = min(state.heard_s + pause_s, now_s)
        if isinstance(state, Away):
            state.lost_s = min(state.lost_s + pause_s, now_s)
