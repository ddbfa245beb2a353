"""The leader's end of the link: it listens, and authenticates followers."""

import contextlib
import errno
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from toolkit.job.events import RankDone, Stop
from toolkit.train.peers import sameness
from toolkit.train.peers.frames import (
    HEAD_BYTES,
    LARGEST_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    REFUSAL,
    FrameRefusedError,
    Reason,
    Seal,
    decode,
    encode,
)
from toolkit.train.peers.leader import Leader
from toolkit.train.peers.link_end import (
    MARK_BYTES,
    PROVE_WITHIN_S,
    READ,
    Connection,
    LinkEnd,
    describe_peer,
    far_end,
    prepare,
)
from toolkit.train.peers.lookup import Place, format_place, parse_address
from toolkit.train.peers.messages import NAMES_HOST, Bye, EndReport, Hello, Message, Notice, Reports
from toolkit.train.peers.protocol import Action, HostStepTimes, LogLine, Send, Timeouts
from toolkit.train.peers.rivals import EVERY_S, LOOK_S, MOST, Rivals
from toolkit.train.peers.space import Survey, own_space

BACKLOG = 4096
UNPROVED_AT_ONCE = 256
# How long the look-up of all hosts' addresses may delay the start.
SURVEY_S = 5.0
# Descriptors that `train` needs besides one for each follower.
OWN_DESCRIPTORS = UNPROVED_AT_ONCE + 256
Judge = Callable[[str, tuple[tuple[int, int, float], ...]], list[tuple[str, str]]]


class LeaderLink(LinkEnd):
    """Listens, with one connection for each follower. *restarts*: how many the job may have.

    *judge* takes the step times of a host and returns (host, text) for each slow rank; that host and the leader log the
    text. *places*: the name or address, by host, of hosts that must have different addresses. *tag*: of the job, for
    everybody; *facts*: what must be equal on all hosts (sameness.py). *rivals*: the name or address, by host, where one
    that does not join may lead, too (rivals.py), at *port*.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        key: bytes,
        times: Timeouts,
        listener: socket.socket,
        *,
        restarts: int = 0,
        judge: Judge = lambda _host, _times: [],
        places: dict[str, str] | None = None,
        tag: bytes = b"",
        facts: Mapping[str, str] | None = None,
        rivals: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(hosts[0], key)
        self._tag, self._facts = tag, facts or {}
        make_room(len(hosts))
        now_s = time.monotonic()
        mark = os.urandom(MARK_BYTES).hex()
        self.protocol = Leader(hosts, times, now_s, restarts=restarts, survey=bool(places), mark=mark)
        self.protocol.barrier.note_place(hosts[0], own_space())
        self._survey = Survey(places) if places else None
        self._survey_ends_s = now_s + SURVEY_S
        self._found: dict[str, frozenset[str]] = {}
        self._rivals, self._port = rivals or {}, port
        self._looks: Rivals | None = None
        self._look_s = now_s + min(LOOK_S, times.join_s / 2)
        # The last nonces of this process: it may connect to itself.
        self._nonces: deque[bytes] = deque(maxlen=UNPROVED_AT_ONCE)
        self._judge = judge
        self._hosts = frozenset(hosts[1:])
        self._listener = listener
        self._listens = False
        listener.setblocking(False)
        self._listen()
        if self._survey is not None:
            self._poll.register(self._survey.fd, READ)
        # By descriptor: all connections, and those that have not proved themselves, in order. By host: the others.
        self._open: dict[int, Connection] = {}
        self._unproved: dict[int, Connection] = {}
        self._of: dict[str, Connection] = {}

    def serve(self) -> None:
        """Do what is due: connections, messages, heartbeats."""
        for fd, events in self._poll.poll(0, 4096):
            if fd == self._listener.fileno():
                self._accept()
            elif self._survey is not None and fd == self._survey.fd:
                self._end_survey(self._survey)
            elif self._looks is not None and fd == self._looks.fd:
                self._end_look(self._looks)
            elif (connection := self._open.get(fd)) is not None:
                self.on_ready(connection, events)
        now_s = time.monotonic()
        for connection in list(self._overdue(now_s)):
            self._refuse("a connection that proved nothing in time", describe_peer(connection.sock))
            self.lose(connection)
        if self._survey is not None and now_s >= self._survey_ends_s:
            self._end_survey(self._survey)
        if now_s >= self._look_s:
            self._look_for_rivals(now_s)
        if self.protocol.due_in_s(now_s) <= 0:
            self._do(self.protocol.tick(now_s, time.monotonic_ns()))
            self._listen()

    def due_in_s(self) -> float:
        """Return the seconds until `serve` is due even if nothing comes."""
        now_s = time.monotonic()
        survey_s = self._survey_ends_s - now_s if self._survey is not None else math.inf
        return max(min(self.protocol.due_in_s(now_s), survey_s, self._look_s - now_s), 0.0)

    def tell(self, message: Message) -> None:
        """Take *message* from this host. Before a stop, handle what came earlier, the loss of a host included."""
        if isinstance(message, Stop):
            self.serve()
        self._do(self.protocol.on_message(self.me, message, time.monotonic(), time.monotonic_ns()))

    @property
    def verdict(self) -> EndReport | None:
        return self.protocol.verdict

    @property
    def is_finished(self) -> bool:
        """True once every follower has taken the verdict or had time to."""
        return self.protocol.is_finished(time.monotonic())

    def _end_survey(self, survey: Survey) -> None:
        self._survey = None
        self._poll.unregister(survey.fd)
        survey.close()
        self._found = dict(survey.found)
        self._do(self.protocol.on_survey(self._found, time.monotonic(), frozenset(survey.own.copy())))

    def _look_for_rivals(self, now_s: float) -> None:
        """Look whether hosts that have not joined lead, too."""
        absent = [host for host in self._rivals if host in self.protocol.members.absent]
        if self.protocol.barrier.opened or self.verdict is not None or not absent:
            self._look_s = math.inf
            return
        self._look_s = now_s + EVERY_S
        if self._looks is None:
            self._looks = Rivals({host: self._rivals[host] for host in absent[:MOST]}, self._port)
            self._poll.register(self._looks.fd, READ)

    def _end_look(self, looks: Rivals) -> None:
        self._looks = None
        self._poll.unregister(looks.fd)
        looks.close()
        for host, (nonce, tag) in looks.greetings.items():
            if len(nonce) == NONCE_BYTES and tag == self._tag and nonce not in self._nonces:
                self.protocol.barrier.note_rival(host)

    def close(self) -> None:
        for thread in (self._survey, self._looks):
            if thread is not None:
                thread.close()
        for connection in list(self._open.values()):
            self._forget(connection)
        self._open.clear()
        super().close()
        self._listener.close()

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection.seal is None:
            try:
                self._prove(connection, frame)
            except FrameRefusedError:
                self._write(connection, len(REFUSAL).to_bytes(HEAD_BYTES, "big") + REFUSAL)
                raise
        elif connection.host is not None:
            message = connection.seal.open(frame)
            if type(message) in NAMES_HOST and not self._is_of_the_job(message):
                raise FrameRefusedError("a host that is not of this job")
            self._do(self.protocol.on_message(connection.host, message, time.monotonic(), time.monotonic_ns()))
            if isinstance(message, Bye):
                self.lose(connection)

    def _is_of_the_job(self, message: Message) -> bool:
        """True if *message* names no host, or one of the job."""
        if isinstance(message, Reports):
            # A report about the leader's own host: a follower has declared it gone.
            return message.report is None or message.report.host in self._hosts or message.report.host == self.me
        return not isinstance(message, Stop | RankDone) or message.host in self._hosts

    def lose(self, connection: Connection) -> None:
        fd, host = connection.sock.fileno(), connection.host
        if fd < 0:
            return
        self._open.pop(fd, None)
        self._no_longer_unproved(connection)
        self._forget(connection)
        if host is not None and self._of.get(host) is connection:
            del self._of[host]
            self._do(self.protocol.on_disconnect(host, time.monotonic()))

    def _no_longer_unproved(self, connection: Connection) -> None:
        if self._unproved.pop(connection.sock.fileno(), None) is not None:
            self.protocol.members.note_knock_end(connection.address, time.monotonic())

    def _listen(self) -> None:
        if not self._listens:
            self._poll.register(self._listener.fileno(), READ)
            self._listens = True

    def _overdue(self, now_s: float) -> Iterator[Connection]:
        for connection in self._unproved.values():
            if now_s - connection.born_s <= PROVE_WITHIN_S:
                return
            yield connection

    def _accept(self) -> None:
        for _ in range(BACKLOG):  # All that wait: those who knock do not count as vanished.
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._no_room()
                return
            if len(self._unproved) >= UNPROVED_AT_ONCE + len(self._hosts):
                self._drop_oldest("a connection beyond those that may wait to prove themselves")
            sock.setblocking(False)
            prepare(sock)
            connection = Connection(sock, time.monotonic())
            connection.address = format_place(address)
            self.protocol.members.note_knock(connection.address, connection.born_s)
            self._open[sock.fileno()] = self._unproved[sock.fileno()] = connection
            self._nonces.append(connection.nonce)
            greeting = connection.nonce + self._tag
            if not self._write(connection, len(greeting).to_bytes(HEAD_BYTES, "big") + greeting):
                self.lose(connection)

    def _no_room(self) -> None:
        """Without a free descriptor, drop the oldest unproved connection, or accept none until the next tick."""
        if self._unproved:
            self._drop_oldest("a connection for which no descriptor was left (ulimit -n)")
        else:
            self._poll.unregister(self._listener.fileno())
            self._listens = False

    def _drop_oldest(self, reason: Reason) -> None:
        oldest = next(iter(self._unproved.values()))
        self._refuse(reason, describe_peer(oldest.sock))
        self.lose(oldest)

    def _prove(self, connection: Connection, frame: bytes) -> None:
        seal = Seal(self._key, connection.nonce, frame[:NONCE_BYTES], "down")
        try:
            hello = seal.open(frame[NONCE_BYTES:])
        except FrameRefusedError:
            self._note_claim(frame[NONCE_BYTES + MAC_BYTES :], describe_peer(connection.sock))
            raise
        if not isinstance(hello, Hello):
            raise FrameRefusedError("a host that is not of this job")
        unlike = sameness.find_difference(self._facts, hello.facts)
        if unlike:
            messages, actions = self.protocol.refuse_unlike(hello.host, unlike, time.monotonic(), time.monotonic_ns())
            for message in messages:
                self._write(connection, seal.seal(encode(message)))
            self._do(actions)
            raise FrameRefusedError("a host whose documents or version differ from the leader's")
        if hello.host not in self._hosts:
            raise FrameRefusedError("a host that is not of this job")
        if hello.leader_mark not in ("", self.protocol.mark):
            self._write(connection, seal.seal(encode(self.protocol.make_welcome(time.monotonic_ns()))))
            self._do(self.protocol.on_survivor(hello.host, time.monotonic(), time.monotonic_ns()))
            raise FrameRefusedError("a host that had joined an earlier train of the leader")
        if self.protocol.members.knows_other(hello.host, hello.mark):
            for message in self.protocol.turn_away(hello.host, time.monotonic_ns()):
                self._write(connection, seal.seal(encode(message)))
            raise FrameRefusedError("a second train of a host that has joined already")
        other_end = far_end(connection.sock)
        address = other_end.partition(" ")[0]
        self.protocol.barrier.note_place(hello.host, hello.space, address if hello.end == other_end else "")
        self.protocol.members.note_address(hello.host, address, direct=hello.end in ("", other_end))
        is_first = hello.host in self.protocol.members.absent
        replaced = self._of.get(hello.host)
        connection.seal, connection.host = seal, hello.host
        connection.frames.largest_bytes = LARGEST_BYTES
        self._no_longer_unproved(connection)
        self._of[hello.host] = connection
        if replaced is not None:
            self._open.pop(replaced.sock.fileno(), None)
            self._forget(replaced)
        self._do(self.protocol.on_connect(hello.host, time.monotonic(), time.monotonic_ns()))
        if is_first:
            self._do(
                self.protocol.warn_of_settings(hello.host, sameness.list_unequal_settings(self._facts, hello.facts))
            )

    def _note_claim(self, claim: bytes, address: str) -> None:
        """Note a proof made with another key, in the name *claim*; it counts if it comes from that host's address."""
        try:
            hello = decode(claim, "up")
        except FrameRefusedError:
            return
        if not isinstance(hello, Hello) or hello.tag != self._tag.hex():
            return  # Of another job that shares this one's hosts.
        if hello.host in self._hosts and address in self._found.get(hello.host, ()):
            self.protocol.members.note_claim(hello.host, time.monotonic())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, HostStepTimes):
                # Sent at once, so that a notice of the last steps comes before the verdict, which closes the link.
                self._tell_slow(self._judge(action.host, action.times))
            else:
                self._words.append(action)

    def _tell_slow(self, slow_ranks: list[tuple[str, str]]) -> None:
        for host, line in slow_ranks:
            self._words.append(LogLine(text=line, warns=True))
            if host != self.me:
                self._send(Send(hosts=(host,), message=Notice(text=line)))

    def _send(self, action: Send) -> None:
        encoded = encode(action.message)
        broken = []
        for host in action.hosts:
            connection = self._of.get(host)
            if connection is None or connection.seal is None:
                continue
            if not self._write(connection, connection.seal.seal(encoded)):
                broken.append(connection)
        for connection in broken:
            self.lose(connection)


def listen(address: str | None, port: int) -> socket.socket:
    """Return a socket that listens on *address* alone if it is a number and this host's own, or localhost; else on all
    addresses, IPv6 and IPv4.

    Of a name that is not enough: here it may lead to 127.0.1.1 (Debian's /etc/hosts), or to one of several addresses of
    which another host knows another one. Other addresses are those of a service, or translated.

    Raises:
        OSError: the port is taken.
    """
    if address is not None:
        if address.lower().rstrip(".") == "localhost":
            address = "127.0.0.1"
        for family, place in parse_address(address, port):
            try:
                return _server(family, place)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)


def _server(family: socket.AddressFamily, place: Place) -> socket.socket:
    """Return a socket that listens there. socket.create_server knows no scope, which an address of one link needs."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def make_room(hosts: int) -> None:
    """Raise this process's soft limit of descriptors if so many hosts need that and the hard limit allows it."""
    import resource

    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:
        return  # A sandbox denies the question.
    needed = hosts + OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
