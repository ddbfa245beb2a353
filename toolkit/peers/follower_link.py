"""A follower's end of the link: it finds the leader, connects, and connects again."""

import contextlib
import errno
import math
import os
import select
import socket
import time

from toolkit.peers.clock import Clock, on_clock
from toolkit.peers.follower import Follower
from toolkit.peers.frames import HEAD_BYTES, LARGEST_BYTES, NONCE_BYTES, RefusedError, Seal, encode
from toolkit.peers.link import PROVE_WITHIN_S, READ, Connection, Link
from toolkit.peers.lookup import Address, Lookup, addresses
from toolkit.peers.messages import Hello, Message, Pong, Report, Stop, Welcome
from toolkit.peers.roll import Action, Send, Times

RETRY_S = 0.1
# Until the leader is met, its name may not resolve yet, or to an address of before.
RESOLVE_EVERY_S = 5.0
UNKNOWN_RETRY_S = 1.0
REFUSED_RETRY_S = 1.0


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
        self.clock = Clock()
        self._hello_ns = 0
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
            self._do(self.roll.tick(now_s, time.monotonic_ns()))

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
        now_s, now_ns = time.monotonic(), time.monotonic_ns()
        if isinstance(message, Pong):
            self.clock.heard(message.sent_ns, message.leader_ns, now_ns)
        elif isinstance(message, Welcome):
            self.clock.heard(self._hello_ns, message.leader_ns, now_ns)
        message = on_clock(message, -self.clock.offset_ns)
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
        self._hello_ns = time.monotonic_ns()
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
            message = on_clock(action.message, self.clock.offset_ns)
            if not self._write(connection, connection.seal.seal(encode(message))):
                self.lose(connection)
