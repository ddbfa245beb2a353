"""TCP between the ranks of the same place on each host: a rail, on which they exchange sums.

Sockets of our own, driven by the thread that reduces: gloo's all-reduce of two ranks takes the CPU 1.9 ms for 4 times
256 KiB where this takes 0.5, since its threads wake each other for every message, and so chunks had to be large (and
cold in the caches) to be worth one. `start` gives the kernel what it takes at once, `finish` waits for the rest.

Each rank listens on the addresses that others may know it by and lays them, with a secret word, into the group's store.
Of two ranks the later calls, saying the other's word, and hears its own: so an address that leads to something else
(127.0.1.1 in /etc/hosts) is passed over, and a stranger who calls is shown the door.
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

WORD_BYTES = 16
MARK = struct.Struct("<q")
HELLO = struct.Struct(f"<{WORD_BYTES}sq")
CALL_WITHIN_S = 5.0  # for one address; a firewall that drops everything answers none


class TcpGroup:
    """This process's place, *me*, among the ranks of a rail; *names* says what to call each of them in errors."""

    def __init__(self, me: int, names: tuple[str, ...], timeout_s: float) -> None:
        self.me = me
        self.size = len(names)
        self._names = names
        self._timeout_s = timeout_s
        self._peers: dict[int, socket.socket] = {}
        self._sends: dict[int, list[memoryview]] = {}
        self._awaits: dict[int, list[memoryview]] = {}
        self._is_closed = False
        # Of the current all-reduce (shared_memory.signature). Sent before each message; the receiver compares it.
        self.signature = 0
        self._heads: dict[int, bytearray] = {}

    def connect(
        self, put: Callable[[str, str], None], get: Callable[[str], str], addresses: Sequence[str], within_s: float
    ) -> None:
        """Connect with all others, who find this rank at one of *addresses*; all ranks of the rail come here together.

        *put* and *get* (which waits) are a store that these ranks share.

        Raises:
            OSError: no address could be listened on, or a peer did not come within *within_s*.
        """
        deadline_s = time.monotonic() + within_s
        word = secrets.token_bytes(WORD_BYTES)
        with contextlib.ExitStack() as stack:
            doors = [stack.enter_context(door) for door in _doors(addresses)]
            put(f"door/{self.me}", json.dumps([word.hex(), [door.getsockname()[:2] for door in doors]]))
            known = [json.loads(get(f"door/{peer}")) for peer in range(self.size)]
            if shut := [name for name, (_, its) in zip(self._names, known, strict=True) if not its]:
                raise ConnectionRefusedError(f"{shut[0]} has no address that it could listen on")
            words = [bytes.fromhex(one) for one, _ in known]
            for peer in range(self.me):
                self._peers[peer] = self._call(peer, known[peer][1], words, deadline_s)
            while len(self._peers) < self.size - 1:
                self._answer(doors, words, deadline_s)
        for its in self._peers.values():
            its.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            its.setblocking(False)

    def start(self, sends: Mapping[int, memoryview], awaits: Mapping[int, memoryview]) -> None:
        """Begin to send *sends*[peer] to each peer and to fill *awaits*[peer] from it, bytes both; `finish` ends it.

        Raises:
            PeerLost, GroupClosed: as `finish`.
        """
        own = MARK.pack(self.signature)
        self._sends = {peer: [memoryview(own), view] for peer, view in sends.items() if view}
        self._heads = {peer: bytearray(MARK.size) for peer, view in awaits.items() if view}
        self._awaits = {peer: [memoryview(self._heads[peer]), view] for peer, view in awaits.items() if view}
        for peer in list(self._sends):
            self._send(peer, "an all-reduce")

    def finish(self, what: str) -> None:
        """Return when all that was begun is sent and has come.

        Raises:
            PeerLost: a peer ended or closed its group.
            PeerTimeout: the exchange took longer than timeout_s; *what* says in what, for the message.
            GroupClosed: another thread of this rank called `close`.
            SizeMismatch: the peer's message belongs to an all-reduce of another size.
        """
        ready = dict.fromkeys({*self._sends, *self._awaits}, select.POLLIN | select.POLLOUT)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            for peer, events in ready.items():
                if events & ~select.POLLOUT and peer in self._awaits:
                    self._receive(peer, what)
                if events & ~select.POLLIN and peer in self._sends:
                    self._send(peer, what)
            if not self._sends and not self._awaits:
                return
            ready = self._wait(deadline_s, what)

    def close(self) -> None:
        """Leave: peers that wait for this rank raise PeerLost. May be called by any thread, again too."""
        self._is_closed = True
        for its in self._peers.values():
            with contextlib.suppress(OSError):
                its.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give back the descriptors; for the thread that reduces, when it does no more, and for children of a fork."""
        self._is_closed = True
        self._sends, self._awaits = {}, {}
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
        views = self._awaits[peer]
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
            told = size_mismatch(
                self.signature, MARK.unpack(self._heads[peer])[0], f"{self._names[peer]} on another host"
            )
            if told is not None:
                raise told
        if rest:
            self._awaits[peer] = rest
        else:
            del self._awaits[peer]

    def _wait(self, deadline_s: float, what: str) -> dict[int, int]:
        """Return {peer: what it is ready for}."""
        poll, peers = select.poll(), {}
        for peer in {*self._sends, *self._awaits}:
            wanted = (select.POLLIN if peer in self._awaits else 0) | (select.POLLOUT if peer in self._sends else 0)
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

    def _call(self, peer: int, doors: Any, words: list[bytes], deadline_s: float) -> socket.socket:
        tried = []
        for address, port in doors:
            rest_s = min(CALL_WITHIN_S, max(0.01, deadline_s - time.monotonic()))
            try:
                its = socket.create_connection((address, port), timeout=rest_s)
            except OSError as error:
                tried.append(f"{address} port {port}: {error}")
                continue
            try:
                its.sendall(HELLO.pack(words[peer], self.me))
                if hmac.compare_digest(its.recv(WORD_BYTES, socket.MSG_WAITALL), words[self.me]):
                    return its
                tried.append(f"{address} port {port}: somebody else answered")
            except OSError as error:
                tried.append(f"{address} port {port}: {error}")
            its.close()
        raise ConnectionRefusedError(f"{self._names[peer]} could not be reached ({'; '.join(tried)})")

    def _answer(self, doors: list[socket.socket], words: list[bytes], deadline_s: float) -> None:
        poll = select.poll()
        by_descriptor = {door.fileno(): door for door in doors}
        for door in doors:
            poll.register(door, select.POLLIN)
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            absent = [self._names[peer] for peer in range(self.me + 1, self.size) if peer not in self._peers]
            raise TimeoutError(f"{', '.join(absent)} did not connect")
        its, _ = by_descriptor[ready[0][0]].accept()
        its.settimeout(CALL_WITHIN_S)
        with contextlib.suppress(OSError, struct.error):
            said, peer = HELLO.unpack(its.recv(HELLO.size, socket.MSG_WAITALL))
            if hmac.compare_digest(said, words[self.me]) and self.me < peer < self.size and peer not in self._peers:
                its.sendall(words[peer])
                self._peers[peer] = its
                return
        its.close()  # A stranger.


def _rest(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of *views* after their first *count* bytes."""
    while views and count >= len(views[0]):
        count -= len(views[0])
        views = views[1:]
    return [views[0][count:], *views[1:]] if views else []


def _doors(addresses: Sequence[str]) -> list[socket.socket]:
    """Return a listening socket for each of *addresses* that can be listened on."""
    found = []
    for address in addresses:
        door = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            door.bind((address, 0))
            door.listen()
        except OSError:
            door.close()
            continue
        found.append(door)
    return found
