"""Pure: the leader's side of the protocol: what each message means, which hosts live, and what the others are told.

members.py knows which hosts are connected, barrier.py when all may start, attempt.py how far the attempt has come,
failures.py the hosts' reports of a failure, hang.py whether all of them are inactive. decision.py decides how the job
ends, or that it is restarted.

The leader's own host is a member like any other; its messages also come by `on_message`. The cost of one host's message
must not depend on the number of hosts: with 10,000 hosts every message may come 10,000 times within a second.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from toolkit.job.cause import Cause
from toolkit.job.events import (
    AllRanksEnded,
    AllReady,
    DaemonEnded,
    HangNoticed,
    JobEnded,
    Launch,
    LeaderDone,
    RankDone,
    Stop,
    StopStep,
)
from toolkit.train.peers.attempt import AttemptState
from toolkit.train.peers.barrier import StartBarrier
from toolkit.train.peers.decision import AwaitEnds, Decider, EndJob, FailJob, Repeat
from toolkit.train.peers.failures import blame_early_exit
from toolkit.train.peers.hang import JobHang
from toolkit.train.peers.members import Members
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
    OwnFailure,
    Ping,
    Pong,
    RanksEnded,
    RankStepTimes,
    Ready,
    TraceRanks,
    UnfinalizedRank,
    Verdict,
    Welcome,
)
from toolkit.train.peers.protocol import (
    AGREE_S,
    FAREWELL_S,
    LINGER_S,
    RECONNECT_S,
    Action,
    HostStepTimes,
    LogLine,
    RanksWork,
    Send,
    Timeouts,
)
from toolkit.train.peers.reports import (
    make_event,
    name_hosts,
    report_hang,
    report_other_key,
    report_replaced,
    report_stopped,
    report_unlike,
    report_vanished,
    shorten,
    with_cause,
)
from toolkit.train.peers.tick_timer import TickTimer


class Leader:
    """Takes messages, connection changes and the time; returns actions. *restarts*: how many the job may have.
    *survey*: the job starts only after `on_survey` was called. *mark*: of this process, different from any other's."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        times: Timeouts,
        now_s: float,
        *,
        restarts: int = 0,
        survey: bool = False,
        mark: str = "",
    ) -> None:
        self._me = hosts[0]
        self.mark = mark  # This process's own.
        self._followers = hosts[1:]
        self._times = times.among(len(hosts))
        self.members = Members(self._followers, self._times.heartbeat_timeout_s)
        self.barrier = StartBarrier(hosts, self._times.join_s, now_s, survey=survey)
        self._decider = Decider(hosts, self._times, self.members, self.barrier, restarts)
        self._attempt = AttemptState(None, {self._me}, now_s)
        # By follower: the attempt to which the messages on its connection belong.
        self._at: dict[str, int] = {}
        # What the job was told: for hosts that join or vanish later. The stop machine
        # (train/supervise/stop_machine.py), which hears of the stop as an event, ends this host's processes.
        self._stop: Stop | None = None
        self._stopped_s: float | None = None
        self.verdict: EndReport | None = None
        self._settled_s: float | None = None
        self._timer = TickTimer(now_s)

    # --- called by the link

    def turn_away(self, host: str, now_ns: int) -> tuple[Message, ...]:
        """Return the messages for a second `train` of *host*: the verdict if there is one, else a request to end."""
        report = self.verdict
        if report is None or not report.failed:
            cause = f"another train of this job is already host {host}: this one started second, or again"
            report = with_cause(report_vanished(host, "", now_ns), message=cause)
        return self.make_welcome(now_ns), Verdict(report=report)

    def on_survivor(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        """Handle *host*, which had joined an earlier process of this host: its job ended with that process, and so does
        this one. Hosts that were started again, too, or late, wait for this one: they are told."""
        self.members.absent.discard(host)
        return [] if self.verdict is not None else self._settle(report_replaced(self._me, now_ns), now_s)

    def refuse_unlike(
        self, host: str, difference: str, now_s: float, now_ns: int
    ) -> tuple[tuple[Message, ...], list[Action]]:
        """Handle *host*, which has the job's key, and differs from this one: return the messages to it, and the
        actions. *difference*: "the list of hosts differs"."""
        report = report_unlike(host, self._me, difference)
        self.members.absent.discard(host)
        is_over = self.verdict is not None or self.barrier.opened or self._attempt.failing_s is not None
        return (self.make_welcome(now_ns), Verdict(report=report)), [] if is_over else self._fail("", report, now_s)

    def warn_of_settings(self, host: str, settings: tuple[str, ...]) -> list[Action]:
        """Say that *host* has other *settings*."""
        actions: list[Action] = []
        for setting in settings:
            text = f"host {host}: {setting}. Set it on every host"
            actions += [LogLine(text=text, warns=True), Send(hosts=(host,), message=Notice(text=text))]
        return actions

    def make_welcome(self, now_ns: int) -> Welcome:
        """Return the first message to a host."""
        times = self._times
        return Welcome(
            heartbeat_s=times.heartbeat_s,
            heartbeat_timeout_s=times.heartbeat_timeout_s,
            leader_ns=now_ns,
            mark=self.mark,
        )

    def on_survey(
        self, addresses: dict[str, frozenset[str]], now_s: float, own_addresses: frozenset[str] = frozenset()
    ) -> list[Action]:
        """Take the addresses of each host, as far as this host's look-up found them; *own_addresses*: those of
        them that are its own."""
        self.barrier.take_addresses(addresses, own_addresses)
        return self._start(now_s)

    def on_connect(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        """Handle a new connection on which *host* has proved itself, its first or a later one."""
        attempt = self._attempt
        if self.members.note_connection(host, now_s):
            attempt.note_connection(host)
        attempt.hang.forget(host)
        self._at[host] = 0
        messages: list[Message | None] = [self.make_welcome(now_ns)]
        if self.verdict is not None:
            messages.append(Verdict(report=self.verdict))
        else:
            cause_report = attempt.failures.cause_report if attempt.failing_s is not None else None
            messages += [attempt.begun_by, self._stop, attempt.stop_steps.agreed]
            messages += [Failing(report=shorten(cause_report)) if cause_report is not None else None]
            messages += [Go() if self.barrier.opened else None]
            messages += [attempt.launches.get(host), attempt.leader_done, attempt.rank_done, attempt.ranks_ended]
        return [Send(hosts=(host,), message=message) for message in messages if message is not None]

    def on_disconnect(self, host: str, now_s: float) -> list[Action]:
        """Handle the loss of *host*'s connection; it has a moment to reconnect."""
        if self.members.note_disconnection(host, now_s):
            if self._is_absent_again(host, now_s):
                return []
            self._timer.bring_forward(now_s + RECONNECT_S)
        return []

    def on_message(self, host: str, message: Message, now_s: float, now_ns: int) -> list[Action]:
        """Handle an authenticated message from *host*, which may be the leader's own host."""
        self.members.note_message(host, now_s)
        kind = type(message)
        handle = _AT_ANY_TIME.get(kind)
        if handle is None:
            handle = _DURING_AN_ATTEMPT.get(kind)
            if handle is None or self.verdict is not None:
                return []
            if host != self._me and self._at.get(host, 0) != self._attempt.number:
                return []
        return handle(self, host, message, now_s, now_ns)

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """Apply what depends on time. Call it when `due_in_s` is 0: a later call means that this process was paused."""
        self._forgive_own_pause(now_s)
        actions: list[Action] = []
        if self.verdict is None:
            attempt = self._attempt
            actions = self._check_membership(now_s, now_ns)
            for host in self._followers:
                if host in attempt.unended or (attempt.awaits_all_ends and host not in self.members.gone):
                    actions += self._look_after(host, now_s, now_ns)
            actions += self._miss_the_unfinished(now_s, now_ns)
            actions += self._agree(now_s) + self._decide(now_s)
        self._plan_next(now_s)
        return actions

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return self._timer.due_in_s(now_s)

    def is_finished(self, now_s: float) -> bool:
        """True once there is a verdict, and every connected host has taken it or had time to."""
        if self.verdict is None or self._settled_s is None:
            return False
        ends_s = self.members.farewell_ends_s(self._settled_s)
        if self.awaited:
            ends_s = max(ends_s, self._settled_s + LINGER_S)
        if self._stopped_s is not None:  # The platform kills what is there after the grace.
            ends_s = min(ends_s, max(self._settled_s + FAREWELL_S, self._stopped_s + self._times.grace_s))
        return now_s >= ends_s

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that have never joined and should still learn that the job has failed, or was stopped."""
        timed_out = self._settled_s is not None and self.barrier.is_timed_out(self._settled_s)
        if self.verdict is None or not (self.verdict.failed or self.verdict.stopped) or timed_out:
            return ()
        without_key = self.members.without_key
        return tuple(host for host in self._followers if host in without_key)

    # --- messages

    def _on_ping(self, host: str, message: Ping, _now_s: float, now_ns: int) -> list[Action]:
        return [Send(hosts=(host,), message=Pong(sent_ns=message.sent_ns, leader_ns=now_ns))]

    def _on_bye(self, host: str, _message: Bye, _now_s: float, _now_ns: int) -> list[Action]:
        self.members.note_bye(host)
        return []

    def _on_stop(self, host: str, message: Stop, now_s: float, _now_ns: int) -> list[Action]:
        if self._stop is not None:
            return []
        self._stop = message
        self._stopped_s = now_s
        self._timer.bring_forward(now_s + AGREE_S)
        if self.verdict is not None:
            return []
        actions: list[Action] = [Send(hosts=self._all_but(host), message=message)]
        if host != self._me:
            actions.append(message)
        return actions

    def _on_attempt(self, host: str, message: Attempt, _now_s: float, _now_ns: int) -> list[Action]:
        self._at[host] = message.number
        return []

    def _on_ready(self, host: str, _message: Ready, now_s: float, _now_ns: int) -> list[Action]:
        self.barrier.note_ready(host)
        return self._start(now_s)

    def _on_not_ready(self, host: str, message: NotReady, _now_s: float, _now_ns: int) -> list[Action]:
        self.barrier.note_needs(host, message.needs)
        return []

    def _on_ended(self, host: str, message: HostEnded, now_s: float, _now_ns: int) -> list[Action]:
        attempt, report = self._attempt, message.report
        attempt.steps = attempt.steps.and_those(message.steps)
        if attempt.first_end_s is None:
            self._timer.bring_forward(now_s + self._times.finish_timeout_s)
        attempt.note_end(host, report, now_s)
        if report.failed:
            return self._fail(host, report, now_s)
        if attempt.failing_s is None and not attempt.unended:
            # Not at once: a host that gave this one up in a long pause says so after its own good end.
            self._timer.bring_forward(now_s)
            return self._tell_ranks_ended()
        return [*self._tell_ranks_ended(), *self._decide(now_s)]

    def _on_failing(self, host: str, message: Failing, now_s: float, _now_ns: int) -> list[Action]:
        attempt, report = self._attempt, message.report
        if report.host == self._me and host in attempt.ends and not attempt.ends[host].failed:
            # The host ended well and gave this one up in a pause or an outage, which ends no rank's work.
            attempt.given_up = attempt.given_up or report
            return []
        return self._fail(host, report, now_s, is_whole=message.is_whole)

    def _on_own_failure(self, host: str, message: OwnFailure, now_s: float, _now_ns: int) -> list[Action]:
        failures, report = self._attempt.failures, message.report
        if report is not None:
            failures.take_answer(host, report)
        if not failures.is_hang or failures.has_stacks_of(host):
            self._attempt.unanswered.discard(host)
        return self._fail(host, report, now_s) if report is not None and report.failed else self._decide(now_s)

    def _on_step(self, host: str, message: CommonStep, now_s: float, _now_ns: int) -> list[Action]:
        self._attempt.stop_steps.note_step(host, message.step)
        return self._agree(now_s)

    def _on_idle(self, host: str, message: Idle, now_s: float, now_ns: int) -> list[Action]:
        attempt = self._attempt
        attempt.hang.note_idle(host, message)
        if attempt.failing_s is not None or self._stop is not None:
            return []
        idle_s = attempt.hang.idle_s(attempt.unended, attempt.without_ranks, now_s)
        if idle_s is None:
            return []
        if not attempt.hang.stops(attempt.unended - attempt.without_ranks):
            attempt.hang = JobHang(now_s)
            noticed = HangNoticed(seconds=idle_s)
            return [Send(hosts=self._followers, message=noticed), noticed]
        return self._fail("", report_hang(self._me, idle_s, now_ns), now_s)

    def _on_unfinalized_rank(self, host: str, message: UnfinalizedRank, now_s: float, _now_ns: int) -> list[Action]:
        """Note that a rank ended with 0 without MPI_Finalize."""
        attempt = self._attempt
        attempt.failures.note_early(message.early)
        self._timer.bring_forward(attempt.unfinished.note_rank(host, message.living_ranks, now_s))
        return []

    def _on_launch(self, _host: str, message: Launch, _now_s: float, _now_ns: int) -> list[Action]:
        self._attempt.launches[message.host] = message
        return [Send(hosts=(message.host,), message=message)]

    def _on_daemon_ended(self, host: str, message: DaemonEnded, _now_s: float, _now_ns: int) -> list[Action]:
        return [msgspec.structs.replace(message, host=host)]

    def _on_leader_done(self, _host: str, message: LeaderDone, _now_s: float, _now_ns: int) -> list[Action]:
        self._attempt.leader_done = message
        return [Send(hosts=self._followers, message=message)]

    def _on_rank_done(self, _host: str, message: RankDone, _now_s: float, _now_ns: int) -> list[Action]:
        if self._attempt.rank_done is not None:
            return []
        self._attempt.rank_done = message
        return [Send(hosts=self._followers, message=message), message]

    def _on_ranks_ended(self, host: str, _message: RanksEnded, now_s: float, _now_ns: int) -> list[Action]:
        self._attempt.without_ranks.add(host)
        self._attempt.hang.restart_count(now_s)
        return self._tell_ranks_ended()

    def _on_step_times(self, host: str, message: RankStepTimes, _now_s: float, _now_ns: int) -> list[Action]:
        return [HostStepTimes(host=host, times=message.times)]

    def _on_own_work(self, host: str, message: HostOwnWork, _now_s: float, _now_ns: int) -> list[Action]:
        return [RanksWork(host=host, ranks=message.ranks)]

    def _on_trace(self, _host: str, message: TraceRanks, _now_s: float, _now_ns: int) -> list[Action]:
        return [Send(hosts=self._followers, message=message), message]

    # --- the course of the job

    def _start(self, now_s: float) -> list[Action]:
        """Start the main phase if every host is ready."""
        if self._attempt.failing_s is not None or not self.barrier.is_complete:
            return []
        conflict = self.barrier.find_conflict()
        if conflict is not None:
            return self._fail("", conflict, now_s)
        self.barrier.opened = True
        return [Send(hosts=self._followers, message=Go()), AllReady()]

    def _agree(self, now_s: float) -> list[Action]:
        """Tell all hosts at which step they stop, once that is agreed."""
        agreed = self._attempt.stop_steps.agree(self._attempt.unended, self._stopped_s, now_s)
        return [] if agreed is None else [Send(hosts=self._followers, message=agreed), StopStep(step=agreed.step)]

    def _tell_ranks_ended(self) -> list[Action]:
        """Report once to the hosts that wait for it that no rank of the job lives any more, if that is so."""
        message = self._attempt.take_ranks_ended()
        return [] if message is None else [Send(hosts=self._followers, message=message), AllRanksEnded()]

    def _miss_the_unfinished(self, now_s: float, now_ns: int) -> list[Action]:
        """End the job if its ranks wait for one that ended without MPI_Finalize."""
        attempt = self._attempt
        early = attempt.failures.early
        if attempt.failing_s is not None or self._stop is not None or early is None:
            return []
        if not attempt.unfinished.hold_up(attempt.unended, now_s):
            return []
        cause = Cause(failed_ns=now_ns, blame="user", kind="ExecuteUserScriptError", peer_lost=True)
        return self._fail("", blame_early_exit(EndReport(host=self._me, exit_code=1, cause=cause), early), now_s)

    def _fail(self, host: str, report: EndReport, now_s: float, *, is_whole: bool = True) -> list[Action]:
        """Take the report of a failure from *host* ("": found by the leader itself); forward the first one."""
        attempt = self._attempt
        attempt.failures.take_report(host, report, is_whole=is_whole)
        if is_whole and not attempt.failures.is_hang:
            attempt.unanswered.discard(host)
        if attempt.failing_s is not None:
            return self._decide(now_s)
        attempt.failing_s = now_s
        self._due_soonest(now_s)
        actions: list[Action] = [Send(hosts=self._all_but(host), message=Failing(report=shorten(report)))]
        if host != self._me:
            actions.append(make_event(report))
        return actions + self._decide(now_s)

    def _check_membership(self, now_s: float, now_ns: int) -> list[Action]:
        if self.barrier.opened or self._attempt.failing_s is not None or self._stop is not None:
            return []
        refused = self.members.find_other_key(now_s)
        if refused is not None:
            return self._fail("", report_other_key(refused), now_s)
        overdue = self.barrier.report_overdue(self.members.absent, now_s, now_ns)
        if overdue is not None:
            return self._settle(overdue, now_s)
        reminder = self.barrier.take_reminder(self.members.absent, now_s)
        return [LogLine(text=reminder)] if reminder else []

    def _is_absent_again(self, host: str, now_s: float) -> bool:
        if not self.members.forget_unconfirmed(host, now_s):
            return False
        self._attempt.stop_awaiting(host)
        return True

    def _look_after(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        if self._is_absent_again(host, now_s):
            return []
        lost = self.members.take_loss(host, now_s, now_ns)
        if lost is None:
            return []
        how, at_ns, lost_s = lost
        self._attempt.stop_awaiting(host)
        lost_first = lost_s is not None and self._stopped_s is not None and lost_s < self._stopped_s
        if self._stop is not None and not lost_first:
            self._attempt.ends[host] = report_stopped(
                host, self._stop.signal, f"vanished while the job was stopping: {how}"
            )
            return self._tell_ranks_ended()
        if self.members.paused_s > RECONNECT_S:
            how += f" (host {self._me} itself had been paused for {self.members.paused_s:.1f} s)"
        exact = lost_s is not None
        report = self._attempt.failures.report_vanished(host, how, at_ns, of=self._followers, exact=exact)
        return self._fail(host, report, now_s)

    def _decide(self, now_s: float) -> list[Action]:
        """Carry out the decision about the job's end, if there is one now."""
        if self.verdict is not None:
            return []
        match self._decider.decide(self._attempt, self._stop, self._stopped_s, now_s):
            case EndJob(report=report, refusal=refusal):
                lines: list[Action] = [LogLine(text=f"no restart: {refusal}", warns=True)] if refusal else []
                return lines + self._settle(report, now_s)
            case FailJob(report=report):
                return self._fail("", report, now_s)
            case Repeat(next_attempt=next_attempt):
                self._attempt = AttemptState(next_attempt, {self._me, *self._followers}, now_s)
                self.barrier.begin(now_s)
                return [Send(hosts=self._followers, message=next_attempt), next_attempt]
            case AwaitEnds():
                self._attempt.awaits_all_ends = True
        return []

    def _settle(self, report: EndReport, now_s: float) -> list[Action]:
        """End the job with *report*."""
        self.verdict = report = self._decider.complete_verdict(self._attempt, report)
        self._settled_s = now_s
        actions: list[Action] = [Send(hosts=self._followers, message=Verdict(report=report))]
        if report.failed and self._attempt.failing_s is None:
            actions.append(make_event(report))
        actions.append(JobEnded())
        if self.awaited:
            who, fate = name_hosts(list(self.awaited)), "has failed" if report.failed else "was stopped"
            most_s = LINGER_S if self._stopped_s is None else min(LINGER_S, self._times.grace_s)
            actions.append(LogLine(text=f"waiting up to {most_s:g} s for {who}, to say that the job {fate}"))
        return actions

    def _all_but(self, host: str) -> tuple[str, ...]:
        return tuple(follower for follower in self._followers if follower != host)

    # --- time

    def _due_soonest(self, now_s: float) -> None:
        """Have `tick` called at the next time at which something may change, if that is sooner than was planned."""
        attempt = self._attempt
        ends = [*self.barrier.due_s(), *map(self.members.back_by_s, self.members.away)]
        ends += self._decider.due_s(attempt, self._stopped_s)
        if self._stopped_s is not None:
            ends.append(self._stopped_s + AGREE_S)
        if attempt.unfinished.due_s is not None:
            ends.append(attempt.unfinished.due_s)
        self._timer.bring_forward(min((end for end in ends if end > now_s), default=self._timer.due_s))

    def _plan_next(self, now_s: float) -> None:
        self._timer.due_s = now_s + self._times.heartbeat_s
        if self.verdict is None:
            self._due_soonest(now_s)

    def _forgive_own_pause(self, now_s: float) -> None:
        pause_s = self._timer.note_tick(self._times.heartbeat_s, now_s)
        if pause_s:
            self.members.forgive_pause(pause_s, now_s)
            if self._attempt.failing_s is not None:
                self._attempt.failing_s = min(self._attempt.failing_s + pause_s, now_s)


_Handle = Callable[[Leader, str, Any, float, int], list[Action]]
# By type: a chain of `isinstance` costs 0.1 us for each Record that does not fit.
_AT_ANY_TIME: dict[type, _Handle] = {
    Ping: Leader._on_ping,
    Bye: Leader._on_bye,
    Stop: Leader._on_stop,
    Attempt: Leader._on_attempt,
}
# These count while the job has no verdict, and only if they belong to the attempt that runs.
_DURING_AN_ATTEMPT: dict[type, _Handle] = {
    Ready: Leader._on_ready,
    NotReady: Leader._on_not_ready,
    HostEnded: Leader._on_ended,
    Failing: Leader._on_failing,
    OwnFailure: Leader._on_own_failure,
    CommonStep: Leader._on_step,
    Idle: Leader._on_idle,
    UnfinalizedRank: Leader._on_unfinalized_rank,
    Launch: Leader._on_launch,
    DaemonEnded: Leader._on_daemon_ended,
    LeaderDone: Leader._on_leader_done,
    RankDone: Leader._on_rank_done,
    RanksEnded: Leader._on_ranks_ended,
    RankStepTimes: Leader._on_step_times,
    HostOwnWork: Leader._on_own_work,
    TraceRanks: Leader._on_trace,
}
