"""Pure: the follower's side of the protocol between hosts. A follower talks only to the leader."""

from collections.abc import Callable
from typing import Any

import msgspec

from toolkit.exit_codes import signal_in
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
from toolkit.records import Record
from toolkit.train.peers.follower_attempt import FollowerAttempt, Outbox
from toolkit.train.peers.leader_contact import Away, Connected, LeaderContact, NotMet
from toolkit.train.peers.messages import (
    Attempt,
    Bye,
    CommonStep,
    EndReport,
    Failing,
    Go,
    HostEnded,
    Message,
    Notice,
    Ping,
    RanksEnded,
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
    Action,
    LogLine,
    Send,
    Timeouts,
)
from toolkit.train.peers.reports import (
    HANG,
    choose_cause,
    describe_silence,
    make_event,
    report_lost_while_stopping,
    report_no_leader,
    report_other_key,
    report_replaced,
    report_vanished,
    shorten,
)
from toolkit.train.peers.tick_timer import TickTimer

REFUSED = "it takes connections but refused this host: TOOLKIT_JOB_SECRET, or the job's documents, differ between hosts"
SIGTERM = 15


class JobStop(Record, frozen=True, kw_only=True):
    """The stop of the job, of which this host was told or which it told itself."""

    signal: int
    at_s: float


class Follower:
    """Takes messages, connection changes and the time; returns actions. *tried* returns which addresses of the leader
    were tried, for the log and the cause. `leader_mark`: of the leader's process that this one has joined.

    leader_contact.py knows whether the leader is met, connected or away, follower_attempt.py what the two hosts have
    reported of the attempt, and what is to be sent again. The stop machine (train/supervise/stop_machine.py), which is
    told of the stop by an event, ends this host's processes."""

    def __init__(
        self, me: str, leader: str, times: Timeouts, now_s: float, *, tried: Callable[[], str] = lambda: ""
    ) -> None:
        self._me = me
        self._leader = leader
        self._tried = tried
        self.leader_mark = ""
        self.contact = LeaderContact(leader, times.among(2), now_s)
        self._timer = TickTimer(now_s)
        self._outbox = Outbox()
        self._attempt = FollowerAttempt(0)
        self._stop: JobStop | None = None
        self.verdict: EndReport | None = None

    # --- called by the link

    def on_connect(self, now_s: float, now_ns: int) -> list[Action]:
        """Handle a new connection on which the leader has proved itself. Send again what it may not have received."""
        self.contact.connect(now_s)
        attempt = self._attempt
        first: list[Message] = [Attempt(number=attempt.number)] if attempt.number else []
        if attempt.own_failure is not None and attempt.own_failure.failed:
            first.append(Failing(report=shorten(attempt.own_failure), is_whole=False))
        return [self._to_leader(message) for message in (*first, *self._outbox.messages, Ping(sent_ns=now_ns))]

    def recognize_leader(self, mark: str) -> bool:
        """Return whether *mark* is that of the leader's process that this one has joined, which it is now at the
        latest; False: that one has ended, and another was started in its place."""
        self.leader_mark = self.leader_mark or mark
        return mark == self.leader_mark

    def on_replaced_leader(self, now_s: float, now_ns: int) -> list[Action]:
        """End the job: the leader's process was started again, and knows nothing of it."""
        if self.verdict is not None:
            return []
        state = self.contact.state
        since_s = state.lost_s if isinstance(state, Away) else now_s
        return self._end_without_leader(report_replaced(self._leader, _at_ns(since_s, now_s, now_ns) - BREAK_NS))

    def on_disconnect(self, now_s: float) -> list[Action]:
        """Handle the loss of the connection."""
        if isinstance(self.contact.state, Connected):
            self.contact.disconnect(now_s)
            self._timer.bring_forward(now_s + RECONNECT_S)
        return []

    def on_refusal(self, now_s: float) -> list[Action]:
        """Note that the leader, which has not accepted this host yet, closed the connection after this host's proof."""
        state = self.contact.state
        if isinstance(state, NotMet) and state.note_refusal(now_s):
            return [LogLine(text=f"link: host {self._leader}, the leader: {REFUSED}")]
        return []

    def tell(self, message: Message, now_s: float) -> list[Action]:
        """Send *message* to the leader, now or when it is connected (again). The leader counts each message once."""
        first: tuple[Message, ...] = ()
        lines: list[Action] = []
        attempt = self._attempt
        message = self._in_the_light_of_the_verdict(message)
        if isinstance(message, Stop):
            at_s = now_s if self._stop is None else self._stop.at_s
            self._stop = JobStop(signal=message.signal, at_s=at_s)
        if isinstance(message, Reports) and message.report is not None and message.report.failed:
            if attempt.own_failure is None and message.report.cause.kind != HANG:
                first = (Failing(report=shorten(message.report), is_whole=False),)
            attempt.take_own_failure(message.report)
            attempt.failing = True
        if isinstance(message, HostEnded):
            attempt.ended_s = now_s
            self._timer.bring_forward(now_s)
            lines = self._say_that_it_lingers(now_s)
        self._outbox.add(message)
        if not isinstance(self.contact.state, Connected):
            return lines
        return [self._to_leader(part) for part in (*first, message)]

    def on_message(self, message: Message, now_s: float) -> list[Action]:
        """Handle a message from the leader."""
        self.contact.hear(now_s)
        handle = _HANDLERS.get(type(message))
        if handle is None or (self.verdict is not None and handle is not Follower._on_welcome):
            return []
        return handle(self, message, now_s)

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """Apply what depends on time, and send the heartbeat. Call it when `due_in_s` is 0: a later call means that
        this process was paused."""
        contact = self.contact
        pause_s = self._timer.note_tick(contact.times.heartbeat_s, now_s)
        if pause_s:
            contact.forgive_pause(pause_s, now_s)
        self._timer.due_s = now_s + contact.times.heartbeat_s
        if self.verdict is not None:
            return []
        match contact.state:
            case NotMet():
                return self._wait_for_leader(contact.state, now_s, now_ns)
            case Connected():
                return self._send_heartbeat(contact.state, now_s, now_ns)
            case Away():
                return self._wait_for_connection(contact.state, now_s, now_ns)

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return self._timer.due_in_s(now_s)

    # --- messages

    def _on_welcome(self, message: Welcome, _now_s: float) -> list[Action]:
        self.contact.times = msgspec.structs.replace(
            self.contact.times, heartbeat_s=message.heartbeat_s, heartbeat_timeout_s=message.heartbeat_timeout_s
        )
        return []

    def _on_go(self, _message: Go, _now_s: float) -> list[Action]:
        is_first, self._attempt.started = not self._attempt.started, True
        return [AllReady()] if is_first else []

    def _on_stop(self, message: Stop, now_s: float) -> list[Action]:
        if self._stop is not None:
            return []
        self._stop = JobStop(signal=message.signal, at_s=now_s)
        return [message]

    def _on_step(self, message: CommonStep, _now_s: float) -> list[Action]:
        return [StopStep(step=message.step)]

    def _on_launch(self, message: Launch, _now_s: float) -> list[Action]:
        is_first, self._attempt.launched = not self._attempt.launched, True
        return [message] if is_first else []

    def _pass_on(self, message: HangNoticed | LeaderDone | RankDone | TraceRanks, _now_s: float) -> list[Action]:
        return [message]

    def _on_ranks_ended(self, _message: RanksEnded, _now_s: float) -> list[Action]:
        return [AllRanksEnded()]

    def _on_notice(self, message: Notice, _now_s: float) -> list[Action]:
        return [LogLine(text=message.text, warns=True)]

    def _on_next_attempt(self, message: NextAttempt, _now_s: float) -> list[Action]:
        if message.restart.attempt <= self._attempt.number:
            return []
        self._attempt = FollowerAttempt(message.restart.attempt)
        self._outbox.keep_stop()
        return [self._to_leader(Attempt(number=self._attempt.number)), message]

    def _on_failing(self, message: Failing, _now_s: float) -> list[Action]:
        self._attempt.take_job_failure(message.report)
        return self._fail_here(message.report)

    def _on_verdict(self, message: Verdict, _now_s: float) -> list[Action]:
        return [*self._settle(message.report), self._to_leader(Bye())]

    # --- by the state of the contact

    def _wait_for_leader(self, state: NotMet, now_s: float, now_ns: int) -> list[Action]:
        """Wait for the leader, which has not been met yet. A host that has ended already waits less long."""
        attempt = self._attempt
        if attempt.ended_s is not None:
            ends_s = self._lingers_until_s(state, attempt.ended_s)
            if now_s >= ends_s or (state.is_refused_for_good and self._stop is not None):
                return self._settle(attempt.own_failure or self._outbox.last_report())
            self._timer.bring_forward(ends_s)
        if state.is_refused_for_good:
            lost = report_other_key(self._me, self._leader)
            return self._settle(choose_cause(attempt.own_failure, lost) or lost)
        join_s = self.contact.times.join_s
        self._timer.bring_forward(state.since_s + join_s)
        if now_s >= state.since_s + join_s and attempt.ended_s is None:
            hint = f"; {REFUSED}" if state.is_refused else self._describe_tries()
            lost = report_no_leader(self._leader, join_s, now_ns, hint)
            return self._settle(choose_cause(attempt.own_failure, lost) or lost)
        if state.take_line_due(now_s):
            return [LogLine(text=f"waiting for host {self._leader}, the leader, to answer{self._describe_tries()}")]
        return []

    def _send_heartbeat(self, state: Connected, now_s: float, now_ns: int) -> list[Action]:
        """Send the heartbeat; end the job if the leader was silent for too long."""
        silent_s = now_s - state.heard_s
        if silent_s < self.contact.times.heartbeat_timeout_s:
            return [self._to_leader(Ping(sent_ns=now_ns))]
        how = describe_silence(silent_s) + self.contact.describe_pause(self._me)
        lost = report_vanished(self._leader, how, _at_ns(state.heard_s, now_s, now_ns))
        return self._end_without_leader(lost, exact=False)

    def _wait_for_connection(self, state: Away, now_s: float, now_ns: int) -> list[Action]:
        """Wait until the connection is re-established; end the job if that takes too long."""
        ends_s = state.ends_s(self.contact.times)
        self._timer.bring_forward(ends_s)
        if now_s < ends_s:
            return []
        how = self.contact.describe_break() + self.contact.describe_pause(self._me)
        return self._end_without_leader(
            report_vanished(self._leader, how, _at_ns(state.lost_s, now_s, now_ns) - BREAK_NS)
        )

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

    def _describe_tries(self) -> str:
        return "".join(f"; {attempt}" for attempt in (self.contact.answerer, self._tried()) if attempt)

    def _say_that_it_lingers(self, now_s: float) -> list[Action]:
        state = self.contact.state
        is_expected = self._attempt.own_failure is None and self._stop is None
        if not isinstance(state, NotMet) or self.verdict is not None or is_expected:
            return []
        most_s = self._lingers_until_s(state, now_s) - now_s
        fate = "was stopped" if self._stop is not None else "has failed"
        text = f"waiting up to {most_s:.0f} s for host {self._leader}, the leader, to say that this host {fate}"
        return [LogLine(text=text)]

    def _lingers_until_s(self, state: NotMet, ended_s: float) -> float:
        """Return until when this host, which ended before it met the leader, stays to tell it: the others would wait
        for this host for the whole of TOOLKIT_JOIN_S."""
        if self._attempt.own_failure is None and self._stop is None:
            return ended_s + FAREWELL_S
        times = self.contact.times
        ends_s = min(ended_s + LINGER_S, state.since_s + times.join_s)
        if self._stop is not None:  # The platform kills what is there after the grace.
            ends_s = min(ends_s, self._stop.at_s + times.grace_s)
        return max(ends_s, ended_s + FAREWELL_S)

    def _end_without_leader(self, lost: EndReport, *, exact: bool = True) -> list[Action]:
        """End the job without the leader, which is gone: *lost*. See `FollowerAttempt.cause_without_leader`."""
        cause = self._attempt.cause_without_leader(lost, exact=exact)
        if self._stop is None:
            # A leader that was only paused is told, even if this host had ended well before: else it alone succeeds.
            is_connected = isinstance(self.contact.state, Connected)
            messages = [self._to_leader(Failing(report=shorten(cause)))] if is_connected else []
            return [*messages, *self._settle(cause)]
        if self._attempt.known_cause is None and not self.contact.lost_before(self._stop.at_s):
            # A leader may end before its followers: it got a second stop signal, or SIGKILL at its platform's deadline.
            cause = report_lost_while_stopping(lost, self._stop.signal)
        return [*self._settle(cause), AllRanksEnded()]  # No rank lives, as far as this host can know.

    def _fail_here(self, report: EndReport) -> list[Action]:
        """Return the event that ends this host's ranks because of *report*, unless they end because of a failure
        already."""
        if self._attempt.failing:
            return []
        self._attempt.failing = True
        return [make_event(report)]

    def _settle(self, report: EndReport) -> list[Action]:
        self.verdict = report
        actions: list[Action] = self._fail_here(report) if report.failed else []
        if report.stopped and report.exit_code and self._stop is None:
            actions.append(Stop(host=report.host, signal=max(signal_in(report.exit_code), 0) or SIGTERM))
        return [*actions, JobEnded()]


def _at_ns(at_s: float, now_s: float, now_ns: int) -> int:
    """Return *at_s* on the clock of *now_ns*."""
    return now_ns - int((now_s - at_s) * 1e9)


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
