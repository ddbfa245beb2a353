"""Pure: the roll call. Who is there, who is ready, who failed, who is gone, and what the job's end is.

`Leader` and `Follower` take what happened (with the time, monotonic seconds) and answer with what to send and what to
do here. They know no sockets and no clocks: tests replay histories of two to fifty hosts.

The course: every host joins and says Ready; the leader says Go. The first bad news from anywhere (a rank that failed,
a host that is gone) goes to all as Failing: they stop their ranks and answer with Evidence, what had failed on their
side by then. With all evidence the leader names the cause and sends the Verdict; nobody waits for another host's slow
end. A job that ends well has its Verdict when every host has ended.
"""

from collections.abc import Iterable

import msgspec

from toolkit.peers.messages import (
    Ended,
    Evidence,
    Failing,
    Go,
    Idle,
    Message,
    Ping,
    Pong,
    Ready,
    Report,
    Step,
    Stop,
    Verdict,
    Welcome,
)
from toolkit.records import Record

TELL_EVERY_S = 10.0
# A connection that broke is made again within milliseconds where the other end lives.
RECONNECT_S = 1.0
# How long evidence is waited for: every host answers within a beat, unless it is busy.
EVIDENCE_S = 1.5
# After a hang the evidence is the ranks' stacks, which take 2 s to be written.
HANG_EVIDENCE_S = 4.0
# How long hosts may take to say at which step they could stop.
AGREE_S = 0.5
VANISHED = 75
HUNG = 124
HANG = "Hang"


class Send(Record, frozen=True, kw_only=True):
    """Send *message* to these hosts."""

    hosts: tuple[str, ...]
    message: Message


class Say(Record, frozen=True, kw_only=True):
    """Say *text* in the log."""

    text: str


class Start(Record, frozen=True, kw_only=True):
    """The main phase may start."""


class StopHere(Record, frozen=True, kw_only=True):
    """Stop as if *signal* had come here; it came to *host*."""

    host: str
    signal: int


class StopAt(Record, frozen=True, kw_only=True):
    """Every rank of the job stops at *step*."""

    step: int


class FailHere(Record, frozen=True, kw_only=True):
    """Stop the ranks here: *text* says why. `report` is the worst known."""

    text: str
    report: Report


class Settled(Record, frozen=True, kw_only=True):
    """The job's end is known: *report*."""

    report: Report


class Drop(Record, frozen=True, kw_only=True):
    """Close the connections of these hosts."""

    hosts: tuple[str, ...]


Action = Send | Say | Start | StopHere | StopAt | FailHere | Settled | Drop


class Times(Record, frozen=True, kw_only=True):
    """How long things may take, seconds. `end_s`: from the first host that ended well to the last (0: for ever)."""

    beat_s: float
    patience_s: float
    join_s: float
    end_s: float
    grace_s: float


class Leader:
    """The leader's side; its own host is a member like any other."""

    def __init__(self, hosts: tuple[str, ...], times: Times, now_s: float) -> None:
        self._me = hosts[0]
        self._hosts = hosts
        self._times = times
        self._absent = set(hosts[1:])
        self._marks: dict[str, str] = {}
        self._ready: set[str] = set()
        self._started = False
        self._heard_s: dict[str, float] = {}
        self._heard_ns: dict[str, int] = {}
        self._away_s: dict[str, float] = {}
        self._gone: set[str] = set()
        self._ended: dict[str, Report] = {}
        self._evidence: dict[str, Report | None] = {}
        self._steps: dict[str, int] = {}
        self._agreed = False
        self._odd: dict[str, tuple[str, ...]] = {}
        self._idle: dict[str, Idle] = {}
        self._failing_s: float | None = None
        self._stopped_s: float | None = None
        self._signal = 0
        self._first_end_s: float | None = None
        self._began_s = now_s
        self._next_tell_s = now_s + TELL_EVERY_S
        self._ticked_s = now_s
        self.verdict: Report | None = None

    # --- what comes from the link

    def knows_other(self, host: str, mark: str) -> bool:
        """True if *host* has joined before as another process: a restarted or a second `train` takes nobody's place."""
        return self._marks.setdefault(host, mark) != mark

    def joined(self, host: str, now_s: float, now_ns: int) -> list[Action]:
        """*host* has proved itself on a new connection; it may be back after a break."""
        self._absent.discard(host)
        self._away_s.pop(host, None)
        self._heard_s[host] = now_s
        self._heard_ns[host] = now_ns
        actions: list[Action] = [
            Send(hosts=(host,), message=Welcome(beat_s=self._times.beat_s, patience_s=self._times.patience_s))
        ]
        if self.verdict is not None:
            return [*actions, Send(hosts=(host,), message=Verdict(report=self.verdict))]
        if self._signal:
            actions.append(Send(hosts=(host,), message=Stop(host=self._me, signal=self._signal)))
        if self._failing_s is not None and (worst := self._worst()) is not None:
            actions.append(Send(hosts=(host,), message=Failing(report=worst)))
        if self._started:
            actions.append(Send(hosts=(host,), message=Go()))
        return actions

    def left(self, host: str, now_s: float) -> list[Action]:
        """*host*'s connection broke; it has a moment to come back."""
        if host not in self._gone:
            self._away_s[host] = now_s
        return []

    def heard(self, host: str, message: Message, now_s: float, now_ns: int) -> list[Action]:
        """Take a message of *host*, proved to be its own (the leader's own host too)."""
        self._heard_s[host] = now_s
        self._heard_ns[host] = now_ns
        if isinstance(message, Ping):
            return [Send(hosts=(host,), message=Pong(sent_ns=message.sent_ns, leader_ns=now_ns))]
        if self.verdict is not None:
            return []
        if isinstance(message, Ready):
            return self._on_ready(host)
        if isinstance(message, Stop):
            return self._on_stop(message, host, now_s)
        if isinstance(message, Failing):
            self._note(host, message.report)
            return self._fail(host, message.report, now_s)
        if isinstance(message, Evidence):
            self._note(host, message.report)
            return self._decide(now_s)
        if isinstance(message, Step):
            self._steps[host] = message.step
            return self._agree(now_s)
        if isinstance(message, Idle):
            return self._on_idle(host, message, now_s, now_ns)
        if isinstance(message, Ended):
            return self._on_ended(host, message.report, now_s)
        return []

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """See what time alone has brought about. Call at least every beat; a gap was a pause of our own."""
        self._forgive_own_pause(now_s)
        if self.verdict is not None:
            return []
        actions = self._roll_call(now_s, now_ns)
        for host in self._hosts[1:]:
            if host not in self._gone and host not in self._absent and host not in self._ended:
                actions += self._look_after(host, now_s)
        return actions + self._agree(now_s) + self._decide(now_s)

    def next_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return max(min(self._times.beat_s, self._ticked_s + self._times.beat_s - now_s), 0.01)

    # --- inside

    def _on_ready(self, host: str) -> list[Action]:
        self._ready.add(host)
        if self._started or len(self._ready) < len(self._hosts):
            return []
        self._started = True
        return [Send(hosts=self._others(), message=Go()), Start()]

    def _on_stop(self, message: Stop, host: str, now_s: float) -> list[Action]:
        if self._signal:
            return []
        self._signal = message.signal
        self._stopped_s = now_s
        actions: list[Action] = [Send(hosts=self._others(host), message=message)]
        if host != self._me:
            actions.append(StopHere(host=host, signal=message.signal))
        return actions

    def _agree(self, now_s: float) -> list[Action]:
        """Name the step at which all stop, once every host that can has said when it could."""
        if self._agreed or self._stopped_s is None or not self._steps:
            return []
        living = [host for host in self._hosts if host not in (self._gone | self._absent) and host not in self._ended]
        if any(host not in self._steps for host in living) and now_s < self._stopped_s + AGREE_S:
            return []
        self._agreed = True
        step = max(self._steps.values())
        return [Send(hosts=self._others(), message=Step(step=step)), StopAt(step=step)]

    def _on_idle(self, host: str, message: Idle, now_s: float, now_ns: int) -> list[Action]:
        """A hang is one only if no host moves: one that does may be what the others wait for."""
        if message.seconds:
            self._idle[host] = message
        else:
            self._idle.pop(host, None)
        working = [host for host in self._hosts if host not in self._gone and host not in self._ended]
        if self._failing_s is not None or self._signal or any(host not in self._idle for host in working):
            return []
        idle_s = min(self._idle[host].seconds for host in working)
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
        self._evidence[self._me] = report
        here: list[Action] = [FailHere(text=_news(report), report=report)]
        return here + self._fail(self._me, report, now_s)

    def _on_ended(self, host: str, report: Report, now_s: float) -> list[Action]:
        self._ended[host] = report
        self._first_end_s = now_s if self._first_end_s is None else self._first_end_s
        self._note(host, report if report.failed else None)
        actions: list[Action] = []
        if report.failed and self._failing_s is None:
            actions += self._fail(host, report, now_s)
        return actions + self._decide(now_s)

    def _note(self, host: str, report: Report | None) -> None:
        if report is not None and report.kind == HANG:
            self._odd[host] = report.odd
        known = self._evidence.get(host)
        if known is None or (report is not None and _rank_of(report) < _rank_of(known)):
            self._evidence[host] = report if report is not None else known

    def _fail(self, host: str, report: Report, now_s: float) -> list[Action]:
        if self._failing_s is not None:
            return self._decide(now_s)
        self._failing_s = now_s
        actions: list[Action] = [Send(hosts=self._others(host), message=Failing(report=report))]
        if host != self._me:
            actions.append(FailHere(text=_news(report), report=report))
        return actions + self._decide(now_s)

    def _roll_call(self, now_s: float, now_ns: int) -> list[Action]:
        if self._started or self._failing_s is not None or self._signal:
            return []
        missing = [host for host in self._hosts if host not in self._ready]
        if now_s >= self._began_s + self._times.join_s:
            cause = f"waited {self._times.join_s:g} s in vain for {_named(missing)} (TOOLKIT_JOIN_S)"
            report = Report(
                host=missing[0], exit_code=VANISHED, primary=True, failed_ns=now_ns, blame="platform", cause=cause
            )
            return self._settle(report)
        if now_s >= self._next_tell_s:
            self._next_tell_s = now_s + TELL_EVERY_S
            absent = [host for host in missing if host in self._absent]
            busy = [host for host in missing if host not in self._absent and host != self._me]
            parts = [f"{_named(absent)} to join"] * bool(absent) + [f"{_named(busy)} to be ready"] * bool(busy)
            if parts:
                return [Say(text="waiting for " + " and ".join(parts))]
        return []

    def _look_after(self, host: str, now_s: float) -> list[Action]:
        silent_s = now_s - self._heard_s[host]
        away_s = now_s - self._away_s[host] if host in self._away_s else 0.0
        if away_s > RECONNECT_S:
            how = "its connection broke and was not made again: its train was killed, or its machine is gone"
        elif silent_s > self._times.patience_s:
            how = f"nothing was heard of it for {silent_s:.1f} s: it is stopped, overloaded or cut off"
        else:
            return []
        self._gone.add(host)
        self._away_s.pop(host, None)
        report = _vanished(host, how, self._heard_ns[host])
        self._note(host, report)
        return [*self._fail(host, report, now_s), Drop(hosts=(host,))]

    def _decide(self, now_s: float) -> list[Action]:
        if self.verdict is not None:
            return []
        living = [host for host in self._hosts if host not in self._gone and host not in self._absent]
        if self._failing_s is not None:
            told = all(host in self._evidence or host in self._ended for host in living)
            primary = any(report is not None and report.primary for report in self._evidence.values())
            worst = self._worst()
            hangs = worst is not None and worst.kind == HANG
            late = now_s >= self._failing_s + (HANG_EVIDENCE_S if hangs else EVIDENCE_S)
            told = told and (not hangs or all(host in self._odd for host in living))
            if (told and primary) or late:
                worst = self._worst()
                return self._settle(worst) if worst is not None else []
            return []
        if all(host in self._ended for host in living):
            return self._settle(self._together())
        if self._stopped_s is not None and now_s >= self._stopped_s + self._times.grace_s + 10.0:
            return self._settle(self._together())
        late = self._first_end_s is not None and self._times.end_s > 0
        if late and now_s >= (self._first_end_s or 0.0) + self._times.end_s and not self._signal:
            missing = [host for host in living if host not in self._ended]
            how = f"it had not ended {self._times.end_s:g} s after the first host had (TOOLKIT_END_S)"
            return self._fail(missing[0], _vanished(missing[0], how, self._heard_ns.get(missing[0], 0)), now_s)
        return []

    def _together(self) -> Report:
        """Return the end of a job in which nothing failed: of a stop, the worst of the hosts' ends."""
        worst = max(self._ended.values(), key=lambda report: report.exit_code)
        return worst if worst.exit_code else Report(host=self._me, exit_code=0, stopped=bool(self._signal))

    def _worst(self) -> Report | None:
        reports = [report for report in self._evidence.values() if report is not None]
        return min(reports, key=_rank_of, default=None)

    def _settle(self, report: Report) -> list[Action]:
        if report.kind == HANG:
            odd = [each for host in self._hosts for each in self._odd.get(host, ())]
            report = msgspec.structs.replace(report, cause="; ".join((report.cause, *odd)))
        self.verdict = report
        return [Send(hosts=self._others(), message=Verdict(report=report)), Settled(report=report)]

    def _others(self, *but: str) -> tuple[str, ...]:
        return tuple(
            host for host in self._hosts[1:] if host not in but and host not in self._gone and host not in self._absent
        )

    def _forgive_own_pause(self, now_s: float) -> None:
        gap_s = now_s - self._ticked_s - self._times.beat_s
        self._ticked_s = now_s
        if gap_s > self._times.beat_s:
            self._heard_s = {host: min(heard_s + gap_s, now_s) for host, heard_s in self._heard_s.items()}
            self._away_s = {host: min(away_s + gap_s, now_s) for host, away_s in self._away_s.items()}


class Follower:
    """A follower's side: it knows the leader only."""

    def __init__(self, me: str, leader: str, times: Times, now_s: float) -> None:
        self._me = me
        self._leader = leader
        self._times = times
        self._began_s = now_s
        self._next_tell_s = now_s + TELL_EVERY_S
        self._ticked_s = now_s
        self._heard_s: float | None = None
        self._away_s: float | None = None
        self._unsent: list[Message] = []
        self._connected = False
        self._started = False
        self._worst: Report | None = None
        self._signal = 0
        self.verdict: Report | None = None

    def joined(self, now_s: float) -> list[Action]:
        """The leader has proved itself on a new connection. What it may not have got is said again."""
        self._connected = True
        self._away_s = None
        self._heard_s = now_s
        return [Send(hosts=(self._leader,), message=message) for message in self._unsent]

    def left(self, now_s: float) -> list[Action]:
        """The connection broke."""
        self._connected = False
        if self._heard_s is not None and self._away_s is None:
            self._away_s = now_s
        return []

    def tell(self, message: Message) -> list[Action]:
        """Say *message* to the leader, now or when it is there (again); each of these counts once, however often it
        comes."""
        if not isinstance(message, Ping | Evidence):
            self._unsent.append(message)
        return [Send(hosts=(self._leader,), message=message)] if self._connected else []

    def heard(self, message: Message, now_s: float) -> list[Action]:
        """Take a message of the leader."""
        self._heard_s = now_s
        if isinstance(message, Welcome):
            self._times = msgspec.structs.replace(self._times, beat_s=message.beat_s, patience_s=message.patience_s)
        if self.verdict is not None:
            return []
        if isinstance(message, Go) and not self._started:
            self._started = True
            return [Start()]
        if isinstance(message, Stop) and not self._signal:
            self._signal = message.signal
            return [StopHere(host=message.host, signal=message.signal)]
        if isinstance(message, Step):
            return [StopAt(step=message.step)]
        if isinstance(message, Failing) and self._worst is None:
            self._worst = message.report
            return [FailHere(text=_news(message.report), report=message.report)]
        if isinstance(message, Verdict):
            self.verdict = message.report
            return [Settled(report=message.report)]
        return []

    def tick(self, now_s: float, now_ns: int) -> list[Action]:
        """See what time alone has brought about; send the beat."""
        gap_s = now_s - self._ticked_s - self._times.beat_s
        self._ticked_s = now_s
        if gap_s > self._times.beat_s and self._heard_s is not None:  # We were paused ourselves.
            self._heard_s = min(self._heard_s + gap_s, now_s)
            self._away_s = None if self._away_s is None else min(self._away_s + gap_s, now_s)
        if self.verdict is not None:
            return []
        if self._heard_s is None:
            return self._waiting(now_s, now_ns)
        away_s = 0.0 if self._away_s is None else now_s - self._away_s
        if away_s > RECONNECT_S:
            return self._alone(
                "its connection broke and was not made again: its train was killed, or its machine is gone", now_ns
            )
        silent_s = now_s - self._heard_s
        if silent_s > self._times.patience_s:
            return self._alone(
                f"nothing was heard of it for {silent_s:.1f} s: it is stopped, overloaded or cut off", now_ns
            )
        return [Send(hosts=(self._leader,), message=Ping(sent_ns=now_ns))] if self._connected else []

    def next_s(self, now_s: float) -> float:
        """Return the seconds until `tick` is due."""
        return max(min(self._times.beat_s, self._ticked_s + self._times.beat_s - now_s), 0.01)

    def _waiting(self, now_s: float, now_ns: int) -> list[Action]:
        if now_s >= self._began_s + self._times.join_s:
            cause = f"waited {self._times.join_s:g} s in vain for host {self._leader}, the leader (TOOLKIT_JOIN_S)"
            report = Report(
                host=self._leader, exit_code=VANISHED, primary=True, failed_ns=now_ns, blame="platform", cause=cause
            )
            return self._settle(report)
        if now_s >= self._next_tell_s:
            self._next_tell_s = now_s + TELL_EVERY_S
            return [Say(text=f"waiting for host {self._leader}, the leader, to answer")]
        return []

    def _alone(self, how: str, now_ns: int) -> list[Action]:
        """The leader is gone: the worst that is known is the verdict, else that it is gone."""
        return self._settle(self._worst or _vanished(self._leader, how, now_ns))

    def _settle(self, report: Report) -> list[Action]:
        self.verdict = report
        actions: list[Action] = [] if self._worst is not None else [FailHere(text=_news(report), report=report)]
        return [*actions, Settled(report=report)]


def _vanished(host: str, how: str, at_ns: int) -> Report:
    return Report(
        host=host,
        exit_code=VANISHED,
        primary=True,
        failed_ns=at_ns,
        blame="platform",
        kind="PlatformError",
        cause=f"host {host} vanished: {how}",
    )


def _rank_of(report: Report) -> tuple[bool, int]:
    """Return what orders reports, the cause first: causes of their own before echoes, the earlier before the later."""
    return not report.primary, report.failed_ns


def _news(report: Report) -> str:
    who = f"{report.process} of host {report.host}" if report.process else f"host {report.host}"
    return f"{who} failed: {report.cause.splitlines()[0] if report.cause else report.ended}"


def _named(hosts: Iterable[str]) -> str:
    names = sorted(hosts)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"host {shown}" if len(names) == 1 else f"hosts {shown}"
