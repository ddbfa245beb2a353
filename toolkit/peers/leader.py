"""Pure: the leader's side of the protocol: the order in which a job starts, stops, fails, restarts and ends.

members.py knows which hosts are connected, barrier.py when all may start, failures.py the hosts' reports of a failure,
hang.py whether all of them are inactive.

The leader's own host is a member like any other; its messages also come by `heard`. The cost of one host's message must
not depend on the number of hosts: with 10,000 hosts every message may come 10,000 times within a second.
"""

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
    NextAttempt,
    Stop,
    StopStep,
)
from toolkit.job.outcome import UNFINISHED_S
from toolkit.job.restart import Budget, Failure, Restart, Steps
from toolkit.peers.barrier import StartBarrier
from toolkit.peers.failures import FailureReports, blamed
from toolkit.peers.hang import HangWatch
from toolkit.peers.members import Members
from toolkit.peers.messages import (
    Attempt,
    Bye,
    EndReport,
    Failing,
    Go,
    HostEnded,
    Idle,
    Left,
    Message,
    OwnFailure,
    Ping,
    Pong,
    Ready,
    Rested,
    Step,
    StepTimes,
    Verdict,
    Waits,
    Welcome,
)
from toolkit.peers.protocol import (
    AGREE_S,
    ANSWER_S,
    EARLY_S,
    FAREWELL_S,
    HANG_ANSWER_S,
    LINGER_S,
    RECONNECT_S,
    RESTART_S,
    STOPPED_S,
    Action,
    HostStepTimes,
    LogLine,
    Send,
    Timeouts,
)
from toolkit.peers.reports import (
    event_of,
    hung,
    light,
    named,
    not_ended,
    other_key,
    shared,
    stopped,
    vanished,
    with_cause,
)

# The furthest that a rank can have come.
FURTHEST = Steps(seen=True, highest=1 << 62)


class Leader:
    """Takes messages, connection changes and the time; returns actions. *restarts*: how many the job may have.
    *survey*: the job starts only after `surveyed` was called."""

    def __init__(
        self, hosts: tuple[str, ...], times: Timeouts, now_s: float, *, restarts: int = 0, survey: bool = False
    ) -> None:
        self._me = hosts[0]
        self._hosts = hosts
        self._followers = hosts[1:]
        self._times = times.among(len(hosts))
        self.members = Members(self._followers, self._times.heartbeat_timeout_s)
        self.barrier = StartBarrier(hosts, self._times.join_s, now_s, survey=survey)
        # What the job was told: for hosts that join or vanish later. The stop machine (supervise/stop_machine.py),
        # which hears of the stop as an event, ends this host's processes.
        self._stop: Stop | None = None
        self._stopped_s: float | None = None
        self._settled_s: float | None = None
        self._ticked_s = now_s
        self._due_s = now_s
        self._budget = Budget(allowed=restarts)
        # By follower: the attempt to which the messages on its connection belong.
        self._at: dict[str, int] = {}
        self.verdict: EndReport | None = None
        self._begin(None, {self._me}, now_s)

    def _begin(self, again: NextAttempt | None, hosts: set[str], now_s: float) -> None:
        """Begin the next attempt, with *hosts*; messages of the one before no longer count."""
        self._again = again
        self._attempt = again.restart.attempt if again is not None else 0
        # Of the hosts that joined and have not vanished: those that have not ended, and those that have not answered.
        self._unended = set(hosts)
        self._untold = set(hosts)
        self.barrier.begin(now_s)
        self._hang = HangWatch(now_s)
        self._failures = FailureReports()
        # When a rank ended without MPI_Finalize; by host with such a rank: how many of its ranks live.
        self._left_s: float | None = None
        self._ranks_left: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._agreed: Step | None = None
        self._ended: dict[str, EndReport] = {}
        self._launches: dict[str, Launch] = {}
        self._over: LeaderDone | None = None
        self._resting: set[str] = set()
        self._rested: Rested | None = None
        self._came = Steps()
        self._first_end_s: float | None = None
        self._failing_s: float | None = None
        # True while the leader waits for all hosts to end, because the failure may be worth another attempt.
        self._hopes = False

    # --- called by the link

    def turn_away(self, host: str, now_ns: int) -> tuple[Message, ...]:
        """Return the messages for a second `train` of *host*: the verdict if there is one, else a request to end."""
        report = self.verdict
        if report is None or not report.failed:
            cause = f"another train of this job is already host {host}: this one started second, or again"
            report = with_cause(vanished(host, "", now_ns), text=cause)
        return self._welcome(now_ns), Verdict(report=report)

    def _welcome(self, now_ns: int) -> Welcome:
        return Welcome(beat_s=self._times.heartbeat_s, patience_s=self._times.heartbeat_timeout_s, leader_ns=now_ns)

    def surveyed(self, found: dict[str, frozenset[str]], now_s: float) -> list[Action]:
        """Take the addresses of each host, as far as this host's look-up found them."""
        self.barrier.surveyed(found)
        return self._start(now_s)

    def joined(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        """Handle a new connection on which *host* has proved itself, its first or a later one."""
        if self.members.joined(host, now_s):
            self._unended.add(host)
            self._untold.add(host)
        self._hang.forget(host)
        self._at[host] = 0
        messages: list[Message] = [self._welcome(now_ns)]
        if self.verdict is not None:
            messages.append(Verdict(report=self.verdict))
        else:
            messages += [message for message in (self._again, self._stop, self._agreed) if message is not None]
            worst = self._failures.worst
            messages += [Failing(report=light(worst))] if self._failing_s is not None and worst is not None else []
            messages += [Go()] if self.barrier.opened else []
            late = (self._launches.get(host), self._over, self._rested)
            messages += [message for message in late if message is not None]
        return [Send(hosts=(host,), message=message) for message in messages]

    def left(self, host: str, now_s: float) -> list[Action]:
        """Handle the loss of *host*'s connection; it has a moment to reconnect."""
        if self.members.left(host, now_s):
            self._due(now_s + RECONNECT_S)
        return []

    def heard(self, host: str, message: Message, now_s: float, now_ns: int) -> list[Action]:
        """Handle an authenticated message from *host*, which may be the leader's own host."""
        self.members.heard(host, now_s)
        if isinstance(message, Ping):
            return [Send(hosts=(host,), message=Pong(sent_ns=message.sent_ns, leader_ns=now_ns))]
        if isinstance(message, Bye):
            self.members.said_bye(host)
            return []
        if isinstance(message, Stop):
            return self._on_stop(message, host, now_s)
        if self.verdict is not None:
            return []
        if isinstance(message, Attempt):
            self._at[host] = message.number
        if host != self._me and self._at.get(host, 0) != self._attempt:
            return []
        if isinstance(message, Ready):
            self.barrier.is_ready(host)
            return self._start(now_s)
        if isinstance(message, HostEnded):
            self._came = self._came.and_those(message.steps)
            return self._on_ended(host, message.report, now_s)
        if isinstance(message, Waits):
            self.barrier.waits(host, message.needs)
            return []
        if isinstance(message, Failing):
            return self._fail(host, message.report, now_s, whole=message.whole)
        if isinstance(message, OwnFailure):
            return self._on_answer(host, message.report, now_s)
        if isinstance(message, Step):
            self._steps[host] = message.step
            return self._agree(now_s)
        if isinstance(message, Idle):
            return self._on_idle(host, message, now_s, now_ns)
        if isinstance(message, Left):
            return self._on_left(host, message, now_s)
        if isinstance(message, Launch):
            self._launches[message.host] = message
            return [Send(hosts=(message.host,), message=message)]
        if isinstance(message, DaemonEnded):
            return [msgspec.structs.replace(message, host=host)]
        if isinstance(message, LeaderDone):
            self._over = message
            return [Send(hosts=self._followers, message=message)]
        if isinstance(message, Rested):
            self._resting.add(host)
            self._hang.moved(now_s)
            return self._rest()
        if isinstance(message, StepTimes):
            return [HostStepTimes(host=host, times=message.times)]
        return []

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """Apply what depends on time. Call it when `next_s` is 0: a later call means that this process was paused."""
        self._forgive_own_pause(now_s)
        actions: list[Action] = []
        if self.verdict is None:
            actions = self._check_membership(now_s, now_ns)
            for host in self._followers:
                if host in self._unended or (self._hopes and host not in self.members.gone):
                    actions += self._look_after(host, now_s, now_ns)
            actions += self._miss_the_left(now_s, now_ns)
            actions += self._agree(now_s) + self._decide(now_s)
        self._plan_next(now_s)
        return actions

    def next_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return max(self._due_s - now_s, 0.0)

    def finished(self, now_s: float) -> bool:
        """True once there is a verdict, and every connected host has taken it or had time to."""
        if self.verdict is None or self._settled_s is None:
            return False
        wait_s = LINGER_S if self.awaited else FAREWELL_S if self.members.here - self.members.gone else 0.0
        return now_s >= self._settled_s + wait_s

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that have never joined and should still learn that the job has failed."""
        worth = self.verdict is not None and self.verdict.failed and self._stop is None and not self._timed_out
        if not worth:
            return ()
        without_key = self.members.without_key
        return tuple(host for host in self._followers if host in without_key)

    # --- internal

    @property
    def _timed_out(self) -> bool:
        return self._settled_s is not None and self.barrier.ended(self._settled_s)

    def _start(self, now_s: float) -> list[Action]:
        """Start the main phase if every host is ready."""
        if self._failing_s is not None or not self.barrier.complete:
            return []
        conflict = self.barrier.conflict()
        if conflict is not None:
            return self._fail("", conflict, now_s)
        self.barrier.opened = True
        return [Send(hosts=self._followers, message=Go()), AllReady()]

    def _on_stop(self, message: Stop, host: str, now_s: float) -> list[Action]:
        if self._stop is not None:
            return []
        self._stop = message
        self._stopped_s = now_s
        self._due(now_s + AGREE_S)
        if self.verdict is not None:
            return []
        actions: list[Action] = [Send(hosts=self._but(host), message=message)]
        if host != self._me:
            actions.append(message)
        return actions

    def _agree(self, now_s: float) -> list[Action]:
        """Decide at which step all stop, once every host that can has reported its step."""
        if self._agreed is not None or self._stopped_s is None or not self._steps:
            return []
        if now_s < self._stopped_s + AGREE_S and (
            len(self._steps) < len(self._unended) or not self._unended <= self._steps.keys()
        ):
            return []
        step = max(self._steps.values())
        self._agreed = Step(step=step)
        return [Send(hosts=self._followers, message=self._agreed), StopStep(step=step)]

    def _on_answer(self, host: str, report: EndReport | None, now_s: float) -> list[Action]:
        if report is not None:
            self._failures.note(host, report)
        if not self._failures.is_hang or self._failures.has_stacks_of(host):
            self._untold.discard(host)
        return self._fail(host, report, now_s) if report is not None and report.failed else self._decide(now_s)

    def _on_idle(self, host: str, message: Idle, now_s: float, now_ns: int) -> list[Action]:
        self._hang.heard(host, message)
        if self._failing_s is not None or self._stop is not None:
            return []
        idle_s = self._hang.idle_s(self._unended, self._resting, now_s)
        if idle_s is None:
            return []
        if not self._hang.stops(self._unended - self._resting):
            self._hang = HangWatch(now_s)
            noticed = HangNoticed(seconds=idle_s)
            return [Send(hosts=self._followers, message=noticed), noticed]
        return self._fail("", hung(self._me, idle_s, now_ns), now_s)

    def _on_left(self, host: str, message: Left, now_s: float) -> list[Action]:
        """Note that a rank ended with 0 without MPI_Finalize: the others wait for it, unless they end soon."""
        self._failures.note_early(message.early)
        self._ranks_left[host] = message.ranks_left
        if self._left_s is None:
            self._left_s = now_s
            self._due(now_s + UNFINISHED_S)
        return []

    def _miss_the_left(self, now_s: float, now_ns: int) -> list[Action]:
        """End the job if its ranks wait for one that ended without MPI_Finalize."""
        if self._left_s is None or now_s < self._left_s + UNFINISHED_S:
            return []
        if self._failing_s is not None or self._stop is not None or self._failures.early is None:
            return []
        if not any(self._ranks_left.get(host) != 0 for host in self._unended):
            return []
        lost = EndReport(
            host=self._me,
            exit_code=1,
            cause=Cause(failed_ns=now_ns, blame="user", kind="ExecuteUserScriptError", lost=True),
        )
        return self._fail("", blamed(lost, self._failures.early), now_s)

    def _on_ended(self, host: str, report: EndReport, now_s: float) -> list[Action]:
        self._ended[host] = report
        self._hang.moved(now_s)
        self._failures.note_early(report.early)
        self._unended.discard(host)
        self._untold.discard(host)
        if self._first_end_s is None:
            self._first_end_s = now_s
            self._due(now_s + self._times.finish_timeout_s)
        if not report.failed:
            return [*self._rest(), *self._decide(now_s)]
        return self._fail(host, report, now_s)

    def _rest(self) -> list[Action]:
        """When no rank of the job lives any more, report it once to the hosts that wait for it."""
        if not self._resting or self._rested is not None or not self._unended <= self._resting:
            return []
        self._rested = Rested()
        return [Send(hosts=self._followers, message=self._rested), AllRanksEnded()]

    def _fail(self, host: str, report: EndReport, now_s: float, *, whole: bool = True) -> list[Action]:
        """Take the report of a failure from *host* ("": found by the leader itself); forward the first one."""
        self._failures.take(host, report, whole=whole)
        if whole and not self._failures.is_hang:
            self._untold.discard(host)
        if self._failing_s is not None:
            return self._decide(now_s)
        self._failing_s = now_s
        self._due(now_s + self._answer_s)
        actions: list[Action] = [Send(hosts=self._but(host), message=Failing(report=light(report)))]
        if host != self._me:
            actions.append(event_of(report))
        return actions + self._decide(now_s)

    def _check_membership(self, now_s: float, now_ns: int) -> list[Action]:
        if self.barrier.opened or self._failing_s is not None or self._stop is not None:
            return []
        refused = self.members.with_other_key(now_s)
        if refused is not None:
            return self._fail("", other_key(refused), now_s)
        overdue = self.barrier.overdue(self.members.absent, now_s, now_ns)
        if overdue is not None:
            return self._settle(overdue, now_s)
        reminder = self.barrier.reminder(self.members.absent, now_s)
        return [LogLine(text=reminder)] if reminder else []

    def _look_after(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        lost = self.members.lost(host, now_s, now_ns)
        if lost is None:
            return []
        how, at_ns, left_s = lost
        self._unended.discard(host)
        self._untold.discard(host)
        left_first = left_s is not None and self._stopped_s is not None and left_s < self._stopped_s
        if self._stop is not None and not left_first:
            self._ended[host] = stopped(host, self._stop.signal, f"vanished while the job was stopping: {how}")
            return self._rest()
        if self.members.paused_s > RECONNECT_S:
            how += f" (host {self._me} itself had been paused for {self.members.paused_s:.1f} s)"
        return self._fail(host, self._failures.vanished(host, how, at_ns, of=self._followers), now_s)

    def _decide(self, now_s: float) -> list[Action]:
        if self.verdict is not None:
            return []
        if self._failing_s is not None:
            since_s = now_s - self._failing_s
            # A host whose connection is lost may be the cause of all the others' collateral failures.
            late = since_s >= self._answer_s + (RECONNECT_S if self.members.away else 0.0)
            found = self._failures.worst
            assert found is not None
            worst = blamed(found, self._failures.early)
            # All hosts have reported. A cause that only its consequences show waits EARLY_S for a direct one.
            known = not self._untold and worst.cause.primary and (found.cause.primary or since_s >= EARLY_S)
            if late or known:
                return self._settle_or_repeat(worst, self._failing_s, now_s)
            return []
        if not self._unended:
            return self._settle(self._together(), now_s)
        if self._stopped_s is not None and now_s >= self._stopped_s + self._times.grace_s + STOPPED_S:
            return self._settle(self._together(), now_s)
        if self._stop is None and self._times.finish_timeout_s > 0 and self._first_end_s is not None:
            return self._end_late(self._first_end_s + self._times.finish_timeout_s, now_s)
        return []

    def _settle_or_repeat(self, worst: EndReport, failing_s: float, now_s: float) -> list[Action]:
        """End the job with *worst*, or begin another attempt; while that is possible, wait for every host to end."""
        if not self._budget.allowed:
            return self._settle(worst, now_s)
        failure = Failure(
            kind=worst.cause.kind,
            exit_code=worst.exit_code,
            preempted=worst.cause.preempted,
            began=self.barrier.opened,
            stopped=self._stop is not None,
            gone=tuple(sorted(self.members.gone)),
        )
        # How far the ranks came is known only when all hosts have ended.
        away = self.members.away
        awaited = bool(self._unended or away)
        refusal = self._budget.refusal(failure, FURTHEST if awaited else self._came)
        if awaited and not refusal and now_s < failing_s + self._times.grace_s + RESTART_S:
            self._hopes = True
            return []
        if awaited and not refusal:
            refusal = f"{named(sorted(self._unended.union(away)))} had not ended"
        if refusal:
            return [LogLine(text=f"no restart: {refusal}", warns=True), *self._settle(worst, now_s)]
        return self._repeat(worst, failure, now_s)

    def _repeat(self, worst: EndReport, failure: Failure, now_s: float) -> list[Action]:
        worst = shared(self._failures.whole(worst, self._hosts), len(self._hosts))
        restart = Restart(
            attempt=self._attempt + 1,
            host="" if worst.of_job else worst.host,
            cause=worst.cause.text,
            process=worst.cause.process,
            rank=worst.cause.rank,
            exit_code=worst.exit_code,
            failed_ns=worst.cause.failed_ns,
            counted=self._budget.counts(failure, self._came),
        )
        self._budget = self._budget.after(failure, self._came)
        again = NextAttempt(restart=restart, used=self._budget.used, allowed=self._budget.allowed)
        self._begin(again, set(self._hosts), now_s)
        return [Send(hosts=self._followers, message=again), again]

    @property
    def _answer_s(self) -> float:
        return HANG_ANSWER_S if self._failures.is_hang else ANSWER_S

    def _end_late(self, ends_s: float, now_s: float) -> list[Action]:
        if now_s < ends_s:
            return []
        missing = [host for host in self._hosts if host in self._unended]
        return self._fail("", not_ended(missing, self._times.finish_timeout_s), now_s)

    def _together(self) -> EndReport:
        """Return the end of a job in which nothing failed; after a stop, the worst of the hosts' ends."""
        ends = list(self._ended.values())
        if self._stop is not None:
            late = f"had not ended {self._times.grace_s + STOPPED_S:g} s after the stop"
            ends += [stopped(host, self._stop.signal, late) for host in self._unended]
        worst = max(ends, key=lambda report: report.exit_code)
        return worst if worst.exit_code else EndReport(host=self._me, exit_code=0, stopped=self._stop is not None)

    def _settle(self, report: EndReport, now_s: float) -> list[Action]:
        self.verdict = report = shared(self._failures.whole(report, self._hosts), len(self._hosts))
        self._settled_s = now_s
        actions: list[Action] = [Send(hosts=self._followers, message=Verdict(report=report))]
        if report.failed and self._failing_s is None:
            actions.append(event_of(report))
        actions.append(JobEnded())
        if self.awaited:
            who = named(list(self.awaited))
            actions.append(LogLine(text=f"waiting up to {LINGER_S:g} s for {who}, to say that the job has failed"))
        return actions

    def _but(self, host: str) -> tuple[str, ...]:
        return tuple(each for each in self._followers if each != host)

    # --- time

    def _due(self, at_s: float) -> None:
        self._due_s = min(self._due_s, at_s)

    def _plan_next(self, now_s: float) -> None:
        self._due_s = now_s + self._times.heartbeat_s
        if self.verdict is not None:
            return
        ends = [*self.barrier.due_s(), *map(self.members.back_by_s, self.members.away)]
        if self._failing_s is not None:
            ends_s = self._failing_s + self._answer_s
            ends += [self._failing_s + EARLY_S, ends_s, ends_s + RECONNECT_S]
        if self._stopped_s is not None:
            ends += [self._stopped_s + AGREE_S, self._stopped_s + self._times.grace_s + STOPPED_S]
        if self._left_s is not None:
            ends.append(self._left_s + UNFINISHED_S)
        if self._first_end_s is not None and self._times.finish_timeout_s > 0:
            ends.append(self._first_end_s + self._times.finish_timeout_s)
        self._due(min((end for end in ends if end > now_s), default=self._due_s))

    def _forgive_own_pause(self, now_s: float) -> None:
        pause_s = now_s - self._due_s
        if self._due_s > self._ticked_s and pause_s > self._times.heartbeat_s:
            self.members.forgive(pause_s, now_s)
            if self._failing_s is not None:
                self._failing_s = min(self._failing_s + pause_s, now_s)
        self._ticked_s = now_s
