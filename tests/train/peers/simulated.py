"""Hosts of a job in one thread: protocols connected by a network that is as bad as the seed wants it.

Time is a number here; a job of minutes plays in milliseconds. What a connection guarantees (messages whole, in order,
once, until it breaks) the seals and TCP guarantee; everything else may happen: messages late by any time, lost with
their connection, said twice over two of them, hosts that pause, vanish, start late.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolkit.job.cause import Cause
from toolkit.job.events import AllReady, Hang, JobEnded, PeerFailed, Stop
from toolkit.train.peers.follower import Follower
from toolkit.train.peers.leader import Leader
from toolkit.train.peers.messages import EndReport, HostEnded, Message, OwnFailure, Ready
from toolkit.train.peers.protocol import Action, LogLine, Send, Timeouts

TIMES = Timeouts(heartbeat_s=1.0, heartbeat_timeout_s=8.0, join_s=60.0, finish_timeout_s=0.0, grace_s=5.0)
# The wall clock of the simulation at its start.
EPOCH_NS = 1_700_000_000_000_000_000


@dataclass
class Host:
    """One host: its side of the protocol, what it was told to do, and when."""

    name: str
    protocol: Leader | Follower
    starts_s: float = 0.0
    paused_until_s: float = 0.0
    alive: bool = True
    # The number of the connection to the leader that lives (0: none); messages of earlier ones are lost.
    connection: int = 0
    reconnects: bool = True
    actions: list[tuple[float, Action]] = field(default_factory=list)
    inbox: list[Callable[[], list[Action]]] = field(default_factory=list)
    own_failure: EndReport | None = None
    answers: bool = True
    heard: list[Message] = field(default_factory=list)

    def did(self, kind: type[Action]) -> list[float]:
        """Return when it was told to do a *kind* of thing."""
        return [at_s for at_s, action in self.actions if isinstance(action, kind)]

    @property
    def said(self) -> str:
        return "\n".join(action.text for _, action in self.actions if isinstance(action, LogLine))

    @property
    def verdict(self) -> EndReport | None:
        return self.protocol.verdict

    @property
    def left_s(self) -> float:
        """Return the time at which it had the job's verdict."""
        return self.did(JobEnded)[0]


class Job:
    """*count* hosts of a job, algo-1 leading; `play` runs until everybody has the verdict, or *until_s*.

    *loss*: how many of the messages under way are lost when their connection breaks; the others come after it.
    """

    def __init__(
        self,
        count: int,
        *,
        times: Timeouts = TIMES,
        seed: int = 0,
        delay_s: tuple[float, float] = (0.0002, 0.001),
        loss: float = 1.0,
    ) -> None:
        self.loss = loss
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.began_s = self.now_s
        self.names = tuple(f"algo-{number}" for number in range(1, count + 1))
        self._delay_s = delay_s
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._connections = 0
        leader = Leader(self.names, times, self.now_s)
        self.leader = Host(self.names[0], leader)
        self._leader = leader
        self.hosts = {self.names[0]: self.leader}
        for name in self.names[1:]:
            self.hosts[name] = Host(name, Follower(name, self.names[0], times, self.now_s))
        self._arrives_s: dict[tuple[str, int, bool], float] = {}

    @property
    def followers(self) -> list[Host]:
        return [host for host in self.hosts.values() if host is not self.leader]

    def ns(self, at_s: float) -> int:
        """Return a moment of the simulation on the wall clock."""
        return EPOCH_NS + int((at_s - self.began_s) * 1e9)

    def failure(self, name: str, *, at_s: float | None = None, primary: bool = True, code: int = 3) -> EndReport:
        """Return the report of a rank of host *name* that failed at *at_s* (now)."""
        failed_ns = self.ns(self.now_s if at_s is None else self.began_s + at_s)
        cause = f"boom on {name}" if primary else "Connection closed by peer"
        return EndReport(
            host=name,
            exit_code=code,
            cause=Cause(primary=primary, failed_ns=failed_ns, message=cause, process="rank 0"),
        )

    # --- what a test lets happen, seconds after the start

    def at(self, after_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (self.began_s + after_s, self._order, act))

    def ready(self, *names: str, after_s: float = 0.0) -> None:
        for name in names or self.names:
            self.at(after_s, lambda name=name: self.tell(name, Ready()))  # type: ignore[misc]

    def tell(self, name: str, message: Message) -> None:
        """Let host *name* say *message*."""
        host = self.hosts[name]
        if not host.alive:
            return
        if isinstance(host.protocol, Leader):
            self._do(host, host.protocol.on_message(name, message, self.now_s, self.ns(self.now_s)))
        else:
            self._do(host, host.protocol.tell(message, self.now_s))

    def end(self, name: str, code: int = 0, *, stopped: bool = False) -> None:
        self.tell(name, HostEnded(report=EndReport(host=name, exit_code=code, stopped=stopped)))

    def kill(self, name: str) -> None:
        """Its train is killed: the kernel closes its connections."""
        self.hosts[name].alive = False
        for host in self.followers if name == self.leader.name else [self.hosts[name]]:
            self._cut(host)

    def vanish(self, name: str) -> None:
        """Its machine loses power, or its cable: nothing is heard of it any more."""
        host = self.hosts[name]
        host.alive = False
        host.connection = -1

    def pause(self, name: str, for_s: float) -> None:
        self.hosts[name].paused_until_s = max(self.hosts[name].paused_until_s, self.now_s + for_s)

    def cut(self, name: str, *, for_good: bool = False) -> None:
        """Its connection breaks, seen by both ends; it connects again unless *for_good*."""
        host = self.hosts[name]
        host.reconnects = host.reconnects and not for_good
        if host.connection > 0:
            self._cut(host)

    # --- the play

    def play(self, until_s: float = 400.0) -> "Job":
        for host in self.followers:
            self.at(host.starts_s, lambda host=host: self._connect(host))  # type: ignore[misc]
        while self.now_s < self.began_s + until_s and not self.over:
            self._step(self.began_s + until_s)
        return self

    @property
    def over(self) -> bool:
        return all(host.verdict is not None for host in self.hosts.values() if host.alive) and (
            not self.leader.alive or self._leader.is_finished(self.now_s)
        )

    @property
    def verdicts(self) -> set[tuple[str, int]]:
        """Return (host, exit code) of the verdicts of all that live."""
        found = {host.verdict for host in self.hosts.values() if host.alive}
        return {("nobody", -1) if verdict is None else (verdict.host, verdict.exit_code) for verdict in found}

    def _step(self, ends_s: float) -> None:
        due_s = min((self._due_s(host) for host in self.hosts.values() if host.alive), default=ends_s)
        if self._queue:
            due_s = min(due_s, self._queue[0][0])
        self.now_s = max(self.now_s, min(due_s, ends_s))
        while self._queue and self._queue[0][0] <= self.now_s:
            heapq.heappop(self._queue)[2]()
        for host in self.hosts.values():
            if host.alive and self._due_s(host) <= self.now_s:
                self._serve(host)

    def _due_s(self, host: Host) -> float:
        if host.inbox:
            return max(host.paused_until_s, self.now_s)
        asked_s = self.now_s if host.starts_s == 0 else max(self.began_s + host.starts_s, self.now_s)
        return max(asked_s + host.protocol.due_in_s(self.now_s), host.paused_until_s)

    def _serve(self, host: Host) -> None:
        inbox, host.inbox = host.inbox, []
        for come in inbox:
            self._do(host, come())
        if host.protocol.due_in_s(self.now_s) <= 0:
            self._do(host, host.protocol.tick(self.now_s, self.ns(self.now_s)))

    def _do(self, host: Host, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                for name in action.hosts:
                    self._send(host, self.hosts[name], action.message)
                continue
            host.actions.append((self.now_s - self.began_s, action))
            if isinstance(action, PeerFailed | Hang) and host.answers:
                self.at(
                    self.now_s - self.began_s + 0.005, lambda: self.tell(host.name, OwnFailure(report=host.own_failure))
                )

    def _send(self, sender: Host, to: Host, message: Message) -> None:
        follower = to if sender is self.leader else sender
        number = follower.connection
        if number <= 0:
            return
        up = to is self.leader
        # In order on one connection, and late by as much as the one before.
        lane = (follower.name, number, up)
        arrives_s = max(self.now_s + self.random.uniform(*self._delay_s), self._arrives_s.get(lane, 0.0))
        self._arrives_s[lane] = arrives_s

        survives = self.random.random() >= self.loss

        def arrive() -> None:
            if not to.alive or not (follower.connection == number or (follower.connection == 0 and survives)):
                return

            def come() -> list[Action]:
                to.heard.append(message)
                if isinstance(to.protocol, Leader):
                    return to.protocol.on_message(sender.name, message, self.now_s, self.ns(self.now_s))
                return to.protocol.on_message(message, self.now_s)

            to.inbox.append(come)

        self.at(arrives_s - self.began_s, arrive)

    def _connect(self, host: Host) -> None:
        """Try until it works, as a follower's link does."""
        if not (host.alive and host.reconnects) or host.verdict is not None or host.connection != 0:
            return
        if not self.leader.alive:  # Its kernel refuses the connection.
            assert isinstance(host.protocol, Follower)
            host.protocol.contact.note_nobody(refused=True)
        if not self.leader.alive or self.leader.paused_until_s > self.now_s or host.paused_until_s > self.now_s:
            self.at(self.now_s - self.began_s + 0.1, lambda: self._connect(host))
            return
        self._connections += 1
        host.connection = self._connections
        protocol = host.protocol
        assert isinstance(protocol, Follower)
        self.leader.inbox.append(lambda: self._leader.on_connect(host.name, self.now_s, self.ns(self.now_s)))
        host.inbox.append(lambda: protocol.on_connect(self.now_s, self.ns(self.now_s)))

    def _cut(self, host: Host) -> None:
        if host.connection <= 0:
            return
        host.connection = 0
        protocol = host.protocol
        assert isinstance(protocol, Follower)
        if self.leader.alive:
            self.leader.inbox.append(lambda: self._leader.on_disconnect(host.name, self.now_s))
        if host.alive:
            host.inbox.append(lambda: protocol.on_disconnect(self.now_s))
            self.at(self.now_s - self.began_s + 0.1, lambda: self._connect(host))


def stops(host: Host) -> list[int]:
    return [action.signal for _, action in host.actions if isinstance(action, Stop)]


def started(job: Job) -> bool:
    return all(host.did(AllReady) for host in job.hosts.values())
