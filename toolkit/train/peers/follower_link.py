"""A follower's end of the link: it finds the leader, connects, and reconnects."""

import errno
import math
import os
import select
import socket
import time
from collections.abc import Mapping

from toolkit.job.events import Stop
from toolkit.train.peers import sameness
from toolkit.train.peers.clock import LeaderClock, move_clock
from toolkit.train.peers.follower import Follower
from toolkit.train.peers.frames import HEAD_BYTES, LARGEST_BYTES, NONCE_BYTES, REFUSAL, FrameRefusedError, Seal, encode
from toolkit.train.peers.link_end import MARK_BYTES, READ, WRITE, Connection, LinkEnd, near_end, prepare
from toolkit.train.peers.messages import EndReport, Hello, Message, Pong, Welcome
from toolkit.train.peers.protocol import Action, Send, Timeouts
from toolkit.train.peers.route import Route
from toolkit.train.peers.space import own_space

UNKNOWN_RETRY_S = 1.0
REFUSED_RETRY_S = 1.0


class FollowerLink(LinkEnd):
    """Connects, and reconnects when the connection is lost or silent.

    *where*: the leader's name or address and its port; *others*: the ports that the leader uses if that one is taken.
    *tag*: of the job; *facts*: what must be equal on all hosts (sameness.py).
    """

    def __init__(
        self,
        me: str,
        leader: str,
        key: bytes,
        times: Timeouts,
        address: tuple[str, int],
        poll: select.epoll | None = None,
        *,
        others: tuple[int, ...] = (),
        tag: bytes = b"",
        facts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(me, key, poll)
        self._tag, self._facts = tag, dict(facts or {})
        now_s = time.monotonic()
        self._route = Route(address[0], (address[1], *others), now_s)
        self.protocol = Follower(me, leader, times, now_s, tried=self._route.describe_tries)
        self._mark = os.urandom(MARK_BYTES).hex()
        self.clock = LeaderClock()
        self._hello_ns = 0
        # The connection on which the leader has proved itself, and the one on which it has not yet.
        self._proved: Connection | None = None
        self._attempt: Connection | None = None
        self._next_try_s = now_s
        self._looks_up = False

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open connections."""
        return tuple(connection for connection in (self._proved, self._attempt) if connection is not None)

    def serve(self) -> None:
        """Do what is due: the connection, messages, heartbeats."""
        for fd, events in self._poll.poll(0, 16):
            self.serve_fd(fd, events)
        self.serve_time()

    def serve_fd(self, fd: int, events: int) -> None:
        """Serve a descriptor that is ready."""
        lookup = self._route.lookup
        if lookup is not None and fd == lookup.fd:
            self._poll.unregister(fd)
            now_s = time.monotonic()
            self._looks_up = False
            is_known = self._route.take_lookup(now_s)
            if self._next_try_s == math.inf:
                self._next_try_s = now_s if is_known else now_s + UNKNOWN_RETRY_S
            return
        for connection in (self._proved, self._attempt):
            if connection is not None and connection.sock.fileno() == fd:
                if connection is self._attempt and not connection.taken and events & WRITE:
                    self._note_taken(connection)
                self.on_ready(connection, events)

    def serve_time(self) -> None:
        """Do what is due by time."""
        now_s = time.monotonic()
        attempt = self._attempt
        if attempt is not None and attempt.taken and self._route.met:
            self.protocol.contact.note_knock(now_s)
        if attempt is not None and now_s > self._attempt_ends_s(attempt):
            self._route.note_outcome("another program answers" if attempt.taken else "no answer")
            self.lose(attempt)
        if self._needs_connection(now_s) and now_s >= self._next_try_s:
            self._connect(now_s)
        if self.protocol.due_in_s(now_s) <= 0:
            self._do(self.protocol.tick(now_s, time.monotonic_ns()))

    def due_in_s(self) -> float:
        """Return the seconds until `serve` is due even if nothing comes."""
        now_s = time.monotonic()
        due_in_s = self.protocol.due_in_s(now_s)
        if self._attempt is not None:
            return max(min(due_in_s, self._attempt_ends_s(self._attempt) - now_s), 0.0)
        if self._needs_connection(now_s):
            return max(min(due_in_s, self._next_try_s - now_s), 0.0)
        return due_in_s

    def _attempt_ends_s(self, attempt: Connection) -> float:
        return attempt.born_s + (self._route.within_s if attempt.taken else self._route.connect_s)

    def _pause_s(self, now_s: float) -> float:
        return self._route.pause_s(now_s, int.from_bytes(os.urandom(2), "big") / 0xFFFF)

    def _needs_connection(self, now_s: float) -> bool:
        if self._attempt is not None or self.protocol.verdict is not None:
            return False
        return self._proved is None or self.protocol.contact.is_quiet(now_s)

    def tell(self, message: Message) -> None:
        """Send *message* to the leader. Before a stop, handle what came earlier, the loss of the leader included."""
        if isinstance(message, Stop):
            self.serve()
        self._do(self.protocol.tell(message, time.monotonic()))

    @property
    def verdict(self) -> EndReport | None:
        return self.protocol.verdict

    @property
    def is_finished(self) -> bool:
        """True once the verdict is known."""
        return self.protocol.verdict is not None

    def close(self) -> None:
        for connection in self.connections:
            self._forget(connection)
        self._route.close()
        super().close()

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection.seal is None:
            self._introduce(connection, frame)
            return
        if frame == REFUSAL and connection is self._attempt:
            connection.refused = True
            self.lose(connection)
            return
        message = connection.seal.open(frame)
        now_s, now_ns = time.monotonic(), time.monotonic_ns()
        if isinstance(message, Welcome) and not self.protocol.recognize_leader(message.mark):
            self._attempt = None
            self._forget(connection)
            self._do(self.protocol.on_replaced_leader(now_s, now_ns))
            return
        if isinstance(message, Pong):
            self.clock.note_exchange(message.sent_ns, message.leader_ns, now_ns)
        elif isinstance(message, Welcome):
            self.clock.note_exchange(self._hello_ns, message.leader_ns, now_ns)
        else:
            message = move_clock(message, -self.clock.offset_ns)
        if connection is self._attempt:
            replaced, self._proved, self._attempt = self._proved, connection, None
            if replaced is not None:
                self._forget(replaced)
            self._route.note_success(self.clock.way_ns / 1e9, now_s)
            self._do(self.protocol.on_connect(now_s, now_ns))
        self._do(self.protocol.on_message(message, now_s))
        if self.protocol.verdict is not None:
            self.lose(connection)

    def lose(self, connection: Connection) -> None:
        now_s = time.monotonic()
        if connection is self._proved:
            self._proved = None
            self._forget(connection)
            self._route.note_loss(now_s)
            self._do(self.protocol.on_disconnect(now_s))
        elif connection is self._attempt:
            self._attempt = None
            self._forget(connection)
            self._next_try_s = now_s + self._pause_s(now_s)
            if connection.taken:
                self._on_turned_away(now_s, connection)
            else:
                self._note_nobody(refused=connection.refused)

    def _note_nobody(self, *, refused: bool) -> None:
        if self._route.met:
            self.protocol.contact.note_nobody(refused=refused)

    def _note_taken(self, connection: Connection) -> None:
        """Note that *connection* was accepted, unless SO_ERROR has an error (connect(2)). A reset also means that it
        was accepted, by a load balancer without a backend; a connection that was not accepted would be refused."""
        error = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error not in (0, errno.ECONNRESET):
            connection.refused = error == errno.ECONNREFUSED
            self._route.note_outcome(describe_outcome(error))
            return
        connection.taken = True
        if self._route.met:
            self.protocol.contact.note_knock(time.monotonic())

    def _on_turned_away(self, now_s: float, connection: Connection) -> None:
        """Handle a connection that was accepted and then closed, or was too slow.

        After the leader was met, it is only a bad network."""
        refused, last = connection.refused, self._route.last
        if connection.of_another_job:
            who, way_out = "the leader of another job answers", self._one_name
            answerer = f"{who} at {last}"
        else:
            who, way_out = "another program answers", self._route.ways_out
            answerer = f"something takes connections at {last} and does not answer as the leader"
        self._route.note_outcome("the leader refuses this host" if refused else who)
        if not refused:
            self._do(
                self.protocol.contact.note_answerer(answerer if self._route.met else f"{answerer}; {way_out}", now_s)
            )
        if self._route.met:
            self.protocol.contact.note_knock(now_s)
            return
        self._route.note_other_program()
        if refused:
            self._next_try_s = now_s + (self._pause_s(now_s) if self._route.elsewhere else REFUSED_RETRY_S)
            self._do(self.protocol.on_refusal(now_s))

    @property
    def _one_name(self) -> str:
        name = self._facts.get(sameness.NAME) or "none"
        own_name = "" if name.startswith("#") else f" (here the job's name is {name})"
        return f"if it should be this job's, give every host the same job name and list of hosts{own_name}"

    def _introduce(self, connection: Connection, greeting: bytes) -> None:
        nonce, tag = greeting[:NONCE_BYTES], greeting[NONCE_BYTES:]
        if len(nonce) != NONCE_BYTES or len(tag) not in (len(self._tag), 0):
            raise FrameRefusedError("something at the leader's address that is no leader")
        if tag not in (self._tag, b""):
            connection.of_another_job = True
            raise FrameRefusedError("the leader of another job at the leader's address")
        connection.seal = Seal(self._key, nonce, connection.nonce, "up")
        self._hello_ns = time.monotonic_ns()
        end = near_end(connection.sock)
        hello = Hello(
            host=self.me,
            end=end,
            space=own_space(),
            mark=self._mark,
            leader_mark=self.protocol.leader_mark,
            tag=self._tag.hex(),
            facts=self._facts,
        )
        sealed = connection.seal.seal(encode(hello))
        length = (len(sealed) - HEAD_BYTES + NONCE_BYTES).to_bytes(HEAD_BYTES, "big")
        connection.frames.largest_bytes = LARGEST_BYTES
        if not self._write(connection, length + connection.nonce + sealed[HEAD_BYTES:]):
            self.lose(connection)

    def _connect(self, now_s: float) -> None:
        self._next_try_s = now_s + self._pause_s(now_s)
        candidate = self._route.choose_address(now_s)
        if self._route.lookup is not None and not self._looks_up:
            self._poll.register(self._route.lookup.fd, READ)
            self._looks_up = True
        if candidate is None:
            self._next_try_s = math.inf
            return
        family, address = candidate
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # For example no IPv6 on this host: try the leader's next address.
            self._route.note_outcome(describe_outcome(error.errno or 0))
            return
        sock.setblocking(False)
        prepare(sock)
        if (error_number := sock.connect_ex(address)) not in (0, errno.EINPROGRESS):
            self._route.note_outcome(describe_outcome(error_number))
            self._note_nobody(refused=error_number == errno.ECONNREFUSED)
            sock.close()
            return
        self._attempt = Connection(sock, now_s)
        # It becomes writable when it is accepted or refused; from then on only reads are polled.
        self._poll.register(sock.fileno(), READ | WRITE)
        self._attempt.watched = READ | WRITE

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if not isinstance(action, Send):
                self._words.append(action)
                continue
            connection = self._proved
            if connection is None or connection.seal is None:
                continue
            message = move_clock(action.message, self.clock.offset_ns)
            if not self._write(connection, connection.seal.seal(encode(message))):
                self.lose(connection)


def describe_outcome(error: int) -> str:
    """Return, in words, how a try ended that failed with *error*."""
    return "nothing listens there" if error == errno.ECONNREFUSED else os.strerror(error)
