"""The sockets between the `train` processes of one job. One descriptor (`fd`) tells the loop that there is something
to do.

Opening: the leader sends its nonce; the follower answers with its own and a sealed Hello; the leader's sealed Welcome
proves that it has the key, too. Until then a connection may send 1 KiB within 5 s, and only so many are open at once.
Whatever is not sealed with this job's key is refused, counted and closed, and the job goes on.
"""

import contextlib
import errno
import os
import select
import socket
import time
from collections import Counter

from toolkit.peers.messages import (
    HEAD_BYTES,
    LARGEST_BYTES,
    NONCE_BYTES,
    Clock,
    Frames,
    Hello,
    Message,
    Pong,
    RefusedError,
    Report,
    Seal,
    encode,
)
from toolkit.peers.roll import Action, Drop, Follower, Leader, Say, Send, Times

PROVE_WITHIN_S = 5.0
UNPROVED_AT_ONCE = 256
OUT_LIMIT_BYTES = 4 << 20
RETRY_S = 0.1
Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class Connection:
    """One socket: frames in, frames out, never blocking."""

    def __init__(self, sock: socket.socket, now_s: float) -> None:
        self.sock = sock
        self.born_s = now_s
        self.frames = Frames()
        self.seal: Seal | None = None
        self.host: str | None = None
        self.mark = ""
        self.nonce = os.urandom(NONCE_BYTES)
        self.out = bytearray()

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
        self.out += frame
        if len(self.out) > OUT_LIMIT_BYTES:
            return False
        return self.flush()

    def flush(self) -> bool:
        """Send what goes; False if the connection is of no use any more."""
        while self.out:
            try:
                del self.out[: self.sock.send(self.out, socket.MSG_NOSIGNAL)]
            except BlockingIOError:
                return True
            except OSError:
                return False
        return True


class Link:
    """What the leader's and the follower's link share: the poll, the words for the loop, the end."""

    def __init__(self, me: str, key: bytes) -> None:
        self.me = me
        self._key = key
        self._poll = select.epoll()
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

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            self._words.append(Say(text=f"link: refused {reason}"))

    def _watch(self, connection: Connection) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if connection.out else 0)
        with contextlib.suppress(OSError):
            self._poll.modify(connection.sock.fileno(), events)

    def _forget(self, connection: Connection) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(connection.sock.fileno())
        connection.sock.close()


class LeaderLink(Link):
    """Listens; one connection a follower."""

    def __init__(self, hosts: tuple[str, ...], key: bytes, times: Times, listener: socket.socket) -> None:
        super().__init__(hosts[0], key)
        now_s = time.monotonic()
        self.roll = Leader(hosts, times, now_s)
        self._hosts = frozenset(hosts[1:])
        self._listener = listener
        listener.setblocking(False)
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._open: dict[int, Connection] = {}
        self._unproved: dict[int, Connection] = {}
        self._of: dict[str, Connection] = {}

    def serve(self) -> None:
        """Do what is due: connections, messages, beats."""
        for fd, events in self._poll.poll(0, 4096):
            if fd == self._listener.fileno():
                self._accept()
            elif (connection := self._open.get(fd)) is not None:
                self._on_ready(connection, events)
        now_s = time.monotonic()
        for connection in [c for c in self._unproved.values() if now_s - c.born_s > PROVE_WITHIN_S]:
            self._refuse("a connection that said nothing to prove itself")
            self._close(connection)
        if self.roll.next_s(now_s) <= 0.01:
            self._do(self.roll.tick(now_s, time.time_ns()))

    def rest_s(self) -> float:
        """Return the seconds until `serve` is due in any case."""
        return self.roll.next_s(time.monotonic())

    def tell(self, message: Message) -> None:
        """Say *message* as this host."""
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
        """True once every follower that is there has taken the verdict (and left)."""
        return self.roll.verdict is not None and not self._of

    def close(self) -> None:
        """Close everything; what a follower has not taken is lost."""
        for connection in list(self._open.values()):
            self._forget(connection)
        self._open.clear()
        self._poll.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(1024):
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._refuse("a connection for which there was no descriptor left (ulimit -n)")
                return
            if len(self._unproved) >= UNPROVED_AT_ONCE + len(self._hosts):
                sock.close()
                self._refuse("connections beyond those that may wait to prove themselves")
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, time.monotonic())
            self._open[sock.fileno()] = self._unproved[sock.fileno()] = connection
            self._poll.register(sock.fileno(), select.EPOLLIN)
            connection.write(NONCE_BYTES.to_bytes(HEAD_BYTES, "big") + connection.nonce)

    def _on_ready(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            if not connection.flush():
                self._close(connection)
                return
            self._watch(connection)
        if not events & ~select.EPOLLOUT:
            return
        piece = connection.read()
        if piece is None:
            self._close(connection)
            return
        try:
            for frame in connection.frames.feed(piece):
                self._on_frame(connection, frame)
        except RefusedError as reason:
            self._refuse(str(reason))
            self._close(connection)

    def _on_frame(self, connection: Connection, frame: bytes) -> None:
        now_s, now_ns = time.monotonic(), time.time_ns()
        if connection.seal is None or connection.host is None:
            self._prove(connection, frame, now_s, now_ns)
            return
        message = connection.seal.open(frame)
        self._do(self.roll.heard(connection.host, message, now_s, now_ns))

    def _prove(self, connection: Connection, frame: bytes, now_s: float, now_ns: int) -> None:
        seal = Seal(self._key, connection.nonce, frame[:NONCE_BYTES], "down")
        hello = seal.open(frame[NONCE_BYTES:])
        if not isinstance(hello, Hello) or hello.host not in self._hosts:
            raise RefusedError("a host that is not of this job")
        before = self._of.get(hello.host)
        if self.roll.knows_other(hello.host, hello.mark):
            raise RefusedError(f"a second train that calls itself {hello.host}")
        connection.seal, connection.host, connection.mark = seal, hello.host, hello.mark
        connection.frames.largest_bytes = LARGEST_BYTES
        self._unproved.pop(connection.sock.fileno(), None)
        self._of[hello.host] = connection
        if before is not None:
            self._open.pop(before.sock.fileno(), None)
            self._forget(before)
        self._do(self.roll.joined(hello.host, now_s, now_ns))

    def _close(self, connection: Connection) -> None:
        self._open.pop(connection.sock.fileno(), None)
        self._unproved.pop(connection.sock.fileno(), None)
        self._forget(connection)
        host = connection.host
        if host is not None and self._of.get(host) is connection:
            del self._of[host]
            self._do(self.roll.left(host, time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Drop):
                for host in action.hosts:
                    if (connection := self._of.get(host)) is not None:
                        self._close(connection)
            else:
                self._words.append(action)

    def _send(self, action: Send) -> None:
        encoded = encode(action.message)
        broken = []
        for host in action.hosts:
            connection = self._of.get(host)
            if connection is None or connection.seal is None:
                continue
            if not connection.write(connection.seal.seal(encoded)):
                broken.append(connection)
            elif connection.out:
                self._watch(connection)
        for connection in broken:
            self._close(connection)


class FollowerLink(Link):
    """Connects, and connects again when the connection breaks."""

    def __init__(self, me: str, leader: str, key: bytes, times: Times, where: tuple[str, int]) -> None:
        super().__init__(me, key)
        now_s = time.monotonic()
        self.roll = Follower(me, leader, times, now_s)
        self._where = where
        self._addresses: list[Address] = []
        self._mark = os.urandom(8).hex()
        self._clock = Clock()
        self._connection: Connection | None = None
        self._proved = False
        self._next_try_s = now_s
        self._nonce = b""

    def serve(self) -> None:
        """Do what is due: the connection, messages, beats."""
        now_s = time.monotonic()
        for _, events in self._poll.poll(0, 16):
            self._on_ready(events)
        if self._connection is None and now_s >= self._next_try_s and self.roll.verdict is None:
            self._connect(now_s)
        elif self._connection is not None and not self._proved and now_s - self._connection.born_s > PROVE_WITHIN_S:
            self._lose()
        if self.roll.next_s(now_s) <= 0.01:
            self._do(self.roll.tick(now_s, time.time_ns()))

    def rest_s(self) -> float:
        """Return the seconds until `serve` is due in any case."""
        now_s = time.monotonic()
        rest_s = self.roll.next_s(now_s)
        return max(min(rest_s, self._next_try_s - now_s), 0.01) if self._connection is None else rest_s

    def tell(self, message: Message) -> None:
        """Say *message* to the leader."""
        self._do(self.roll.tell(message))

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
        """Close everything."""
        if self._connection is not None:
            self._forget(self._connection)
        self._poll.close()

    def _connect(self, now_s: float) -> None:
        self._next_try_s = now_s + RETRY_S
        if not self._addresses:
            try:
                found = socket.getaddrinfo(*self._where, type=socket.SOCK_STREAM)
            except OSError:
                self._next_try_s = now_s + 1.0
                return
            self._addresses = [(family, address) for family, _, _, _, address in found]
        family, address = self._addresses[0]
        self._addresses = [*self._addresses[1:], self._addresses[0]]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
            sock.close()
            return
        self._connection = Connection(sock, now_s)
        self._proved = False
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _on_ready(self, events: int) -> None:
        connection = self._connection
        if connection is None:
            return
        if events & select.EPOLLOUT:
            if not connection.flush():
                self._lose()
                return
            self._watch(connection)
        if not events & ~select.EPOLLOUT:
            return
        piece = connection.read()
        if piece is None:
            self._lose()
            return
        try:
            for frame in connection.frames.feed(piece):
                self._on_frame(connection, frame)
        except RefusedError as reason:
            self._refuse(f"{reason}, from the leader's address")
            self._lose()

    def _on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection.seal is None:
            nonce = connection.nonce
            connection.seal = Seal(self._key, frame, nonce, "up")
            sealed = connection.seal.seal(encode(Hello(host=self.me, mark=self._mark)))
            length = (len(sealed) - HEAD_BYTES + NONCE_BYTES).to_bytes(HEAD_BYTES, "big")
            connection.write(length + nonce + sealed[HEAD_BYTES:])
            connection.frames.largest_bytes = LARGEST_BYTES
            return
        message = connection.seal.open(frame)
        now_s, now_ns = time.monotonic(), time.time_ns()
        if isinstance(message, Pong):
            self._clock.heard(message, now_ns)
        if not self._proved:
            self._proved = True
            self._do(self.roll.joined(now_s))
        self._do(self.roll.heard(message, now_s))
        if self.roll.verdict is not None:
            self._lose()  # The leader waits for this: with its Verdict taken, a follower is free.

    def _lose(self) -> None:
        if self._connection is not None:
            self._forget(self._connection)
        self._connection = None
        self._next_try_s = time.monotonic() + RETRY_S
        if self._proved:
            self._proved = False
            self._do(self.roll.left(time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                connection = self._connection
                if connection is not None and connection.seal is not None and self._proved:
                    if not connection.write(connection.seal.seal(encode(action.message))):
                        self._lose()
                    elif connection.out:
                        self._watch(connection)
            else:
                self._words.append(action)


def listen(address: str | None, port: int) -> socket.socket:
    """Return a socket that listens on *address* (None: on every one, IPv6 and IPv4).

    Raises:
        OSError: the port is taken, or the address is none of this host.
    """
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=4096)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=4096)
