"""The TCP group of the ranks with the same local rank on each host: they exchange sums over it.

It has its own sockets, driven by the thread that reduces. Gloo's all-reduce of two ranks takes 1.9 ms of CPU for 4
times 256 KiB, this one 0.5: gloo's threads wake each other for every message, so only large chunks (cold in the
caches) would pay. `start` sends what the kernel accepts at once, `finish` waits for the rest.

The ranks connect through a store of the group (toolkit/rank/mesh/mesh.py).
"""

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from toolkit.rank.dataparallel.reduce.shared_memory import GroupClosed, PeerLost, PeerTimeout, size_mismatch
from toolkit.rank.mesh.mesh import ContactInfo, MeshListener

SIGNATURE = struct.Struct("<q")


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
        with MeshListener(self.me, addresses) as listener:
            put(f"contact/{self.me}", json.dumps([listener.contact.token.hex(), listener.contact.addresses]))
            replies = [json.loads(get(f"contact/{peer}")) for peer in range(self.size)]
            contacts = [
                ContactInfo(bytes.fromhex(token), tuple((host, port) for host, port in addresses))
                for token, addresses in replies
            ]
            self._peers = listener.connect(contacts, self._names, within_s)
        for connection in self._peers.values():
            connection.setblocking(False)

    def start(self, sends: Mapping[int, memoryview], receives: Mapping[int, memoryview]) -> None:
        """Begin to send the bytes *sends*[peer] to each peer and to fill *receives*[peer] from it.

        `finish` completes it.

        Raises:
            PeerLost, GroupClosed: as `finish`.
        """
        signature = SIGNATURE.pack(self.signature)
        self._sends = {peer: [memoryview(signature), view] for peer, view in sends.items() if view}
        self._heads = {peer: bytearray(SIGNATURE.size) for peer, view in receives.items() if view}
        self._receives = {peer: [memoryview(self._heads[peer]), view] for peer, view in receives.items() if view}
        for peer in list(self._sends):
            self._send(peer, "an all-reduce")

    def finish(self, collective: str) -> None:
        """Return when everything that `start` began is sent and received.

        Raises:
            PeerLost: a peer ended or closed its group.
            PeerTimeout: the exchange took longer than timeout_s; *collective* says in what, for the message.
            GroupClosed: another thread of this rank called `close`.
            SizeMismatch: the peer's message belongs to an all-reduce of another size.
        """
        ready = dict.fromkeys({*self._sends, *self._receives}, select.POLLIN | select.POLLOUT)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            for peer, events in ready.items():
                if events & ~select.POLLOUT and peer in self._receives:
                    self._receive(peer, collective)
                if events & ~select.POLLIN and peer in self._sends:
                    self._send(peer, collective)
            if not self._sends and not self._receives:
                return
            ready = self._wait(deadline_s, collective)

    def close(self) -> None:
        """Leave the group: peers that wait for this rank raise PeerLost. Any thread may call it, more than once."""
        self._is_closed = True
        for connection in self._peers.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the sockets. Only the thread that reduces does so, after its last call, and a forked child."""
        self._is_closed = True
        self._sends, self._receives = {}, {}
        for connection in self._peers.values():
            connection.close()

    def _send(self, peer: int, collective: str) -> None:
        views = self._sends[peer]
        try:
            views = _skip_bytes(views, self._peers[peer].sendmsg(views))
        except BlockingIOError:
            return
        except OSError as error:
            raise self._loss_error(peer, collective) from error
        if views:
            self._sends[peer] = views
        else:
            del self._sends[peer]

    def _receive(self, peer: int, collective: str) -> None:
        views = self._receives[peer]
        try:
            count = self._peers[peer].recvmsg_into(views)[0]
        except BlockingIOError:
            return
        except OSError as error:
            raise self._loss_error(peer, collective) from error
        if not count:
            raise self._loss_error(peer, collective)
        remaining = _skip_bytes(views, count)
        if len(views) > 1 and len(remaining) <= 1:
            mismatch = size_mismatch(
                self.signature, SIGNATURE.unpack(self._heads[peer])[0], f"{self._names[peer]} on another host"
            )
            if mismatch is not None:
                raise mismatch
        if remaining:
            self._receives[peer] = remaining
        else:
            del self._receives[peer]

    def _wait(self, deadline_s: float, collective: str) -> dict[int, int]:
        """Return {peer: its ready poll events}."""
        poll, peers = select.poll(), {}
        for peer in {*self._sends, *self._receives}:
            events = (select.POLLIN if peer in self._receives else 0) | (select.POLLOUT if peer in self._sends else 0)
            poll.register(self._peers[peer], events)
            peers[self._peers[peer].fileno()] = peer
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            absent = ", ".join(self._names[peer] for peer in sorted(peers.values()))
            raise PeerTimeout(f"Timed out waiting {self._timeout_s:g} s for {absent} in {collective}")
        return {peers[descriptor]: events for descriptor, events in ready}

    def _loss_error(self, peer: int, collective: str) -> Exception:
        if self._is_closed:
            return GroupClosed(f"{collective} was given up: its process group is being closed")
        return PeerLost(f"Connection closed by peer: {self._names[peer]} on another host ended or left in {collective}")


def _skip_bytes(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what remains of *views* after their first *count* bytes."""
    while views and count >= len(views[0]):
        count -= len(views[0])
        views = views[1:]
    return [views[0][count:], *views[1:]] if views else []
