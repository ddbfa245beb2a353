"""Links over real sockets in one thread, and a wire between them that a test can cut, record and stall."""

import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from toolkit.train.peers.follower_link import FollowerLink
from toolkit.train.peers.frames import HEAD_BYTES, job_key
from toolkit.train.peers.leader_link import LeaderLink, listen
from toolkit.train.peers.link_end import LinkEnd
from toolkit.train.peers.protocol import Action, Timeouts

KEY = job_key(b"secret", ("algo-1", "algo-2"), b"")
TIMES = Timeouts(heartbeat_s=0.2, heartbeat_timeout_s=5.0, join_s=30.0, finish_timeout_s=0.0, grace_s=1.0)


class Party:
    """The links of one test, each with the actions it was told; `until` serves them all."""

    def __init__(
        self,
        count: int,
        *,
        times: Timeouts = TIMES,
        address: str = "127.0.0.1",
        tag: bytes = b"",
        facts: dict[str, str] | None = None,
        send_buffer_bytes: int | None = None,
    ) -> None:
        """*send_buffer_bytes*: what the kernel takes of the leader for one connection before the host has read it."""
        self.hosts = tuple(f"algo-{number}" for number in range(1, count + 1))
        self.times = times
        listener = listen(address, 0)
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self.where: tuple[str, int] = listener.getsockname()[:2]
        self.leader = LeaderLink(self.hosts, KEY, times, listener, tag=tag, facts=facts)
        self.links: list[LeaderLink | FollowerLink] = [self.leader]
        self.done: dict[LinkEnd, list[Action]] = {self.leader: []}
        self.others: list[Callable[[], None]] = []

    def follower(
        self,
        name: str,
        *,
        key: bytes = KEY,
        where: tuple[str, int] | None = None,
        others: tuple[int, ...] = (),
        tag: bytes = b"",
        facts: dict[str, str] | None = None,
    ) -> FollowerLink:
        at = where or self.where
        link = FollowerLink(name, "algo-1", key, self.times, at, others=others, tag=tag, facts=facts)
        self.links.append(link)
        self.done[link] = []
        return link

    def followers(self) -> list[FollowerLink]:
        return [self.follower(name) for name in self.hosts[1:]]

    def told(self, link: LinkEnd, kind: type[Action]) -> list[Action]:
        return [action for action in self.done[link] if isinstance(action, kind)]

    def turn(self, wait_s: float = 0.05) -> None:
        poll = select.poll()
        for link in self.links:
            poll.register(link.fd, select.POLLIN)
        poll.poll(min([wait_s, *(link.due_in_s() for link in self.links)]) * 1000)
        for link in self.links:
            link.serve()
            self.done[link] += link.take()
        for other in self.others:
            other()

    def until(self, done: Callable[[], bool], *, within_s: float = 60.0) -> float:
        """Serve until *done*; return the seconds it took."""
        began_s = time.monotonic()
        while not done():
            assert time.monotonic() - began_s < within_s, f"not in {within_s} s: {self.done}"
            self.turn()
        return time.monotonic() - began_s

    def close(self) -> None:
        for link in self.links:
            link.close()


@contextmanager
def party(
    count: int,
    *,
    times: Timeouts = TIMES,
    address: str = "127.0.0.1",
    tag: bytes = b"",
    facts: dict[str, str] | None = None,
    send_buffer_bytes: int | None = None,
) -> Iterator[Party]:
    made = Party(count, times=times, address=address, tag=tag, facts=facts, send_buffer_bytes=send_buffer_bytes)
    try:
        yield made
    finally:
        made.close()


class Wire:
    """A proxy before *target*: every byte passes until it is cut or stalled; `recorded` has what went up.

    `stuck`: pairs on which nothing passes any more, as where TCP waits long to send again; new ones pass. `closes`: new
    connections are passed on and closed at once. `alone`: new ones are taken, as by a load balancer that reaches
    nobody, and kept open ("holds"), closed, or reset. `largest_bytes`: a larger frame is lost, and all after it.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.where: tuple[str, int] = self._listener.getsockname()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.recorded: list[bytes] = []
        self.stalled = False
        self.connections = 0
        self.closes = False
        self.alone: Literal["", "holds", "closes", "resets"] = ""
        self._kept: list[socket.socket] = []
        self.closed = 0
        self.largest_bytes: int | None = None
        self._stuck: set[socket.socket] = set()
        self._held: dict[socket.socket, bytes] = {}

    def serve(self) -> None:
        while not self.stalled:
            try:
                near, _ = self._listener.accept()
            except BlockingIOError:
                break
            if self.alone:
                self._take_alone(near)
                continue
            far = socket.create_connection(self._target)
            if self.closes:
                near.close()
                far.close()
                self.closed += 1
                continue
            for end in (near, far):
                end.setblocking(False)
            self._pairs.append((near, far))
            self.recorded.append(b"")
            self.connections += 1
        for number, (near, far) in enumerate(self._pairs):
            if not self.stalled and near.fileno() >= 0:
                self.recorded[number] += self._pass(near, far)
                self._pass(far, near)

    def _take_alone(self, near: socket.socket) -> None:
        self.closed += 1
        if self.alone == "holds":
            self._kept.append(near)
            return
        if self.alone == "resets":
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        near.close()

    def _pass(self, one: socket.socket, other: socket.socket) -> bytes:
        if one in self._stuck:
            return b""
        try:
            piece = one.recv(1 << 16)
            if piece:
                other.sendall(piece if self.largest_bytes is None else self._whole_and_small(one, piece))
                return piece
        except BlockingIOError:
            return b""
        except OSError:
            pass
        one.close()
        other.close()
        return b""

    def _whole_and_small(self, one: socket.socket, piece: bytes) -> bytes:
        """Return the whole frames that may pass; from the first that is too large on nothing does."""
        assert self.largest_bytes is not None
        held, passed = self._held.get(one, b"") + piece, b""
        while len(held) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(held[:HEAD_BYTES], "big")
            if end > self.largest_bytes:
                self._stuck.add(one)
                break
            if len(held) < end:
                break
            passed, held = passed + held[:end], held[end:]
        self._held[one] = held
        return passed

    def stick(self) -> None:
        """Let nothing pass any more on the connections that there are; no end notices."""
        for pair in self._pairs:
            self._stuck.update(pair)

    def drop(self) -> None:
        """Answer no new connection any more, as a kernel whose queue is full; `stalled` ends that."""
        self.stalled = True
        self._listener.listen(0)
        self._kept += [socket.socket() for _ in range(3)]
        for near in self._kept:
            near.setblocking(False)
            near.connect_ex(self.where)

    def cut(self) -> None:
        for pair in self._pairs:
            for end in pair:
                end.close()
        for near in self._kept:
            near.close()
        self._pairs.clear()
        self._kept.clear()
        self.recorded.clear()

    def close(self) -> None:
        self.cut()
        self._listener.close()


@contextmanager
def wire(together: Party) -> Iterator[Wire]:
    made = Wire(together.where)
    together.others.append(made.serve)
    try:
        yield made
    finally:
        together.others.remove(made.serve)
        made.close()


@contextmanager
def child(serve: Callable[[], None], closed: Sequence[LinkEnd] = ()) -> Iterator[int]:
    """Run *serve* in a child process; it is killed at the end of the block. Yields its pid.

    *closed*: links of this process that the child must not hold open.
    """
    pid = os.fork()
    if pid == 0:
        try:
            for link in closed:
                link.close()
            serve()
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
        os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
