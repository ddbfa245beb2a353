"""Pure: the leader's side of the roll call. Who is there, who is ready, who failed, who is gone, and the job's end.

Its own host is a member like any other; what it says comes in by `heard`, too. Whatever comes from one host costs the
same however many there are: with 10,000 of them everything is said 10,000 times within a second.
"""

import msgspec

from toolkit.job.outcome import UNFINISHED_S, EarlyExit
from toolkit.job.restart import Budget, Failure, Restart, Steps
from toolkit.job.stuck import Stuck, culprits, told
from toolkit.peers.messages import (
    Again,
    Bye,
    DaemonEnded,
    Ended,
    Evidence,
    Failing,
    Go,
    Idle,
    Launch,
    Left,
    Message,
    Over,
    Ping,
    Pong,
    Ready,
    Report,
    Rested,
    Round,
    Stalled,
    Step,
    StepTimes,
    Stop,
    Verdict,
    Waits,
    Welcome,
)
from toolkit.peers.roll import (
    AGAIN_S,
    AGREE_S,
    BREAK_NS,
    CLAIM_S,
    EARLY_S,
    EVIDENCE_S,
    FAREWELL_S,
    HANG,
    HANG_EVIDENCE_S,
    HUNG,
    LEAST_CLAIMS,
    LINGER_S,
    RECONNECT_S,
    STOPPED_S,
    TELL_EVERY_S,
    VANISHED,
    Action,
    AllRested,
    FailHere,
    Landed,
    Repeat,
    Say,
    Send,
    Settled,
    StalledHere,
    Start,
    StopAt,
    StopHere,
    Timed,
    Times,
    blamed,
    broken,
    in_vain,
    is_of_one_end,
    light,
    named,
    news,
    of_what,
    other_key,
    shared,
    shared_address,
    silent,
    twins,
    vanished,
    with_abort,
    worse,
)

# As far as any rank can have come.
FURTHEST = Steps(seen=True, highest=1 << 62)


class Leader:
    """Takes what happens and answers with what is to be done. *restarts*: how many the job may have; *survey*: the job
    starts once `surveyed` was told."""

    def __init__(
        self, hosts: tuple[str, ...], times: Times, now_s: float, *, restarts: int = 0, survey: bool = False
    ) -> None:
        self._me = hosts[0]
        self._hosts = hosts
        self._followers = hosts[1:]
        self._times = times.among(len(hosts))
        self._marks: dict[str, str] = {}
        self._heard_s: dict[str, float] = {}
        self._away_s: dict[str, float] = {}
        # Of those: when somebody last connected from their address.
        self._knocked_s: dict[str, float] = {}
        # Followers that never came; those declared gone; those that are there and have not said Bye.
        self._absent = set(hosts[1:])
        self._gone: set[str] = set()
        self._here: set[str] = set()
        # Hosts that come through a proxy, or a translation of their address.
        self._proxied: set[str] = set()
        # Of the hosts' addresses: whether they are being looked up, and the network namespace of each host.
        self._surveys = survey
        self._addresses: dict[str, frozenset[str]] = {}
        self._spaces: dict[str, str] = {}
        # By host that has not come: since when its machine gives proofs made with another key, and how many it gave.
        self._claims: dict[str, tuple[float, int]] = {}
        self._stop: Stop | None = None
        self._stopped_s: float | None = None
        self._settled_s: float | None = None
        self._ticked_s = now_s
        self._due_s = now_s
        self._paused_s = 0.0
        self._budget = Budget(allowed=restarts)
        # By follower: the round that what it says on its connection is of.
        self._at: dict[str, int] = {}
        self.verdict: Report | None = None
        self._begin(None, {self._me}, now_s)

    def _begin(self, again: Again | None, hosts: set[str], now_s: float) -> None:
        """Begin the next round, with *hosts*; what was said in the one before does not count any more."""
        self._again = again
        self._round = again.restart.round if again is not None else 0
        # Of the hosts that came and are not gone: those that have not ended, and those that have not said what failed.
        self._unended = set(hosts)
        self._untold = set(hosts)
        self._ready: set[str] = set()
        # By host that is not ready: what it waits for.
        self._waits: dict[str, str] = {}
        self._idle: dict[str, Idle] = {}
        # When ranks of a host ended, or stacks were written: nobody's silence counts from before.
        self._moved_s = now_s
        # Since when a rank has left without MPI_Finalize; by host that had one: how many of its ranks live.
        self._left_s: float | None = None
        self._ranks_left: dict[str, int] = {}
        self._stuck: dict[str, tuple[Stuck, ...]] = {}
        self._steps: dict[str, int] = {}
        self._agreed: Step | None = None
        self._ended: dict[str, Report] = {}
        self._launches: dict[str, Launch] = {}
        self._over: Over | None = None
        self._resting: set[str] = set()
        self._rested: Rested | None = None
        self._came = Steps()
        self._worst: Report | None = None
        self._early: EarlyExit | None = None
        # Of the host on which mpirun runs, where that says why a rank of another host aborted.
        self._said: Report | None = None
        # By host: its failure in short; the whole report follows, if the network lets it.
        self._first_news: dict[str, Report] = {}
        # By host: the last report of a traceback.
        self._same: dict[str, Report] = {}
        self._started = False
        self._began_s = now_s
        self._first_end_s: float | None = None
        self._failing_s: float | None = None
        # True while all hosts are waited for, because the failure may be worth another round.
        self._hopes = False
        self._next_tell_s = now_s + TELL_EVERY_S

    # --- what comes from the link

    def knows_other(self, host: str, mark: str) -> bool:
        """True if *host* has joined before as another process: a restarted or a second `train` takes nobody's place."""
        return self._marks.setdefault(host, mark) != mark

    def turn_away(self, host: str, now_ns: int) -> tuple[Message, ...]:
        """Return what a second `train` of *host* is told: how the job ended if that is known, else to end."""
        report = self.verdict
        if report is None or not report.failed:
            cause = f"another train of this job is already host {host}: this one started second, or again"
            report = msgspec.structs.replace(vanished(host, "", now_ns), cause=cause)
        return self._welcome(now_ns), Verdict(report=report)

    def _welcome(self, now_ns: int) -> Welcome:
        return Welcome(beat_s=self._times.beat_s, patience_s=self._times.patience_s, leader_ns=now_ns)

    def placed(self, host: str, space: str) -> None:
        """*host* is in the network namespace *space*."""
        self._spaces[host] = space

    def came(self, host: str, *, direct: bool) -> None:
        """*host* has connected; not *direct*: through a proxy, or from an address that is translated on the way.

        What stands between may break the connection, and take new ones that do not come through, while both ends live.
        """
        (self._proxied.discard if direct else self._proxied.add)(host)

    def surveyed(self, found: dict[str, frozenset[str]], now_s: float) -> list[Action]:
        """Each host has these addresses, as far as they are known here."""
        self._surveys = False
        self._addresses = found
        return self._start(now_s)

    def joined(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        """*host* has proved itself on a new connection; it may be back after a break."""
        if host in self._absent:
            self._absent.discard(host)
            self._claims.pop(host, None)
            self._unended.add(host)
            self._untold.add(host)
        self._here.add(host)
        self._away_s.pop(host, None)
        self._knocked_s.pop(host, None)
        self._idle.pop(host, None)
        self._at[host] = 0
        self._heard_s[host] = now_s
        messages: list[Message] = [self._welcome(now_ns)]
        if self.verdict is not None:
            messages.append(Verdict(report=self.verdict))
        else:
            messages += [message for message in (self._again, self._stop, self._agreed) if message is not None]
            messages += [Failing(report=light(self._worst))] if self._failing_s is not None and self._worst else []
            messages += [Go()] if self._started else []
            late = (self._launches.get(host), self._over, self._rested)
            messages += [message for message in late if message is not None]
        return [Send(hosts=(host,), message=message) for message in messages]

    def left(self, host: str, now_s: float) -> list[Action]:
        """*host*'s connection broke; it has a moment to come back."""
        if host in self._gone:
            self._here.discard(host)
        elif host in self._here:
            self._away_s[host] = now_s
            self._due(now_s + RECONNECT_S)
        return []

    def claimed(self, host: str, now_s: float) -> None:
        """The machine that has *host*'s address gave a proof made with another key."""
        if host in self._absent:
            first_s, count = self._claims.get(host, (now_s, 0))
            self._claims[host] = (first_s, count + 1)

    @property
    def away(self) -> tuple[str, ...]:
        """The hosts whose connection is broken and that may come back."""
        return tuple(self._away_s)

    def knocked(self, host: str, now_s: float) -> None:
        """Somebody connects from the address of *host*, which is away: while that goes on it may be back within the
        patience, though each new connection is cut, too."""
        self._knocked_s[host] = now_s

    def heard(self, host: str, message: Message, now_s: float, now_ns: int) -> list[Action]:
        """Take a message of *host*, proved to be its own (the leader's own host too)."""
        self._heard_s[host] = now_s
        if isinstance(message, Ping):
            return [Send(hosts=(host,), message=Pong(sent_ns=message.sent_ns, leader_ns=now_ns))]
        if isinstance(message, Bye):
            self._here.discard(host)
            return []
        if isinstance(message, Stop):
            return self._on_stop(message, host, now_s)
        if self.verdict is not None:
            return []
        if isinstance(message, Round):
            self._at[host] = message.round
        if host != self._me and self._at.get(host, 0) != self._round:
            return []
        if isinstance(message, Ready):
            self._ready.add(host)
            self._waits.pop(host, None)
            return self._start(now_s)
        if isinstance(message, Waits):
            self._waits[host] = message.needs
            return []
        if isinstance(message, Failing):
            return self._fail(host, message.report, now_s, whole=message.whole)
        if isinstance(message, Evidence):
            return self._on_evidence(host, message.report, now_s)
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
            return [Landed(host=host, code=message.code)]
        if isinstance(message, Over):
            self._over = message
            return [Send(hosts=self._followers, message=message)]
        if isinstance(message, Rested):
            self._resting.add(host)
            self._moved_s = now_s
            return self._rest()
        if isinstance(message, StepTimes):
            return [Timed(host=host, times=message.times)]
        if isinstance(message, Ended):
            self._came = self._came.and_those(message.steps)
            return self._on_ended(host, message.report, now_s)
        return []

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """See what time alone has brought about. Call when `next_s` is 0; later was a pause of our own."""
        self._forgive_own_pause(now_s)
        actions: list[Action] = []
        if self.verdict is None:
            actions = self._roll_call(now_s, now_ns)
            for host in self._followers:
                if host in self._unended or (self._hopes and host not in self._gone):
                    actions += self._look_after(host, now_s, now_ns)
            actions += self._miss_the_left(now_s, now_ns)
            actions += self._agree(now_s) + self._decide(now_s)
        self._plan_next(now_s)
        return actions

    def next_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return max(self._due_s - now_s, 0.0)

    def finished(self, now_s: float) -> bool:
        """True once there is a verdict, and every host that could take it has, or had time to."""
        if self.verdict is None or self._settled_s is None:
            return False
        wait_s = LINGER_S if self.awaited else FAREWELL_S if self._here - self._gone else 0.0
        return now_s >= self._settled_s + wait_s

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that have never come and should learn that the job has failed."""
        worth = self.verdict is not None and self.verdict.failed and self._stop is None and not self._timed_out
        return tuple(host for host in self._followers if host in self._absent - self._claims.keys()) if worth else ()

    # --- inside

    @property
    def _timed_out(self) -> bool:
        return self._settled_s is not None and self._settled_s >= self._began_s + self._times.join_s

    def _start(self, now_s: float) -> list[Action]:
        """Let the main phase start, if every host is ready.

        Not where two have one address: MPI would start the ranks of both on one of them, others would wait for ranks
        that cannot be reached.
        """
        if self._started or self._surveys or self._failing_s is not None or len(self._ready) < len(self._hosts):
            return []
        found = twins(self._addresses, self._spaces)
        if found is not None:
            return self._fail("", shared_address(self._me, *found), now_s)
        self._started = True
        return [Send(hosts=self._followers, message=Go()), Start()]

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
            actions.append(StopHere(host=message.host, signal=message.signal))
        return actions

    def _agree(self, now_s: float) -> list[Action]:
        """Name the step at which all stop, once every host that can has said when it could."""
        if self._agreed is not None or self._stopped_s is None or not self._steps:
            return []
        if now_s < self._stopped_s + AGREE_S and (
            len(self._steps) < len(self._unended) or not self._unended <= self._steps.keys()
        ):
            return []
        step = max(self._steps.values())
        self._agreed = Step(step=step)
        return [Send(hosts=self._followers, message=self._agreed), StopAt(step=step)]

    def _on_evidence(self, host: str, report: Report | None, now_s: float) -> list[Action]:
        if report is not None and report.kind == HANG:
            self._stuck[host] = report.stuck
        if not self._hangs or host in self._stuck:
            self._untold.discard(host)
        self._note_early(report)
        if report is not None and report.said:
            self._said = report
        return self._fail(host, report, now_s) if report is not None and report.failed else self._decide(now_s)

    @property
    def _hangs(self) -> bool:
        return self._worst is not None and self._worst.kind == HANG

    def _on_idle(self, host: str, message: Idle, now_s: float, now_ns: int) -> list[Action]:
        """A hang is one only if no host moves: one that does may be what the others wait for. One whose ranks have
        ended does not."""
        if message.seconds:
            self._idle[host] = message
        else:
            self._idle.pop(host, None)
        quiet = len(self._idle) + len(self._resting)
        if self._failing_s is not None or self._stop is not None or quiet < len(self._unended):
            return []
        at_work = self._unended - self._resting
        if not at_work or not at_work <= self._idle.keys():
            return []
        idle_s = min(now_s - self._moved_s, *(self._idle[host].seconds for host in at_work))
        if idle_s < max(self._idle[host].limit_s for host in at_work):
            return []
        if not any(self._idle[host].stops for host in at_work):
            self._idle, self._moved_s = {}, now_s
            return [Send(hosts=self._followers, message=Stalled(seconds=idle_s)), StalledHere(seconds=idle_s)]
        cause = f"no rank of any host has written or computed anything for {idle_s:.0f} s (TOOLKIT_STALL_S)"
        report = Report(
            host=self._me,
            exit_code=HUNG,
            primary=True,
            failed_ns=now_ns - int(idle_s * 1e9),
            blame="user",
            kind=HANG,
            cause=cause,
            idle_s=idle_s,
        )
        return self._fail("", report, now_s)

    def _on_left(self, host: str, message: Left, now_s: float) -> list[Action]:
        """A rank ended with 0 and without MPI_Finalize: the others wait for it, unless they end within a moment."""
        found = [each for each in (self._early, message.early) if each is not None]
        self._early = min(found, key=lambda each: each.at_ns)
        self._ranks_left[host] = message.ranks_left
        if self._left_s is None:
            self._left_s = now_s
            self._due(now_s + UNFINISHED_S)
        return []

    def _miss_the_left(self, now_s: float, now_ns: int) -> list[Action]:
        """End the job whose ranks wait for one that left."""
        if self._left_s is None or now_s < self._left_s + UNFINISHED_S:
            return []
        if self._failing_s is not None or self._stop is not None or self._early is None:
            return []
        if not any(self._ranks_left.get(host) != 0 for host in self._unended):
            return []
        lost = Report(
            host=self._me, exit_code=1, failed_ns=now_ns, blame="user", kind="ExecuteUserScriptError", lost=True
        )
        return self._fail("", blamed(lost, self._early), now_s)

    def _on_ended(self, host: str, report: Report, now_s: float) -> list[Action]:
        self._ended[host] = report
        self._moved_s = now_s
        self._note_early(report)
        self._unended.discard(host)
        self._untold.discard(host)
        if self._first_end_s is None:
            self._first_end_s = now_s
            self._due(now_s + self._times.end_s)
        if not report.failed:
            return [*self._rest(), *self._decide(now_s)]
        return self._fail(host, report, now_s)

    def _rest(self) -> list[Action]:
        """Say it once, to those who wait for it, when no rank of the job lives any more."""
        if not self._resting or self._rested is not None or not self._unended <= self._resting:
            return []
        self._rested = Rested()
        return [Send(hosts=self._followers, message=self._rested), AllRested()]

    def _fail(self, host: str, report: Report, now_s: float, *, whole: bool = True) -> list[Action]:
        """Take bad news from *host* ("": this roll call's own), and pass the first on."""
        self._note_early(report)
        first = self._first_news.get(host)
        if whole and first is not None and self._worst is first and is_of_one_end(first, report):
            self._worst = msgspec.structs.replace(report, failed_ns=first.failed_ns)
        else:
            self._worst = worse(self._worst, report)
        if report.same:
            self._same[report.host] = report
        if not whole:
            self._first_news[host] = report
        elif not self._hangs:
            self._untold.discard(host)
        if self._failing_s is not None:
            return self._decide(now_s)
        self._failing_s = now_s
        self._due(now_s + self._evidence_s)
        actions: list[Action] = [Send(hosts=self._but(host), message=Failing(report=light(report)))]
        if host != self._me:
            actions.append(FailHere(text=news(report), report=report))
        return actions + self._decide(now_s)

    def _note_early(self, report: Report | None) -> None:
        """Keep the first rank of the job that ended with 0."""
        found = [each for each in (self._early, report.early if report is not None else None) if each is not None]
        self._early = min(found, key=lambda each: each.at_ns, default=None)

    def _roll_call(self, now_s: float, now_ns: int) -> list[Action]:
        if self._started or self._failing_s is not None or self._stop is not None:
            return []
        absent = [host for host in self._followers if host in self._absent]
        busy = [host for host in self._followers if host not in self._absent and host not in self._ready]
        for host, (first_s, count) in self._claims.items():
            if count >= LEAST_CLAIMS and now_s >= first_s + CLAIM_S:
                return self._fail("", other_key(host), now_s)
        late_s = now_s - (self._began_s + self._times.join_s)
        untold = {self._me, *busy} - self._ready - self._waits.keys()
        # A host whose own wait ends at this moment says what it was for.
        if late_s >= (EVIDENCE_S if untold else 0.0):
            missing = [*absent, *busy] or [self._me]
            return self._settle(in_vain(missing, self._times.join_s, now_ns, came=not absent, waits=self._waits), now_s)
        if now_s >= self._next_tell_s:
            self._next_tell_s = now_s + TELL_EVERY_S
            ready = f"{named(busy)} to be ready" + of_what(busy, self._waits)
            parts = [f"{named(absent)} to join"] * bool(absent) + [ready] * bool(busy)
            if parts:
                return [Say(text="waiting for " + " and ".join(parts))]
        return []

    def _look_after(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        silent_s = now_s - self._heard_s[host]
        left_s = self._away_s.get(host)
        if now_s < (self._heard_s[host] + self._times.patience_s if left_s is None else self._back_by_s(host)):
            return []
        how, at_ns = silent(silent_s), now_ns - int(silent_s * 1e9)
        if left_s is not None:
            how, at_ns = broken(), max(at_ns, now_ns - int((now_s - left_s) * 1e9) - BREAK_NS)
        if host in self._away_s:
            self._here.discard(host)
        self._gone.add(host)
        self._away_s.pop(host, None)
        self._unended.discard(host)
        self._untold.discard(host)
        left_first = left_s is not None and self._stopped_s is not None and left_s < self._stopped_s
        if self._stop is not None and not left_first:
            cause = f"host {host} vanished while the job was stopping: {how}"
            code = 128 + self._stop.signal
            self._ended[host] = Report(host=host, exit_code=code, stopped=True, kind="Stopped", cause=cause)
            return self._rest()
        if self._paused_s > RECONNECT_S:
            how += f" (host {self._me} itself had been paused for {self._paused_s:.1f} s)"
        return self._fail(host, vanished(host, how, at_ns), now_s)

    def _back_by_s(self, host: str) -> float:
        """Return when *host*, whose connection is broken, must be back."""
        left_s = self._away_s[host]
        latest_s = max(self._heard_s[host] + self._times.patience_s, left_s + RECONNECT_S)
        if host in self._proxied:
            return latest_s
        return min(max(left_s, self._knocked_s.get(host, 0.0)) + RECONNECT_S, latest_s)

    def _decide(self, now_s: float) -> list[Action]:
        if self.verdict is not None:
            return []
        if self._failing_s is not None:
            since_s = now_s - self._failing_s
            # A host whose connection is broken may be the one that all the others' failures are echoes of.
            late = since_s >= self._evidence_s + (RECONNECT_S if self._away_s else 0.0)
            assert self._worst is not None
            worst = blamed(self._worst, self._early)
            # All have told. A cause that is known by its consequences only gives way to one that comes a moment later.
            known = not self._untold and worst.primary and (self._worst.primary or since_s >= EARLY_S)
            if late or known:
                return self._settle_or_repeat(worst, self._failing_s, now_s)
            return []
        if not self._unended:
            return self._settle(self._together(), now_s)
        if self._stopped_s is not None and now_s >= self._stopped_s + self._times.grace_s + STOPPED_S:
            return self._settle(self._together(), now_s)
        if self._stop is None and self._times.end_s > 0 and self._first_end_s is not None:
            return self._end_late(self._first_end_s + self._times.end_s, now_s)
        return []

    def _settle_or_repeat(self, worst: Report, failing_s: float, now_s: float) -> list[Action]:
        """End the job by *worst*, or begin another round; as long as that may be, wait for every host to end."""
        if not self._budget.allowed:
            return self._settle(worst, now_s)
        failure = Failure(
            kind=worst.kind,
            exit_code=worst.exit_code,
            preempted=worst.preempted,
            began=self._started,
            stopped=self._stop is not None,
            gone=tuple(sorted(self._gone)),
        )
        # Until all have ended, how far they came is not known.
        awaited = bool(self._unended or self._away_s)
        refusal = self._budget.refusal(failure, FURTHEST if awaited else self._came)
        if awaited and not refusal and now_s < failing_s + self._times.grace_s + AGAIN_S:
            self._hopes = True
            return []
        if awaited and not refusal:
            refusal = f"{named(sorted(self._unended | self._away_s.keys()))} had not ended"
        if refusal:
            return [Say(text=f"no restart: {refusal}", warns=True), *self._settle(worst, now_s)]
        return self._repeat(worst, failure, now_s)

    def _repeat(self, worst: Report, failure: Failure, now_s: float) -> list[Action]:
        worst = shared(self._whole(worst), len(self._hosts))
        restart = Restart(
            round=self._round + 1,
            host=worst.host,
            cause=worst.cause,
            process=worst.process,
            rank=worst.rank,
            exit_code=worst.exit_code,
            failed_ns=worst.failed_ns,
            counted=self._budget.counts(failure, self._came),
        )
        self._budget = self._budget.after(failure, self._came)
        again = Again(restart=restart, used=self._budget.used, allowed=self._budget.allowed)
        self._begin(again, set(self._hosts), now_s)
        repeat = Repeat(restart=restart, used=again.used, allowed=again.allowed)
        return [Send(hosts=self._followers, message=again), repeat]

    @property
    def _evidence_s(self) -> float:
        return HANG_EVIDENCE_S if self._hangs else EVIDENCE_S

    def _end_late(self, ends_s: float, now_s: float) -> list[Action]:
        if now_s < ends_s:
            return []
        missing = [host for host in self._hosts if host in self._unended]
        cause = f"{named(missing)} had not ended {self._times.end_s:g} s after the first host had (TOOLKIT_END_S)"
        report = Report(
            host=missing[0], exit_code=VANISHED, primary=True, blame="platform", kind="PlatformError", cause=cause
        )
        return self._fail("", report, now_s)

    def _together(self) -> Report:
        """Return the end of a job in which nothing failed: of a stop, the worst of the hosts' ends."""
        ends = list(self._ended.values())
        if self._stop is not None:
            for host in self._unended:
                cause = f"host {host} had not ended {self._times.grace_s + STOPPED_S:g} s after the stop"
                code = 128 + self._stop.signal
                ends.append(Report(host=host, exit_code=code, stopped=True, kind="Stopped", cause=cause))
        worst = max(ends, key=lambda report: report.exit_code)
        return worst if worst.exit_code else Report(host=self._me, exit_code=0, stopped=self._stop is not None)

    def _settle(self, report: Report, now_s: float) -> list[Action]:
        self.verdict = report = shared(self._whole(report), len(self._hosts))
        self._settled_s = now_s
        actions: list[Action] = [Send(hosts=self._followers, message=Verdict(report=report))]
        if report.failed and self._failing_s is None:
            actions.append(FailHere(text=news(report), report=report))
        actions.append(Settled(report=report))
        if self.awaited:
            who = named(list(self.awaited))
            actions.append(Say(text=f"waiting up to {LINGER_S:g} s for {who}, to say that the job has failed"))
        return actions

    def _whole(self, report: Report) -> Report:
        """Return *report* with what the hosts together know: of a hang where the ranks are, and how many more ranks, of
        all hosts, had ended with the same traceback."""
        if report.kind == HANG:
            found = {host: self._stuck.get(host, ()) for host in self._hosts}
            cause = "; ".join((report.cause, *told(found, alone=False)))
            accused = {host for host, _ in culprits(found)}
            # Where nobody is accused, or several are, the cause is the job's, and no host's.
            one = len(accused) == 1
            report = msgspec.structs.replace(
                report, cause=cause, host=accused.pop() if one else self._me, of_job=not one
            )
        report = with_abort(report, self._said)
        same = [each for each in self._same.values() if report.same and each.same == report.same]
        return msgspec.structs.replace(report, alike=max(sum(1 + each.alike for each in same) - 1, report.alike))

    def _but(self, host: str) -> tuple[str, ...]:
        return tuple(each for each in self._followers if each != host)

    # --- time

    def _due(self, at_s: float) -> None:
        self._due_s = min(self._due_s, at_s)

    def _plan_next(self, now_s: float) -> None:
        self._due_s = now_s + self._times.beat_s
        if self.verdict is not None:
            return
        ends = [self._back_by_s(host) for host in self._away_s]
        if not self._started:
            join_ends_s = self._began_s + self._times.join_s
            ends += [join_ends_s, join_ends_s + EVIDENCE_S, self._next_tell_s]
        if self._failing_s is not None:
            ends_s = self._failing_s + self._evidence_s
            ends += [self._failing_s + EARLY_S, ends_s, ends_s + RECONNECT_S]
        if self._stopped_s is not None:
            ends += [self._stopped_s + AGREE_S, self._stopped_s + self._times.grace_s + STOPPED_S]
        if self._left_s is not None:
            ends.append(self._left_s + UNFINISHED_S)
        if self._first_end_s is not None and self._times.end_s > 0:
            ends.append(self._first_end_s + self._times.end_s)
        self._due(min((end for end in ends if end > now_s), default=self._due_s))

    def _forgive_own_pause(self, now_s: float) -> None:
        pause_s = now_s - self._due_s
        if self._due_s > self._ticked_s and pause_s > self._times.beat_s:
            self._paused_s = max(self._paused_s, pause_s)
            self._heard_s = {host: min(heard_s + pause_s, now_s) for host, heard_s in self._heard_s.items()}
            self._away_s = {host: min(away_s + pause_s, now_s) for host, away_s in self._away_s.items()}
            if self._failing_s is not None:
                self._failing_s = min(self._failing_s + pause_s, now_s)
        self._ticked_s = now_s
