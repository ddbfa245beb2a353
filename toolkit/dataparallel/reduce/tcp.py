"""The TCP group of the ranks with the same local rank on each host: they exchange sums over it.

It has its own sockets, driven by the thread that reduces. Gloo's all-reduce of two ranks takes 1.9 ms of CPU for 4
times 256 KiB, this one 0.5: gloo's threads wake each other for every message, so only large chunks (cold in the
caches) would pay. `start` sends what the kernel accepts at once, `finish` waits for the rest.

Each rank listens on every address by which others may know it, and puts these addresses and a random token into the
group's store. Of two ranks the higher one connects. It sends the other's token and expects its own back. An address
that leads elsewhere (127.0.1.1 in /etc/hosts) fails this check and the next is tried; other processes' connections
are closed.
"""

import contextlib
import hmac
import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.dataparallel.reduce.shared_memory import GroupClosed, PeerLost, PeerTimeout, size_mismatch

TOKEN_BYTES = 16
SIGNATURE = struct.Struct("<q")
HELLO = struct.Struct(f"<{TOKEN_BYTES}sq")
CONNECT_WITHIN_S = 5.0  # for one address: behind a firewall that drops packets, none answers


class TcpGroup:
    """This process's membership, as number *me*; *names* are the ranks' names for messages."""

    def __init__(self, me: int, names: tuple[str, ...], timeout_s: float) -> None:
        self.me = me
        self.size = len(names)
        self._names = names
        self._timeout_s = timeout_s
        self._peers: dict[int, socket.socket] = {}
        self._sends: dict[int, list[memoryview]] = {}
        self._receives: dict[int, list[memoryview]] = {}
        self._is_closed = False
        # Of the current all-reduce (shared_memory.signature). Sent before each message; the receiver compares it.
        self.signature = 0
        self._heads: dict[int, bytearray] = {}

    def connect(
        self, put: Callable[[str, str], None], get: Callable[[str], str], addresses: Sequence[str], within_s: float
    ) -> None:
        """Connect to all other ranks, which find this one at one of *addresses*. All ranks call this together.

        *put* and *get* (which waits) access a store that these ranks share.

        Raises:
            OSError: no address can be listened on, or a peer did not connect within *within_s*.
        """
        deadline_s = time.monotonic() + within_s
        token = secrets.token_bytes(TOKEN_BYTES)
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(listener) for listener in _listen(addresses)]
            put(f"door/{self.me}", json.dumps([token.hex(), [listener.getsockname()[:2] for listener in listeners]]))
            known = [json.loads(get(f"door/{peer}")) for peer in range(self.size)]
            if shut := [name for name, (_, its) in zip(self._names, known, strict=True) if not its]:
                raise ConnectionRefusedError(f"{shut[0]} has no address that it could listen on")
            tokens = [bytes.fromhex(one) for one, _ in known]
            for peer in range(self.me):
                self._peers[peer] = self._connect_to(peer, known[peer][1], tokens, deadline_s)
            while len(self._peers) < self.size - 1:
                self._accept(listeners, tokens, deadline_s)
        for its in self._peers.values():
            its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            its.setblocking(False)

    def start(self, sends: Mapping[int, memoryview], receives: Mapping[int, memoryview]) -> None:
        """Begin to send the bytes *sends*[peer] to each peer and to fill *receives*[peer] from it.

        `finish` completes it.

        Raises:
            PeerLost, GroupClosed: as `finish`.
        """
        own = SIGNATURE.pack(self.signature)
        self._sends = {peer: [memoryview(own), view] for peer, view in sends.items() if view}
        self._heads = {peer: bytearray(SIGNATURE.size) for peer, view in receives.items() if view}
        self._receives = {peer: [memoryview(self._heads[peer]), view] for peer, view in receives.items() if view}
        for peer in list(self._sends):
            self._send(peer, "an all-reduce")

    def finish(self, what: str) -> None:
        """Return when everything that `start` began is sent and received.

        Raises:
            PeerLost: a peer ended or closed its group.
            PeerTimeout: the exchange took longer than timeout_s; *what* says in what, for the message.
            GroupClosed: another thread of this rank called `close`.
            SizeMismatch: the peer's message belongs to an all-reduce of another size.
        """
        ready = dict.fromkeys({*self._sends, *self._receives}, select.POLLIN | select.POLLOUT)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            for peer, events in ready.items():
                if events & ~select.POLLOUT and peer in self._receives:
                    self._receive(peer, what)
                if events & ~select.POLLIN and peer in self._sends:
                    self._send(peer, what)
            if not self._sends and not self._receives:
                return
            ready = self._wait(deadline_s, what)

    def close(self) -> None:
        """Leave the group: peers that wait for this rank raise PeerLost. Any thread may call it, more than once."""
        self._is_closed = True
        for its in self._peers.values():
            with contextlib.suppress(OSError):
                its.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the sockets. Only the thread that reduces does so, after its last call, and a forked child."""
        self._is_closed = True
        self._sends, self._receives = {}, {}
        for its in self._peers.values():
            its.close()

    def _send(self, peer: int, what: str) -> None:
        views = self._sends[peer]
        try:
            views = _rest(views, self._peers[peer].sendmsg(views))
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(peer, what) from error
        if views:
            self._sends[peer] = views
        else:
            del self._sends[peer]

    def _receive(self, peer: int, what: str) -> None:
        views = self._receives[peer]
        try:
            count = self._peers[peer].recvmsg_into(views)[0]
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(peer, what) from error
        if not count:
            raise self._lost(peer, what)
        rest = _rest(views, count)
        if len(views) > 1 and len(rest) <= 1:
            mismatch = size_mismatch(
                self.signature, SIGNATURE.unpack(self._heads[peer])[0], f"{self._names[peer]} on another host"
            )
            if mismatch is not None:
                raise mismatch
        if rest:
            self._receives[peer] = rest
        else:
            del self._receives[peer]

    def _wait(self, deadline_s: float, what: str) -> dict[int, int]:
        """Return {peer: what it is ready for}."""
        poll, peers = select.poll(), {}
        for peer in {*self._sends, *self._receives}:
            wanted = (select.POLLIN if peer in self._receives else 0) | (select.POLLOUT if peer in self._sends else 0)
            poll.register(self._peers[peer], wanted)
            peers[self._peers[peer].fileno()] = peer
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            absent = ", ".join(self._names[peer] for peer in sorted(peers.values()))
            raise PeerTimeout(f"Timed out waiting {self._timeout_s:g} s for {absent} in {what}")
        return {peers[descriptor]: events for descriptor, events in ready}

    def _lost(self, peer: int, what: str) -> Exception:
        if self._is_closed:
            return GroupClosed(f"{what} was given up: its process group is being closed")
        return PeerLost(f"Connection closed by peer: {self._names[peer]} on another host ended or left in {what}")

    def _connect_to(self, peer: int, listeners: Any, tokens: list[bytes], deadline_s: float) -> socket.socket:
        tried = []
        for address, port in listeners:
            rest_s = min(CONNECT_WITHIN_S, max(0.01, deadline_s - time.monotonic()))
            try:
                its = socket.create_connection((address, port), timeout=rest_s)
            except OSError as error:
                tried.append(f"{address} port {port}: {error}")
                continue
            try:
                its.sendall(HELLO.pack(tokens[peer], self.me))
                if hmac.compare_digest(its.recv(TOKEN_BYTES, socket.MSG_WAITALL), tokens[self.me]):
                    return its
                tried.append(f"{address} port {port}: another process answered")
            except OSError as error:
                tried.append(f"{address} port {port}: {error}")
            its.close()
        raise ConnectionRefusedError(f"{self._names[peer]} could not be reached ({'; '.join(tried)})")

    def _accept(self, listeners: list[socket.socket], tokens: list[bytes], deadline_s: float) -> None:
        poll = select.poll()
        by_descriptor = {listener.fileno(): listener for listener in listeners}
        for listener in listeners:
            poll.register(listener, select.POLLIN)
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            absent = [self._names[peer] for peer in range(self.me + 1, self.size) if peer not in self._peers]
            raise TimeoutError(f"{', '.join(absent)} did not connect")
        its, _ = by_descriptor[ready[0][0]].accept()
        its.settimeout(CONNECT_WITHIN_S)
        with contextlib.suppress(OSError, struct.error):
            said, peer = HELLO.unpack(its.recv(HELLO.size, socket.MSG_WAITALL))
            if hmac.compare_digest(said, tokens[self.me]) and self.me < peer < self.size and peer not in self._peers:
                its.sendall(tokens[peer])
                self._peers[peer] = its
                return
        its.close()  # Another process's.


def _rest(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what remains of *views* after their first *count* bytes."""
    while views and count >= len(views[0]):
        count -= len(views[0])
        views = views[1:]
    return [views[0][count:], *views[1:]] if views else []


def _listen(addresses: Sequence[str]) -> list[socket.socket]:
    """Return a listening socket for each of *addresses* that can be listened on."""
    found = []
    for address in addresses:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            listener.bind((address, 0))
            listener.listen()
        except OSError:
            listener.close()
            continue
        found.append(listener)
    return found
