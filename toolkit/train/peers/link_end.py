"""The sockets between the `train` processes of one job. The loop polls one descriptor (`fd`) for all of them.

The opening: the leader sends its nonce; the follower answers with its own and a sealed Hello; the leader's sealed
Welcome proves that it has the key, too. Until then a connection may send 1 KiB within 5 s. If too many wait, the oldest
is dropped, so that a flood of foreign connections displaces itself and no host of the job. Everything that is not
sealed with this job's key is refused and counted, its connection is closed, and the job goes on.
"""

import contextlib
import os
import select
import socket
from collections import Counter
from typing import Any

from toolkit.train.peers.frames import NONCE_BYTES, FrameRefusedError, Frames, Reason, Seal
from toolkit.train.peers.lookup import format_place
from toolkit.train.peers.protocol import Action, LogLine

PROVE_WITHIN_S = 5.0
MARK_BYTES = 8  # Of the random name of a process, which no other has.
OUT_LIMIT_BYTES = 4 << 20
# Every path takes segments of this size (RFC 1122's default). A tunnel that drops larger packets without an error would
# let small messages pass and delay the verdict forever.
SEGMENT_BYTES = 536
READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Connection:
    """One socket: frames in, frames out, never blocking."""

    __slots__ = (
        "address",
        "born_s",
        "frames",
        "half_closed",
        "host",
        "nonce",
        "of_another_job",
        "out",
        "refused",
        "seal",
        "sock",
        "taken",
        "watched",
    )

    def __init__(self, sock: socket.socket, now_s: float) -> None:
        self.sock = sock
        self.born_s = now_s
        self.address = ""  # Of the other end, as the leader has it.
        self.frames = Frames()
        self.seal: Seal | None = None
        self.host: str | None = None
        self.nonce = os.urandom(NONCE_BYTES)
        self.out = b""
        self.half_closed = False
        self.taken = False
        self.refused = False
        self.of_another_job = False
        self.watched = 0

    @property
    def open(self) -> bool:
        return self.sock.fileno() >= 0

    def read(self) -> bytes | None:
        """Return the bytes that came, b"" if none came, None at the end."""
        try:
            return self.sock.recv(1 << 16) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def write(self, frame: bytes) -> bool:
        """Send *frame* or queue it; return False if the other end has not taken the last 4 MiB.

        After an error the connection stays open: a message that the other end sent before (a verdict) may still be
        unread.
        """
        if not self.half_closed:
            self.out = self.out + frame if self.out else frame
            self.flush()
        return len(self.out) <= OUT_LIMIT_BYTES

    def flush(self) -> None:
        """Send as much as the socket takes."""
        while self.out:
            try:
                self.out = self.out[self.sock.send(self.out, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                return
            except OSError:
                self.half_closed, self.out = True, b""


class LinkEnd:
    """The common part of the leader's and the follower's link: the poll, the actions for the loop, the end.

    *poll* may serve several links (the benchmark's thousands of followers); `on_ready` then gets its events.
    """

    def __init__(self, me: str, key: bytes, poll: select.epoll | None = None) -> None:
        self.me = me
        self._key = key
        self._poll = poll if poll is not None else select.epoll()
        self._owns_poll = poll is None
        self.refused: Counter[Reason] = Counter()
        self._words: list[Action] = []

    @property
    def fd(self) -> int:
        """Ready when `serve` has something to do."""
        return self._poll.fileno()

    def take(self) -> list[Action]:
        """Return the actions for this host since the last call."""
        words, self._words = self._words, []
        return words

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        """Handle a whole frame.

        Raises:
            FrameRefusedError: it does not belong to this job.
        """
        raise NotImplementedError

    def lose(self, connection: Connection) -> None:
        """Close *connection*, in any state."""
        raise NotImplementedError

    def on_ready(self, connection: Connection, events: int) -> None:
        """Write to and read from *connection* what is possible now."""
        if events & WRITE:
            connection.flush()
        piece = connection.read() if events & ~WRITE else b""
        if piece is None:
            self.lose(connection)
            return
        try:
            for frame in connection.frames.feed(piece):
                self.on_frame(connection, frame)
                if not connection.open:
                    return
        except FrameRefusedError as refusal:
            self._refuse(refusal.reason, describe_peer(connection.sock))
            self.lose(connection)
            return
        self._watch(connection)

    def _refuse(self, reason: Reason, who: str) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            self._words.append(LogLine(text=f"link: refused {reason} (from {who})"))

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
        """Close all sockets; messages that the other end has not taken are lost."""
        if self._owns_poll:
            self._poll.close()


def prepare(sock: socket.socket) -> None:
    """Make *sock* send at once, in small segments. Call it before connecting or listening, so that both ends do so."""
    for option, value in ((socket.TCP_NODELAY, 1), (socket.TCP_MAXSEG, SEGMENT_BYTES)):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def describe_peer(sock: socket.socket) -> str:
    try:
        return format_place(sock.getpeername())
    except OSError:
        return "an address that is gone"


def near_end(sock: socket.socket) -> str:
    """Return the address and port of this end of *sock*, as "10.0.0.5 port 7776"; "" if it is gone."""
    try:
        return format_address(sock.getsockname())
    except OSError:
        return ""


def far_end(sock: socket.socket) -> str:
    """Return the same for the other end."""
    try:
        return format_address(sock.getpeername())
    except OSError:
        return ""


def format_address(address: Any) -> str:
    """Return a socket's *address*, IPv4 or IPv6, as text. The scope is left out, as it differs between hosts."""
    return f"{format_place(address)} port {address[1]}"
