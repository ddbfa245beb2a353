"""Pure: the follower's side of the protocol between hosts. A follower talks only to the leader."""

from collections.abc import Callable
from typing import Any

import msgspec

from toolkit.exit_codes import of_signal, signal_in
from toolkit.job.events import (
    AllRanksEnded,
    AllReady,
    HangNoticed,
    JobEnded,
    Launch,
    LeaderDone,
    NextAttempt,
    RankDone,
    Stop,
    StopStep,
)
from toolkit.train.peers.messages import (
    Attempt,
    Bye,
    CommonStep,
    EndReport,
    Failing,
    Go,
    HostEnded,
    HostOwnWork,
    Idle,
    Message,
    Notice,
    NotReady,
    Ping,
    RanksEnded,
    RankStepTimes,
    Reports,
    TraceRanks,
    Verdict,
    Welcome,
)
from toolkit.train.peers.protocol import (
    BREAK_NS,
    FAREWELL_S,
    LINGER_S,
    RECONNECT_S,
    REFUSED_S,
    TELL_EVERY_S,
    Action,
    LogLine,
    Send,
    Timeouts,
)
from toolkit.train.peers.reports import (
    HANG,
    broken,
    event_of,
    light,
    no_leader,
    other_key,
    replaced,
    silent,
    vanished,
    with_cause,
    worse,
)

REFUSED = "it takes connections but refused this host: TOOLKIT_JOB_SECRET, or the job's documents, differ between hosts"
SIGTERM = 15


class Follower:
    """Takes messages, connection changes and the time; returns actions. *tried* returns which addresses of the leader
    were tried, for the log and the cause."""

    def __init__(
        self, me: str, leader: str, times: Timeouts, now_s: float, *, tried: Callable[[], str] = lambda: ""
    ) -> None:
        self._me = me
        self._tried = tried
        self._leader = leader
        self.leader_mark = ""  # Of the leader's process that this one has joined.
        self._times = times.among(2)  # The leader's Welcome has the times for the real number of hosts.
        self._began_s = now_s
        self._next_tell_s = now_s + TELL_EVERY_S
        self._ticked_s = now_s
        self._due_s = now_s
        self._paused_s = 0.0
        self._heard_s: float | None = None
        self._away_s: float | None = None
        self._knocked_s = 0.0
        # True once a connection to the leader's address was refused since the leader was lost: nothing listens there.
        self._deserted = False
        # What took connections in the leader's place since the leader was last heard; "" if nothing did.
        self._seen = ""
        self._unsent: list[Message] = []
        self._connected = False
        self._refused_s: float | None = None
        self._refused_again_s = 0.0
        # What the job was told, to know what the loss of the leader means. The stop machine
        # (train/supervise/stop_machine.py), which hears of the stop as an event, ends this host's processes.
        self._stopped = False
        self._stopped_s = 0.0
        self._signal = SIGTERM
        self.verdict: EndReport | None = None
        self._begin(0)

    def _begin(self, number: int) -> None:
        """Begin attempt *number*. Unsent messages of the one before are dropped, except a stop."""
        self._attempt = number
        self._unsent = [message for message in self._unsent if isinstance(message, Stop)]
        self._ended_s: float | None = None
        self._started = False
        self._told_here = False
        self._launched = False
        self._own: EndReport | None = None
        self._heard_of: EndReport | None = None

    # --- called by the link

    def joined(self, now_s: float, now_ns: int) -> list[Action]:
        """Handle a new connection on which the leader has proved itself. Send again what it may not have received."""
        self._connected = True
        self._away_s = None
        self._seen = ""
        self._heard_s = now_s
        first: list[Message] = [Attempt(number=self._attempt)] if self._attempt else []
        if self._own is not None and self._own.failed:
            first.append(Failing(report=light(self._own), is_whole=False))
        return [self._to_leader(message) for message in (*first, *self._unsent, Ping(sent_ns=now_ns))]

    def meets(self, mark: str) -> bool:
        """Return whether *mark* is that of the leader's process that this one has joined, which it is now at the
        latest; False: that one has ended, and another was started in its place."""
        self.leader_mark = self.leader_mark or mark
        return mark == self.leader_mark

    def leader_replaced(self, now_s: float, now_ns: int) -> list[Action]:
        """End the job: the leader's process was started again, and knows nothing of it."""
        if self.verdict is not None:
            return []
        since_s = now_s if self._away_s is None else self._away_s
        at_ns = now_ns - int((now_s - since_s) * 1e9) - BREAK_NS
        return self._end_without_leader(replaced(self._leader, at_ns))

    def left(self, now_s: float) -> list[Action]:
        """Handle the loss of the connection."""
        self._connected = False
        if self._heard_s is not None and self._away_s is None:
            self._away_s = now_s
            self._deserted = False
            self._due_s = min(self._due_s, now_s + RECONNECT_S)
        return []

    def knocked(self, now_s: float) -> None:
        """Note that the leader's end took a new connection and closed it: the leader may accept this host again before
        the heartbeat timeout."""
        self._knocked_s = now_s

    def saw(self, answerer: str, now_s: float) -> list[Action]:
        """Note that something else answers at the leader's address: another program, or a proxy that does not reach the
        leader yet. *answerer*: a clause about it, for the log."""
        earlier, self._seen = self._seen, answerer
        if earlier or self._away_s is None:
            return []
        left_s = max(self._heard_s or 0.0, self._away_s) + self._times.heartbeat_timeout_s - now_s
        text = f"link: the connection to host {self._leader}, the leader, broke; {answerer}"
        return [LogLine(text=f"{text}; trying again for {max(left_s, 0.0):.0f} s", warns=True)]

    def saw_nobody(self, *, refused: bool) -> None:
        """Note that nothing takes connections at the leader's address now. The earlier connections were taken by the
        leader's kernel, which does so for a moment after `train` was killed.

        Not *refused*: no answer came, as on a bad network, or where thousands of hosts reconnect at once and the
        leader's kernel has no room for more. That is silence, and proves nothing before the heartbeat timeout."""
        self._seen = ""
        self._deserted = self._deserted or refused

    def is_quiet(self, now_s: float) -> bool:
        """True if the answers to two heartbeats are late: the leader has sent nothing for a third of the heartbeat
        timeout, and for two heartbeats (2.5 s each in a job of 10,000 hosts, in which it may be busy for a moment). On
        a bad network TCP waits longer before each retransmission; a new connection does not."""
        times = self._times
        quiet_s = max(times.heartbeat_timeout_s / 3, 2 * times.heartbeat_s)
        return self._heard_s is not None and now_s >= self._heard_s + quiet_s

    def refused(self, now_s: float) -> list[Action]:
        """Note that the leader, which has not accepted this host yet, closed the connection after this host's proof.

        It counts only if it happens twice: a leader that is being stopped closes connections, too.
        """
        if self._refused_s is None:
            self._refused_s = self._refused_again_s = now_s
            return []
        first, self._refused_again_s = not self._is_refused, now_s
        return [LogLine(text=f"link: host {self._leader}, the leader: {REFUSED}")] if first else []

    @property
    def _is_refused(self) -> bool:
        return self._refused_s is not None and self._refused_again_s > self._refused_s

    def tell(self, message: Message, now_s: float) -> list[Action]:
        """Send *message* to the leader, now or when it is connected (again). The leader counts each message once."""
        first: tuple[Message, ...] = ()
        says: list[Action] = []
        message = self._in_the_light_of_the_verdict(message)
        if isinstance(message, Stop):
            self._stopped = True
            self._stopped_s = self._stopped_s or now_s
            self._signal = message.signal
        if isinstance(message, Reports) and message.report is not None and message.report.failed:
            if self._own is None and message.report.cause.kind != HANG:
                first = (Failing(report=light(message.report), is_whole=False),)
            self._own = worse(self._own, message.report)
            self._told_here = True
        if isinstance(message, HostEnded):
            self._ended_s = now_s
            self._due_s = now_s
            says = self._say_that_it_lingers(now_s)
        if isinstance(message, NotReady):  # Only the last one counts.
            self._unsent = [unsent for unsent in self._unsent if not isinstance(unsent, NotReady)]
        if not isinstance(message, Idle | RankStepTimes | HostOwnWork):
            self._unsent.append(message)
        if not self._connected:
            return says
        return [self._to_leader(part) for part in (*first, message)]

    def heard(self, message: Message, now_s: float) -> list[Action]:
        """Handle a message from the leader."""
        self._heard_s = now_s
        handle = _HANDLERS.get(type(message))
        if handle is None or (self.verdict is not None and handle is not Follower._on_welcome):
            return []
        return handle(self, message, now_s)

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """Apply what depends on time, and send the heartbeat. Call it when `due_in_s` is 0: a later call means that
        this process was paused."""
        self._forgive_own_pause(now_s)
        self._due_s = now_s + self._times.heartbeat_s
        if self.verdict is not None:
            return []
        if self._heard_s is None:
            return self._waiting(now_s, now_ns)
        if self._away_s is not None:
            within_s = max(RECONNECT_S, self._times.heartbeat_s)  # Longer in a job of thousands of hosts.
            ends_s = max(self._heard_s + self._times.heartbeat_timeout_s, self._away_s + within_s)
            if self._deserted:
                ends_s = min(max(self._away_s, self._knocked_s) + within_s, ends_s)
            self._due_s = min(self._due_s, ends_s)
            if now_s < ends_s:
                return []
            return self._alone(broken(self._seen), now_ns - int((now_s - self._away_s) * 1e9) - BREAK_NS)
        silent_s = now_s - self._heard_s
        if silent_s >= self._times.heartbeat_timeout_s:
            return self._alone(silent(silent_s), now_ns - int(silent_s * 1e9), exact=False)
        return [self._to_leader(Ping(sent_ns=now_ns))] if self._connected else []

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return max(self._due_s - now_s, 0.0)

    # --- messages

    def _on_welcome(self, message: Welcome, _now_s: float) -> list[Action]:
        self._times = msgspec.structs.replace(
            self._times, heartbeat_s=message.heartbeat_s, heartbeat_timeout_s=message.heartbeat_timeout_s
        )
        return []

    def _on_go(self, _message: Go, _now_s: float) -> list[Action]:
        first, self._started = not self._started, True
        return [AllReady()] if first else []

    def _on_stop(self, message: Stop, now_s: float) -> list[Action]:
        if self._stopped:
            return []
        self._stopped = True
        self._stopped_s = now_s
        self._signal = message.signal
        return [message]

    def _on_step(self, message: CommonStep, _now_s: float) -> list[Action]:
        return [StopStep(step=message.step)]

    def _on_launch(self, message: Launch, _now_s: float) -> list[Action]:
        first, self._launched = not self._launched, True
        return [message] if first else []

    def _pass_on(self, message: HangNoticed | LeaderDone | RankDone | TraceRanks, _now_s: float) -> list[Action]:
        return [message]

    def _on_ranks_ended(self, _message: RanksEnded, _now_s: float) -> list[Action]:
        return [AllRanksEnded()]

    def _on_notice(self, message: Notice, _now_s: float) -> list[Action]:
        return [LogLine(text=message.text, warns=True)]

    def _on_next_attempt(self, message: NextAttempt, _now_s: float) -> list[Action]:
        if message.restart.attempt <= self._attempt:
            return []
        self._begin(message.restart.attempt)
        return [self._to_leader(Attempt(number=self._attempt)), message]

    def _on_failing(self, message: Failing, _now_s: float) -> list[Action]:
        self._heard_of = worse(self._heard_of, message.report)
        return self._fail_here(message.report)

    def _on_verdict(self, message: Verdict, _now_s: float) -> list[Action]:
        return [*self._settle(message.report), self._to_leader(Bye())]

    # --- internal

    def _in_the_light_of_the_verdict(self, message: Message) -> Message:
        """Return *message* with the verdict in place of a report that is only a consequence of it. So a leader that was
        declared gone, and comes back, learns that it is the cause itself."""
        if self.verdict is None or not self.verdict.failed or not isinstance(message, Reports):
            return message
        if message.report is not None and message.report.cause.primary:
            return message
        return msgspec.structs.replace(message, report=self.verdict)

    def _to_leader(self, message: Message) -> Send:
        return Send(hosts=(self._leader,), message=message)

    def _waiting(self, now_s: float, now_ns: int) -> list[Action]:
        """Wait for the leader, which has not been met yet. A host that has ended already waits less long."""
        is_refused = self._refused_s is not None and self._refused_again_s >= self._refused_s + REFUSED_S
        if self._ended_s is not None:
            ends_s = self._lingers_until_s(self._ended_s)
            if now_s >= ends_s or (is_refused and self._stopped):
                return self._settle(self._own) if self._own is not None else self._settle(self._last_words())
            self._due_s = min(self._due_s, ends_s)
        if is_refused:
            lost = other_key(self._me, self._leader)
            return self._settle(worse(self._own, lost) or lost)
        ends_s = self._began_s + self._times.join_s
        self._due_s = min(self._due_s, ends_s)
        if now_s >= ends_s and self._ended_s is None:
            hint = f"; {REFUSED}" if self._is_refused else self._what_was_tried()
            lost = no_leader(self._leader, self._times.join_s, now_ns, hint)
            return self._settle(worse(self._own, lost) or lost)
        if now_s >= self._next_tell_s:
            self._next_tell_s = now_s + TELL_EVERY_S
            return [LogLine(text=f"waiting for host {self._leader}, the leader, to answer{self._what_was_tried()}")]
        return []

    def _what_was_tried(self) -> str:
        return "".join(f"; {attempt}" for attempt in (self._seen, self._tried()) if attempt)

    def _say_that_it_lingers(self, now_s: float) -> list[Action]:
        if self._heard_s is not None or self.verdict is not None or not (self._own is not None or self._stopped):
            return []
        most_s = self._lingers_until_s(now_s) - now_s
        fate = "was stopped" if self._stopped else "has failed"
        text = f"waiting up to {most_s:.0f} s for host {self._leader}, the leader, to say that this host {fate}"
        return [LogLine(text=text)]

    def _lingers_until_s(self, ended_s: float) -> float:
        """Return until when this host, which ended before it met the leader, stays to tell it: the others would wait
        for this host for the whole of TOOLKIT_JOIN_S."""
        if self._own is None and not self._stopped:
            return ended_s + FAREWELL_S
        ends_s = min(ended_s + LINGER_S, self._began_s + self._times.join_s)
        if self._stopped:  # The platform kills what is there after the grace.
            ends_s = min(ends_s, self._stopped_s + self._times.grace_s)
        return max(ends_s, ended_s + FAREWELL_S)

    def _last_words(self) -> EndReport:
        return next(message.report for message in reversed(self._unsent) if isinstance(message, HostEnded))

    def _alone(self, how: str, at_ns: int, *, exact: bool = True) -> list[Action]:
        """End the job without the leader, which is gone: the verdict is the worst report known here, or that loss.

        Not *exact*: only the time at which the leader was last heard is known. A cause known here then stays the
        cause: the network may have been too bad to transmit it.
        """
        if self._paused_s > RECONNECT_S:
            how += f" (host {self._me} itself had been paused for {self._paused_s:.1f} s)"
        return self._end_without_leader(vanished(self._leader, how, at_ns), exact=exact)

    def _end_without_leader(self, lost: EndReport, *, exact: bool = True) -> list[Action]:
        known_cause = worse(self._heard_of, self._own)
        is_cause = known_cause is not None and known_cause.cause.primary and not exact
        cause = (known_cause if is_cause else worse(known_cause, lost)) or lost
        if not self._stopped:
            # A leader that was only paused is told, even if this host had ended well before: else it alone succeeds.
            tells = [self._to_leader(Failing(report=light(cause)))] if self._connected else []
            return [*tells, *self._settle(cause)]
        ranks_ended = AllRanksEnded()  # As far as this host can know.
        left_first = self._away_s is not None and self._away_s < self._stopped_s
        if self._heard_of is None and self._own is None and not left_first:
            # A leader may end before its followers: it got a second stop signal, or SIGKILL at its platform's deadline.
            text = lost.cause.message.replace(" vanished: ", " vanished while the job was stopping: ", 1)
            stopped = with_cause(lost, primary=False, blame="", kind="Stopped", message=text)
            stopped = msgspec.structs.replace(stopped, exit_code=of_signal(self._signal), stopped=True)
            return [*self._settle(stopped), ranks_ended]
        return [*self._settle(cause), ranks_ended]

    def _fail_here(self, report: EndReport) -> list[Action]:
        if self._told_here:
            return []
        self._told_here = True
        return [event_of(report)]

    def _settle(self, report: EndReport) -> list[Action]:
        self.verdict = report
        actions: list[Action] = self._fail_here(report) if report.failed else []
        if report.stopped and report.exit_code and not self._stopped:
            actions.append(Stop(host=report.host, signal=max(signal_in(report.exit_code), 0) or SIGTERM))
        return [*actions, JobEnded()]

    def _forgive_own_pause(self, now_s: float) -> None:
        pause_s = now_s - self._due_s
        if self._due_s > self._ticked_s and pause_s > self._times.heartbeat_s:
            self._paused_s = max(self._paused_s, pause_s)
            self._heard_s = None if self._heard_s is None else min(self._heard_s + pause_s, now_s)
            self._away_s = None if self._away_s is None else min(self._away_s + pause_s, now_s)
        self._ticked_s = now_s


_Handle = Callable[[Follower, Any, float], list[Action]]
# By type, as in leader.py. A Pong needs no answer. Only a Welcome counts once there is a verdict.
_HANDLERS: dict[type, _Handle] = {
    Welcome: Follower._on_welcome,
    Go: Follower._on_go,
    Stop: Follower._on_stop,
    CommonStep: Follower._on_step,
    Launch: Follower._on_launch,
    HangNoticed: Follower._pass_on,
    LeaderDone: Follower._pass_on,
    RankDone: Follower._pass_on,
    TraceRanks: Follower._pass_on,
    RanksEnded: Follower._on_ranks_ended,
    Notice: Follower._on_notice,
    NextAttempt: Follower._on_next_attempt,
    Failing: Follower._on_failing,
    Verdict: Follower._on_verdict,
}
