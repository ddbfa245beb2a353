"""The sockets between the `train` processes of one job. One descriptor (`fd`) tells the loop that there is something
to do.

Opening: the leader sends its nonce; the follower answers with its own and a sealed Hello; the leader's sealed Welcome
proves that it has the key, too. Until then a connection may send 1 KiB within 5 s; when too many wait, the oldest goes,
so that a flood of strangers drives out itself and no host of the job. Whatever is not sealed with this job's key is
refused, counted and closed, and the job goes on.
"""

import contextlib
import errno
import math
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

from toolkit.peers.follower import Follower
from toolkit.peers.leader import Leader
from toolkit.peers.lookup import Address, Lookup, addresses
from toolkit.peers.messages import (
    HEAD_BYTES,
    LARGEST_BYTES,
    NONCE_BYTES,
    Bye,
    Clock,
    Frames,
    Hello,
    Message,
    Notice,
    Pong,
    RefusedError,
    Report,
    Seal,
    Stop,
    encode,
)
from toolkit.peers.roll import Action, Say, Send, Timed, Times

PROVE_WITHIN_S = 5.0
UNPROVED_AT_ONCE = 256
OUT_LIMIT_BYTES = 4 << 20
RETRY_S = 0.1
# Until the leader is met, its name may not resolve yet, or to an address of before.
RESOLVE_EVERY_S = 5.0
UNKNOWN_RETRY_S = 1.0
REFUSED_RETRY_S = 1.0
# Descriptors that `train` needs beside one for each follower.
OWN_DESCRIPTORS = UNPROVED_AT_ONCE + 256
READ = select.EPOLLIN
WRITE = select.EPOLLOUT
Judge = Callable[[str, tuple[tuple[int, int, float], ...]], list[tuple[str, str]]]


class Connection:
    """One socket: frames in, frames out, never blocking."""

    __slots__ = ("born_s", "frames", "host", "nonce", "out", "seal", "sock", "watched")

    def __init__(self, sock: socket.socket, now_s: float) -> None:
        self.sock = sock
        self.born_s = now_s
        self.frames = Frames()
        self.seal: Seal | None = None
        self.host: str | None = None
        self.nonce = os.urandom(NONCE_BYTES)
        self.out = b""
        self.watched = 0

    @property
    def open(self) -> bool:
        return self.sock.fileno() >= 0

    def read(self) -> bytes | None:
        """Return what came, b"" for nothing, None at the end."""
        try:
            return self.sock.recv(1 << 16) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, frame: bytes) -> bool:
        """Send *frame* or keep it; False if the connection is of no use any more."""
        self.out = self.out + frame if self.out else frame
        return self.flush() and len(self.out) <= OUT_LIMIT_BYTES

    def flush(self) -> bool:
        """Send what goes; False if the connection is of no use any more."""
        while self.out:
            try:
                self.out = self.out[self.sock.send(self.out, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                return True
            except OSError:
                return False
        return True


class Link:
    """What the leader's and the follower's link share: the poll, the words for the loop, the end.

    *poll* may serve several links at once (the benchmark's thousands of followers); `on_ready` then gets what it says.
    """

    def __init__(self, me: str, key: bytes, poll: select.epoll | None = None) -> None:
        self.me = me
        self._key = key
        self._poll = poll if poll is not None else select.epoll()
        self._owns_poll = poll is None
        self.refused: Counter[str] = Counter()
        self._words: list[Action] = []

    @property
    def fd(self) -> int:
        """Ready when `serve` has something to do."""
        return self._poll.fileno()

    def take(self) -> list[Action]:
        """Return what is to be done here, since the last call."""
        words, self._words = self._words, []
        return words

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        """Take a whole frame.

        Raises:
            RefusedError: it is not of this job.
        """
        raise NotImplementedError

    def lose(self, connection: Connection) -> None:
        """Close *connection*, whatever it was."""
        raise NotImplementedError

    def on_ready(self, connection: Connection, events: int) -> None:
        """Write and read what goes on *connection*."""
        if events & WRITE and not connection.flush():
            self.lose(connection)
            return
        piece = connection.read() if events & ~WRITE else b""
        if piece is None:
            self.lose(connection)
            return
        try:
            for frame in connection.frames.feed(piece):
                self.on_frame(connection, frame)
                if not connection.open:
                    return
        except RefusedError as reason:
            self._refuse(str(reason), _peer(connection.sock))
            self.lose(connection)
            return
        self._watch(connection)

    def _refuse(self, reason: str, who: str) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            self._words.append(Say(text=f"link: refused {reason} (from {who})"))

    def _write(self, connection: Connection, frame: bytes) -> bool:
        sent = connection.write(frame)
        if sent:
            self._watch(connection)
        return sent

    def _watch(self, connection: Connection) -> None:
        events = READ | WRITE if connection.out else READ
        if events == connection.watched or not connection.open:
            return
        (self._poll.modify if connection.watched else self._poll.register)(connection.sock.fileno(), events)
        connection.watched = events

    def _forget(self, connection: Connection) -> None:
        if connection.open and connection.watched:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(connection.sock.fileno())
        connection.sock.close()

    def close(self) -> None:
        """Close everything; what the other end has not taken is lost."""
        if self._owns_poll:
            self._poll.close()


class LeaderLink(Link):
    """Listens; one connection a follower. *restarts*: how many the job may have; *judge* says who is slow, by the step
    times of a host: (host, what the leader's log and its own are to say)."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        key: bytes,
        times: Times,
        listener: socket.socket,
        *,
        restarts: int = 0,
        judge: Judge = lambda _host, _times: [],
    ) -> None:
        super().__init__(hosts[0], key)
        make_room(len(hosts))
        self.roll = Leader(hosts, times, time.monotonic(), restarts=restarts)
        self._judge = judge
        self._hosts = frozenset(hosts[1:])
        self._listener = listener
        self._listens = False
        listener.setblocking(False)
        self._listen()
        # By descriptor: all, and those (in the order they came) that have not proved themselves. By host: the others.
        self._open: dict[int, Connection] = {}
        self._unproved: dict[int, Connection] = {}
        self._of: dict[str, Connection] = {}

    def serve(self) -> None:
        """Do what is due: connections, messages, beats."""
        for fd, events in self._poll.poll(0, 4096):
            if fd == self._listener.fileno():
                self._accept()
            elif (connection := self._open.get(fd)) is not None:
                self.on_ready(connection, events)
        now_s = time.monotonic()
        for connection in list(self._overdue(now_s)):
            self._refuse("a connection that proved nothing in time", _peer(connection.sock))
            self.lose(connection)
        if self.roll.next_s(now_s) <= 0:
            self._do(self.roll.tick(now_s, time.time_ns()))
            self._listen()

    def rest_s(self) -> float:
        """Return the seconds until `serve` is due in any case."""
        return self.roll.next_s(time.monotonic())

    def tell(self, message: Message) -> None:
        """Say *message* as this host. What has come before a stop is taken first: that a host is gone, too."""
        if isinstance(message, Stop):
            self.serve()
        self._do(self.roll.heard(self.me, message, time.monotonic(), time.time_ns()))

    @property
    def clock_offset_ns(self) -> int:
        """The leader's clock is the job's."""
        return 0

    @property
    def verdict(self) -> Report | None:
        return self.roll.verdict

    @property
    def finished(self) -> bool:
        """True once every follower has taken the verdict, or had time to."""
        return self.roll.finished(time.monotonic())

    def close(self) -> None:
        for connection in list(self._open.values()):
            self._forget(connection)
        self._open.clear()
        super().close()
        self._listener.close()

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection.seal is None:
            self._prove(connection, frame)
        elif connection.host is not None:
            message = connection.seal.open(frame)
            self._do(self.roll.heard(connection.host, message, time.monotonic(), time.time_ns()))
            if isinstance(message, Bye):
                self.lose(connection)

    def lose(self, connection: Connection) -> None:
        fd, host = connection.sock.fileno(), connection.host
        if fd < 0:
            return
        self._open.pop(fd, None)
        self._unproved.pop(fd, None)
        self._forget(connection)
        if host is not None and self._of.get(host) is connection:
            del self._of[host]
            self._do(self.roll.left(host, time.monotonic()))

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
        for _ in range(1024):
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._no_room()
                return
            if len(self._unproved) >= UNPROVED_AT_ONCE + len(self._hosts):
                self._drop_oldest("a connection beyond those that may wait to prove themselves")
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, time.monotonic())
            self._open[sock.fileno()] = self._unproved[sock.fileno()] = connection
            if not self._write(connection, NONCE_BYTES.to_bytes(HEAD_BYTES, "big") + connection.nonce):
                self.lose(connection)

    def _no_room(self) -> None:
        """No descriptor is left: the oldest stranger goes, else nobody is let in until the next tick."""
        if self._unproved:
            self._drop_oldest("a connection for which no descriptor was left (ulimit -n)")
        else:
            self._poll.unregister(self._listener.fileno())
            self._listens = False

    def _drop_oldest(self, reason: str) -> None:
        oldest = next(iter(self._unproved.values()))
        self._refuse(reason, _peer(oldest.sock))
        self.lose(oldest)

    def _prove(self, connection: Connection, frame: bytes) -> None:
        seal = Seal(self._key, connection.nonce, frame[:NONCE_BYTES], "down")
        hello = seal.open(frame[NONCE_BYTES:])
        if not isinstance(hello, Hello) or hello.host not in self._hosts:
            raise RefusedError("a host that is not of this job")
        if self.roll.knows_other(hello.host, hello.mark):
            self._write(connection, seal.seal(encode(self.roll.turn_away(hello.host, time.time_ns()))))
            raise RefusedError(f"a second train that calls itself {hello.host}")
        before = self._of.get(hello.host)
        connection.seal, connection.host = seal, hello.host
        connection.frames.largest_bytes = LARGEST_BYTES
        self._unproved.pop(connection.sock.fileno(), None)
        self._of[hello.host] = connection
        if before is not None:
            self._open.pop(before.sock.fileno(), None)
            self._forget(before)
        self._do(self.roll.joined(hello.host, time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Timed):
                # At once, so that a host's news of its last steps is not behind the verdict, which closes its link.
                self._tell_slow(self._judge(action.host, action.times))
            else:
                self._words.append(action)

    def _tell_slow(self, found: list[tuple[str, str]]) -> None:
        for host, text in found:
            self._words.append(Say(text=text, warns=True))
            if host != self.me:
                self._send(Send(hosts=(host,), message=Notice(text=text)))

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


class FollowerLink(Link):
    """Connects, and connects again when the connection breaks."""

    def __init__(
        self,
        me: str,
        leader: str,
        key: bytes,
        times: Times,
        where: tuple[str, int],
        poll: select.epoll | None = None,
    ) -> None:
        super().__init__(me, key, poll)
        now_s = time.monotonic()
        self.roll = Follower(me, leader, times, now_s)
        self._where = where
        self._addresses: list[Address] = []
        self._lookup: Lookup | None = None
        self._resolved_s = now_s
        self._met = False
        self._mark = os.urandom(8).hex()
        self._clock = Clock()
        self.connection: Connection | None = None
        self._proved = False
        self._next_try_s = now_s

    def serve(self) -> None:
        """Do what is due: the connection, messages, beats."""
        for fd, events in self._poll.poll(0, 16):
            if self._lookup is not None and fd == self._lookup.fd:
                self._take_found(self._lookup)
            elif self.connection is not None:
                self.on_ready(self.connection, events)
        self.serve_time()

    def serve_time(self) -> None:
        """Do what is due by time alone."""
        now_s = time.monotonic()
        connection = self.connection
        if connection is None:
            if now_s >= self._next_try_s and self.roll.verdict is None:
                self._connect(now_s)
        elif not self._proved and now_s - connection.born_s > PROVE_WITHIN_S:
            self.lose(connection)
        if self.roll.next_s(now_s) <= 0:
            self._do(self.roll.tick(now_s, time.time_ns(), self._clock.offset_ns))

    def rest_s(self) -> float:
        """Return the seconds until `serve` is due in any case."""
        now_s = time.monotonic()
        rest_s = self.roll.next_s(now_s)
        if self.connection is None and self.roll.verdict is None:
            return max(min(rest_s, self._next_try_s - now_s), 0.0)
        return rest_s

    def tell(self, message: Message) -> None:
        """Say *message* to the leader. What has come before a stop is taken first: that the leader is gone, too."""
        if isinstance(message, Stop):
            self.serve()
        self._do(self.roll.tell(message, time.monotonic()))

    @property
    def clock_offset_ns(self) -> int:
        """What to add to a time of this host to have the leader's."""
        return self._clock.offset_ns

    @property
    def verdict(self) -> Report | None:
        return self.roll.verdict

    @property
    def finished(self) -> bool:
        """True once the verdict is known."""
        return self.roll.verdict is not None

    def close(self) -> None:
        if self.connection is not None:
            self._forget(self.connection)
        if self._lookup is not None:
            self._lookup.close()
        super().close()

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection.seal is None:
            self._introduce(connection, frame)
            return
        message = connection.seal.open(frame)
        now_s, now_ns = time.monotonic(), time.time_ns()
        if isinstance(message, Pong):
            self._clock.heard(message, now_ns)
        if not self._proved:
            self._proved = self._met = True
            self._do(self.roll.joined(now_s, now_ns))
        self._do(self.roll.heard(message, now_s))
        if self.roll.verdict is not None:
            self.lose(connection)

    def lose(self, connection: Connection) -> None:
        if connection is not self.connection:
            return
        self._forget(connection)
        self.connection = None
        self._next_try_s = time.monotonic() + RETRY_S
        if self._proved:
            self._proved = False
            self._do(self.roll.left(time.monotonic()))
        elif connection.seal is not None:
            self._next_try_s += REFUSED_RETRY_S
            self._do(self.roll.refused())

    def _introduce(self, connection: Connection, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise RefusedError("something at the leader's address that is no leader")
        connection.seal = Seal(self._key, nonce, connection.nonce, "up")
        sealed = connection.seal.seal(encode(Hello(host=self.me, mark=self._mark)))
        length = (len(sealed) - HEAD_BYTES + NONCE_BYTES).to_bytes(HEAD_BYTES, "big")
        connection.frames.largest_bytes = LARGEST_BYTES
        if not self._write(connection, length + connection.nonce + sealed[HEAD_BYTES:]):
            self.lose(connection)

    def _connect(self, now_s: float) -> None:
        self._next_try_s = now_s + RETRY_S
        if not self._addresses or (not self._met and now_s >= self._resolved_s + RESOLVE_EVERY_S):
            try:
                self._addresses = addresses(*self._where, flags=socket.AI_NUMERICHOST)
            except (OSError, UnicodeError):
                self._lookup = Lookup(*self._where)
                self._poll.register(self._lookup.fd, READ)
                self._next_try_s = math.inf
                return
            self._resolved_s = now_s
        self._try_next(now_s)

    def _take_found(self, lookup: Lookup) -> None:
        now_s = time.monotonic()
        self._poll.unregister(lookup.fd)
        lookup.close()
        self._lookup = None
        if lookup.found:
            self._addresses = lookup.found
            self._resolved_s = self._next_try_s = now_s
        else:
            self._next_try_s = now_s + UNKNOWN_RETRY_S

    def _try_next(self, now_s: float) -> None:
        family, address = self._addresses[0]
        self._addresses = [*self._addresses[1:], self._addresses[0]]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
            sock.close()
            return
        self._proved = False
        self.connection = Connection(sock, now_s)
        self._watch(self.connection)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if not isinstance(action, Send):
                self._words.append(action)
                continue
            connection = self.connection
            if connection is None or connection.seal is None or not self._proved:
                continue
            if not self._write(connection, connection.seal.seal(encode(action.message))):
                self.lose(connection)


def listen(address: str | None, port: int) -> socket.socket:
    """Return a socket that listens on *address*; on every one, IPv6 and IPv4, if it is None or none of this host's (a
    service's address, or one translated on the way).

    Raises:
        OSError: the port is taken.
    """
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            return socket.create_server((address, port), family=family, backlog=4096)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=4096)


def make_room(hosts: int) -> None:
    """Raise this process's soft limit of descriptors, if so many hosts need it and the hard limit lets it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hosts + OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _peer(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "an address that is gone"
