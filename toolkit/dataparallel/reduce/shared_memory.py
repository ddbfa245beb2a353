"""Memory that the ranks of one host share, and their barriers in it.

The memory is a memfd: it needs no /dev/shm (64 MiB in many containers), has no name, and is gone with the last process
that maps it, however that ends. It and the ranks' eventfds go from the first rank to the others through unix sockets
in the abstract namespace, which stay open between all pairs: a peer that ends, of SIGKILL too, closes its own.

A barrier: everyone adds 1 to each other's eventfd and waits until its own has n-1. There are two eventfds a rank,
used in turn: a fast peer may already come to the next barrier, but not to the one after it. Of five ways measured
(4 ranks on 2 cores of an EPYC; futexes with and without sched_yield, FUTEX_WAKE_OP, unix sockets) eventfds were as
fast as the fastest, 30 us, and need neither ctypes nor care for the order of stores: the kernel's locks have it.
"""

import array
import mmap
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

MAX_RANKS_PER_HOST = 64  # ranks of a host; descriptors: 2 + 3 for each
WORD = struct.Struct("<q")
HELLO = struct.Struct("<q")
# A cache line a rank: the number of the last barrier that it came to, and the marks of its last seven all-reduces.
LINE = 64
SIGNATURES = 7
HEAD_BYTES = LINE * 64
COMPARE_MS = 200.0  # How often a rank that waits looks whether its peers are at something else.


class PeerLost(RuntimeError):  # noqa: N818 - said to users, in gloo's words
    """A peer has ended, or has left the group."""


class PeerTimeout(RuntimeError):  # noqa: N818
    """A peer did not come in time."""


class SizeMismatch(RuntimeError):  # noqa: N818
    """Ranks gave the same all-reduce different numbers of bytes."""


class GroupClosed(RuntimeError):  # noqa: N818
    """This rank itself has closed the shared_memory."""


def signature(number: int, size_bytes: int) -> int:
    """Return all-reduce *number* of a group and its size, modulo what they have room for, in one word."""
    return (number & 0x7FFFFF) << 40 | size_bytes & 0xFFFFFFFFFF


def size_mismatch(mine: int, theirs: int, who: str) -> SizeMismatch | None:
    """Return what is wrong between two marks of the same all-reduce, None if nothing is or they are not of the same."""
    if mine == theirs or mine >> 40 != theirs >> 40:
        return None
    sizes = (mine & 0xFFFFFFFFFF, theirs & 0xFFFFFFFFFF)
    return SizeMismatch(
        f"an all-reduce of {sizes[0]:,} bytes on this rank met one of {sizes[1]:,} bytes on {who}: "
        "every rank has to reduce as many elements of the same type, in the same order"
    )


class SharedMemoryGroup:
    """The memory, and this process's place among *size* ranks of a host. Owns its descriptors; `close` lets them go.

    *names* says what to call each of them in errors, as "rank 3".
    """

    def __init__(self, me: int, names: tuple[str, ...], timeout_s: float) -> None:
        self.me = me
        self.size = len(names)
        self.timeout_s = timeout_s
        self._names = names
        self._barriers = 0
        self._peers: dict[int, socket.socket] = {}
        self._events: list[int] = []
        self._stop = -1
        self._is_closed = False
        self._polls: list[select.poll] = []
        self._gone: set[int] = set()
        self.memory: Any = None

    def connect(
        self, put: Callable[[str, str], None], get: Callable[[str], str], bytes_wanted: int, within_s: float
    ) -> None:
        """Connect with all others and map *bytes_wanted* behind the head; all ranks of the host come here together.

        *put* and *get* (which waits) are a store that these ranks share.

        Raises:
            OSError: no memory, no sockets, or a peer that did not come within *within_s*.
        """
        deadline_s = time.monotonic() + within_s
        name = ""
        try:
            self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            door.bind("\0" + (word := f"toolkit-{secrets.token_hex(16)}"))
            door.listen(self.size)
            name = word
        finally:
            put(f"door/{self.me}", name)  # Empty: the others need not wait for it.
        try:
            doors = [get(f"door/{peer}") for peer in range(self.size)]
            if "" in doors:
                raise ConnectionRefusedError(f"{self._names[doors.index('')]} has no socket")
            for peer in range(self.me):
                self._call(peer, doors[peer], deadline_s)
            for _ in range(self.me + 1, self.size):
                self._answer(door, deadline_s)
        finally:
            door.close()
        self._share(HEAD_BYTES + bytes_wanted, deadline_s)
        for turn in (0, 1):
            poll = select.poll()
            own = (self._stop, self._events[2 * self.me + turn])
            for descriptor in (*own, *(its.fileno() for its in self._peers.values())):
                poll.register(descriptor, select.POLLIN)
            self._polls.append(poll)

    def announce(self, number: int, size_bytes: int) -> None:
        """Write down, for the other ranks, that this one begins all-reduce *number* of the group; any thread's."""
        if self.memory is not None:
            at = self.me * LINE + WORD.size * (1 + number % SIGNATURES)
            self.memory[at : at + WORD.size] = WORD.pack(signature(number, size_bytes))

    def barrier(self, what: str, number: int = 0) -> None:
        """Return when all ranks have come here as often as this one; what they wrote to the memory before is seen.

        Raises:
            PeerLost: a peer ended or closed its group before it reached this barrier.
            PeerTimeout: a peer did not reach it within timeout_s; *what* says in what, for the message.
            GroupClosed: another thread of this rank called `close`.
            SizeMismatch: a peer began all-reduce *number* with another size, through this memory or not.
        """
        self._barriers += 1
        turn = self._barriers & 1
        # Packed first: pack_into would write zeros before the number.
        self.memory[self.me * LINE : self.me * LINE + WORD.size] = WORD.pack(self._barriers)
        for peer in range(self.size):
            if peer != self.me:
                os.eventfd_write(self._events[2 * peer + turn], 1)
        mine = self._events[2 * self.me + turn]
        missing = self.size - 1
        deadline_s = 0.0
        while missing:
            try:
                missing -= os.eventfd_read(mine)
            except BlockingIOError:
                deadline_s = deadline_s or time.monotonic() + self.timeout_s
                self._wait(turn, deadline_s, what)
                if missing:
                    self._compare(number)
        self._compare(number)

    def close(self) -> None:
        """Leave: peers that still wait for this rank raise PeerLost. May be called by any thread, again too."""
        if not self._is_closed:
            self._is_closed = True
            if self._stop >= 0:
                os.eventfd_write(self._stop, 1)
            for peer in self._peers.values():
                try:
                    peer.shutdown(socket.SHUT_RDWR)
                except OSError:  # It is gone already.
                    pass

    def release(self) -> None:
        """Close and give back the descriptors; for the thread that meets, when it does no more. Children of a fork
        too: as long as they hold the sockets, a peer would not see this rank end."""
        self._is_closed = True
        for peer in self._peers.values():
            peer.close()
        self.memory = None
        given, self._events, self._stop = [*self._events, self._stop], [], -1
        for descriptor in given:
            if descriptor >= 0:
                os.close(descriptor)

    def _wait(self, turn: int, deadline_s: float, what: str) -> None:
        rest_ms = (deadline_s - time.monotonic()) * 1000
        if rest_ms <= 0:
            raise PeerTimeout(f"Timed out waiting {self.timeout_s:g} s for {self._missing_peers()} in {what}")
        for peer in self._gone:
            # Who came to this barrier and went after it is no loss to it: the others' words are under way.
            if self._last_barrier_of(peer) < self._barriers:
                raise PeerLost(f"Connection closed by peer: {self._names[peer]} of this host ended or left in {what}")
        mine = self._events[2 * self.me + turn]
        ready = {descriptor for descriptor, _ in self._polls[turn].poll(min(rest_ms, COMPARE_MS))}
        if self._stop in ready:
            raise GroupClosed(f"{what} was given up: its process group is being closed")
        if mine in ready or not ready:
            return
        for peer, its in self._peers.items():
            if its.fileno() not in ready:
                continue
            self._gone.add(peer)
            for poll in self._polls:
                poll.unregister(its)

    def _last_barrier_of(self, peer: int) -> int:
        return int(WORD.unpack_from(self.memory, peer * LINE)[0])

    def _compare(self, number: int) -> None:
        if not number:
            return
        at = WORD.size * (1 + number % SIGNATURES)
        mine = WORD.unpack_from(self.memory, self.me * LINE + at)[0]
        for peer in range(self.size):
            told = size_mismatch(mine, WORD.unpack_from(self.memory, peer * LINE + at)[0], self._names[peer])
            if told is not None:
                raise told

    def _missing_peers(self) -> str:
        return (
            ", ".join(self._names[peer] for peer in range(self.size) if self._last_barrier_of(peer) < self._barriers)
            or "peers"
        )

    def _call(self, peer: int, name: str, deadline_s: float) -> None:
        its = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers[peer] = its
        its.settimeout(max(0.01, deadline_s - time.monotonic()))
        its.connect("\0" + name)
        its.sendall(HELLO.pack(self.me))

    def _answer(self, door: socket.socket, deadline_s: float) -> None:
        door.settimeout(max(0.01, deadline_s - time.monotonic()))
        its, _ = door.accept()
        its.settimeout(max(0.01, deadline_s - time.monotonic()))
        _, user, _ = struct.unpack("iII", its.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        peer = HELLO.unpack(its.recv(HELLO.size, socket.MSG_WAITALL))[0]
        if user != os.geteuid() or not self.me < peer < self.size or peer in self._peers:
            its.close()
            raise ConnectionRefusedError(f"a stranger (user {user}) called in place of a rank")
        self._peers[peer] = its

    def _share(self, size_bytes: int, deadline_s: float) -> None:
        count = 1 + 2 * self.size
        if self.me == 0:
            memory = os.memfd_create("toolkit-dataparallel", os.MFD_CLOEXEC)
            self._events = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(count - 1)]
            os.ftruncate(memory, size_bytes)
            rights = array.array("i", [memory, *self._events])
            for its in self._peers.values():
                its.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        else:
            first = self._peers[0]
            first.settimeout(max(0.01, deadline_s - time.monotonic()))
            _, given, _, _ = socket.recv_fds(first, 1, count)
            if len(given) != count:
                for descriptor in given:
                    os.close(descriptor)
                raise ConnectionError(f"{self._names[0]} gave {len(given)} descriptors in place of {count}")
            memory, *self._events = given
        for its in self._peers.values():
            its.setblocking(False)
        try:
            self.memory = mmap.mmap(memory, size_bytes)
        finally:
            os.close(memory)
