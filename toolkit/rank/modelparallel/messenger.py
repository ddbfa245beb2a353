"""Messages between the ranks: any picklable object, with raw buffers beside it, over a socket for each pair of ranks.

Goals: a small message costs one call into the kernel on each side and one change of threads; a send never waits for the
peer; a dead peer is noticed at once by end of file, from whatever this rank waits for.

`send` gives the kernel what it takes from the caller's own thread. Only what it does not take is left to the peer's
writer thread, which is started at the first such message. A reader thread for each peer puts messages into boxes, or
calls back. Waiting for a message fails as soon as any peer is lost: all ranks work on the same step, so nobody's answer
is certain any more. What has come before the loss can still be received.

A frame: HEAD (the sizes of the address, the payload, the number of buffers), the buffers' sizes, the pickled address
(kind, key), the pickled payload, the buffers.
"""

import contextlib
import os
import pickle
import queue
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.rank.modelparallel.errors import Elsewhere, PeerLost

HEAD = struct.Struct("<IQI")
GOODBYE = HEAD.pack(0, 0, 0)
STAGE_BYTES = 16 << 10
IOV_MAX = 1024
FLUSH_WITHIN_S = 10.0
# A host that vanishes without a word (power, cable) is noticed after half a minute.
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))

Buffer = Any  # What memoryview takes.


class Message(NamedTuple):
    """What `source` sent. `buffers` are flat, writable, of bytes, and this message's own."""

    source: int
    kind: str
    key: Any
    payload: Any
    buffers: list[memoryview]


class _Arrived(NamedTuple):
    """A message whose payload is still pickled: it is loaded in the thread that takes it, which gets its errors."""

    source: int
    kind: str
    key: Any
    payload: bytes
    buffers: list[memoryview]

    def loaded(self) -> Message:
        return Message(self.source, self.kind, self.key, pickle.loads(self.payload), self.buffers)


class Messenger:
    """Rank *me*'s connections: *peers* are blocking sockets by rank (rank/mesh/mesh.py), *names* all ranks' names."""

    def __init__(self, me: int, peers: Mapping[int, socket.socket], names: Sequence[str]) -> None:
        self.me = me
        self._names = tuple(names)
        self._links = {peer: _Link(its) for peer, its in peers.items()}
        self._lock = threading.RLock()
        self._boxes: dict[tuple[str, Hashable], deque[_Arrived]] = {}
        self._waiters: dict[tuple[str, Hashable], list[_Waiter]] = {}
        self._callbacks: dict[str, Callable[[Message], None]] = {}
        self._on_lost: list[Callable[[PeerLost], None]] = []
        self._left: dict[int, PeerLost] = {}  # Those that are lost or said goodbye.
        self._failure: BaseException | None = None  # The first loss, or an error in a callback.
        self._own: queue.SimpleQueue[_Arrived] = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._deliver_own, name="smp-own", daemon=True).start()
        for peer, link in self._links.items():
            link.start(self, peer)
        _leave_in_children(self)

    def send(
        self, peer: int, kind: str, key: Hashable = None, payload: Any = None, buffers: Sequence[Buffer] = ()
    ) -> None:
        """Send a message to rank *peer*, which may be this one. Returns at once; any thread may call it.

        The message's *buffers* are sent from where they are: they must not change until the peer has them. Messages of
        one kind to one peer keep their order.

        Raises:
            PeerLost: *peer* ended.
        """
        address = pickle.dumps((kind, key), 5)
        body = pickle.dumps(payload, 5)
        if peer == self.me:
            copies = [memoryview(bytearray(memoryview(buffer).cast("B"))) for buffer in buffers]
            self._own.put(_Arrived(peer, kind, key, body, copies))
            return
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = HEAD.pack(len(address), len(body), len(views))
        sizes = struct.pack(f"<{len(views)}Q", *(len(view) for view in views))
        small = b"".join((head, sizes, address, body)) if len(body) < STAGE_BYTES else b"".join((head, sizes, address))
        frame = [memoryview(small)]
        if len(body) >= STAGE_BYTES:
            frame.append(memoryview(body))
        try:
            self._links[peer].send([*frame, *(view for view in views if len(view))])
        except OSError as error:
            raise _again(self._left.get(peer) or self._lost(peer)) from error

    def receive(
        self,
        source: int | None,
        kind: str,
        key: Hashable = None,
        timeout_s: float | None = None,
        instead: Collection[str] = (),
    ) -> Message:
        """Return the next message of *kind* and *key* from rank *source*, None: from any rank. Waits for it.

        *instead*: kinds of messages of *source* after which it will send no such message (if is_elsewhere says so of
        the payload, where it has that attribute).

        Raises:
            Elsewhere: one of those is here, and none of *kind* before it.
            PeerLost: no such message is here, and *source* has said goodbye, or any rank is lost.
            TimeoutError: none came within *timeout_s*.
        """
        waiter = _Waiter(source, instead)
        with self._lock:
            box = self._boxes.get((kind, key))
            if box:
                for number, arrived in enumerate(box):
                    if source is None or arrived.source == source:
                        del box[number]
                        if not box:
                            del self._boxes[kind, key]
                        return arrived.loaded()
            if its := next((its for (its, _), box in self._boxes.items() if waiter.is_elsewhere(its, box)), None):
                raise Elsewhere(source, its)
            if failure := self._failure or self._gone(source):
                raise _again(failure)
            self._waiters.setdefault((kind, key), []).append(waiter)
        try:
            found = waiter.gift.get(timeout=timeout_s)
        except queue.Empty:
            with self._lock:
                waiters = self._waiters.get((kind, key), [])
                if waiter in waiters:
                    waiters.remove(waiter)
                    whom = "any rank" if source is None else self._names[source]
                    raise TimeoutError(f"Timed out waiting {timeout_s:g} s for {whom} ({kind})") from None
            found = waiter.gift.get()
        if isinstance(found, BaseException):
            raise _again(found)
        return found.loaded()

    def on(self, kind: str, callback: Callable[[Message], None]) -> None:
        """Call *callback* with each message of *kind*, also with those that have come already.

        It is called in the source's reader thread, in order for each source, and must not block.
        """
        with self._lock:  # Readers that bring a message of this kind wait until the earlier ones are handed over.
            early = [arrived for name, box in self._boxes.items() if name[0] == kind for arrived in box]
            self._boxes = {name: box for name, box in self._boxes.items() if name[0] != kind}
            for arrived in early:
                callback(arrived.loaded())
            self._callbacks[kind] = callback

    def on_lost(self, callback: Callable[[PeerLost], None]) -> None:
        """Call *callback* when a rank is lost or says goodbye (`PeerLost.said_goodbye`), once for each; at once for
        those that have left already. It is called in a reader thread and must not block."""
        with self._lock:
            self._on_lost.append(callback)
            already = list(self._left.values())
        for lost in already:
            callback(lost)

    def close(self) -> None:
        """Say goodbye to all ranks, after what was sent before. Waits until the kernel has it all, 10 s at most."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline_s = time.monotonic() + FLUSH_WITHIN_S
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.send([memoryview(GOODBYE)])
        for link in self._links.values():
            link.finish(deadline_s)

    def abandon(self) -> None:
        """Close the sockets in a forked child: peers must see this rank end although the child lives on."""
        for link in self._links.values():
            link.socket.close()

    def _deliver_own(self) -> None:
        while True:
            self._deliver(self._own.get())

    def _read(self, peer: int, stream: "_Stream") -> None:
        """Deliver all messages of *peer*; returns when it has left."""
        said_goodbye = False
        try:
            while True:
                head = stream.read(HEAD.size)
                address_bytes, body_bytes, count = HEAD.unpack(head)
                if not address_bytes:
                    said_goodbye = True
                    break
                sizes = struct.unpack(f"<{count}Q", stream.read(8 * count))
                kind, key = pickle.loads(stream.read(address_bytes))
                body = stream.read(body_bytes)
                self._deliver(_Arrived(peer, kind, key, body, [stream.read_buffer(size) for size in sizes]))
        except (OSError, EOFError):
            pass
        self._leave(peer, said_goodbye)
        with contextlib.suppress(OSError, EOFError):
            while said_goodbye:  # Until end of file: data that nobody reads would reset the connection.
                stream.read(1)

    def _deliver(self, arrived: _Arrived) -> None:
        with self._lock:
            callback = self._callbacks.get(arrived.kind)
            if callback is None:
                name = (arrived.kind, arrived.key)
                waiters = self._waiters.get(name, [])
                for number, waiter in enumerate(waiters):
                    if waiter.source is None or waiter.source == arrived.source:
                        del waiters[number]
                        if not waiters:
                            del self._waiters[name]
                        waiter.gift.put(arrived)
                        return
                self._boxes.setdefault(name, deque()).append(arrived)
                away = Elsewhere(arrived.source, arrived.kind)
                self._wake(away, lambda waiter: waiter.is_elsewhere(arrived.kind, [arrived]))
                return
        try:
            callback(arrived.loaded())
        except Exception as error:  # noqa: BLE001 - it belongs to the threads that wait: nobody else would see it
            self._fail(error)

    def _leave(self, peer: int, said_goodbye: bool) -> None:
        with self._lock:
            if peer in self._left or self._is_closed:
                return
            lost = self._left[peer] = self._lost(peer, said_goodbye)
            callbacks = list(self._on_lost)
        self._links[peer].stop()
        if said_goodbye:
            self._wake(lost, lambda waiter: self._gone(waiter.source) is not None)
        else:
            self._fail(lost)
        for callback in callbacks:
            callback(lost)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
            failure = self._failure
        self._wake(failure, lambda _: True)

    def _wake(self, error: BaseException, whom: "Callable[[_Waiter], bool]") -> None:
        with self._lock:
            for name, waiters in list(self._waiters.items()):
                for waiter in waiters:
                    if whom(waiter):
                        waiter.gift.put(error)
                self._waiters[name] = [waiter for waiter in waiters if not whom(waiter)]

    def _gone(self, source: int | None) -> PeerLost | None:
        """Return why no message of *source* can come any more, None if one can."""
        if source is None:
            everybody = len(self._left) == len(self._links) > 0
            return next(iter(self._left.values())) if everybody else None
        return self._left.get(source)

    def _lost(self, peer: int, said_goodbye: bool = False) -> PeerLost:
        how = "reached its end" if said_goodbye else "ended or left"
        return PeerLost(peer, f"Connection closed by peer: {self._names[peer]} {how}", said_goodbye)


class _Waiter:
    """A thread that waits for a message of *source*, None: of any rank; in vain once it sends one of *instead*."""

    def __init__(self, source: int | None, instead: Collection[str]) -> None:
        self.source = source
        self._instead = instead
        self.gift: queue.SimpleQueue[_Arrived | BaseException] = queue.SimpleQueue()

    def is_elsewhere(self, kind: str, box: "Iterable[_Arrived]") -> bool:
        """Return whether one of the messages of *kind* in *box* says that the awaited one will not come."""
        return kind in self._instead and any(
            getattr(arrived.loaded().payload, "is_elsewhere", True) for arrived in box if arrived.source == self.source
        )


class _Link:
    """The connection to one peer."""

    def __init__(self, its: socket.socket) -> None:
        self.socket = its
        self._changed = threading.Condition()
        self._pending: list[memoryview] = []  # What the writer thread is to send.
        self._is_writing = False
        self._writer: threading.Thread | None = None
        self._is_stopped = False
        if its.family != socket.AF_UNIX:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                if hasattr(socket, name):
                    its.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def start(self, messenger: Messenger, peer: int) -> None:
        """Read messages in a thread."""
        stream = _Stream(self.socket)
        threading.Thread(target=messenger._read, args=(peer, stream), name=f"smp-from-{peer}", daemon=True).start()

    def send(self, views: list[memoryview]) -> None:
        """Send *views*, one after the other; raises OSError where the peer has left."""
        with self._changed:
            if self._is_stopped:
                raise BrokenPipeError
            while views and not self._pending and not self._is_writing:
                try:
                    sent = self.socket.sendmsg(views[:IOV_MAX], (), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                views = _rest(views, sent)
            if views:
                self._pending.extend(views)
                if self._writer is None:
                    self._writer = threading.Thread(target=self._write, name="smp-writer", daemon=True)
                    self._writer.start()
                self._changed.notify_all()

    def stop(self) -> None:
        """Give up what is not sent: the peer has left."""
        with self._changed:
            self._is_stopped = True
            self._pending = []
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def finish(self, deadline_s: float) -> None:
        """Wait until all is sent, then end this direction of the connection."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or not (self._pending or self._is_writing), deadline_s - time.monotonic()
            )
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._pending or self._is_stopped)
                if self._is_stopped:
                    return
                views, self._pending = self._pending, []
                self._is_writing = True
            try:
                while views:
                    views = _rest(views, self.socket.sendmsg(views[:IOV_MAX]))
            except OSError:
                with self._changed:
                    self._is_writing = False
                    self._is_stopped = True
                    self._changed.notify_all()
                return  # The reader sees the end of the connection, too, and says so.


class _Stream:
    """Reads from a socket through a small buffer, so that a small message takes one call into the kernel."""

    def __init__(self, its: socket.socket) -> None:
        self._socket = its
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._ready = self._stage[:0]

    def read(self, count: int) -> bytes:
        """Return the next *count* bytes; raises EOFError where the stream ends before."""
        if count <= len(self._ready):
            found = bytes(self._ready[:count])
            self._ready = self._ready[count:]
            return found
        into = bytearray(count)
        self._fill(memoryview(into))
        return bytes(into)

    def read_buffer(self, count: int) -> memoryview:
        """Return the next *count* bytes in memory of their own."""
        into = memoryview(bytearray(count))  # Fresh pages of mmap take four times as long.
        self._fill(into)
        return into

    def _fill(self, into: memoryview) -> None:
        while len(into):
            if not len(self._ready):
                if len(into) >= STAGE_BYTES:
                    count = self._socket.recv_into(into, 0, socket.MSG_WAITALL)
                    if not count:
                        raise EOFError
                    into = into[count:]
                    continue
                count = self._socket.recv_into(self._stage)
                if not count:
                    raise EOFError
                self._ready = self._stage[:count]
            count = min(len(into), len(self._ready))
            into[:count] = self._ready[:count]
            into, self._ready = into[count:], self._ready[count:]


def _rest(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what remains of *views* after their first *count* bytes."""
    done = 0
    while done < len(views) and count >= len(views[done]):
        count -= len(views[done])
        done += 1
    views = views[done:]
    return [views[0][count:], *views[1:]] if views and count else views


def _again(error: BaseException) -> BaseException:
    """Return a copy of *error* for this thread: one object raised in several threads would mix their tracebacks."""
    if isinstance(error, PeerLost):
        return PeerLost(error.rank, str(error), error.said_goodbye)
    return error


def _leave_in_children(messenger: Messenger) -> None:
    # A child (a DataLoader's worker) that kept the sockets open would hide the end of this rank from its peers.
    known = weakref.ref(messenger)

    def leave() -> None:
        here = known()
        if here is not None:
            here.abandon()

    os.register_at_fork(after_in_child=leave)
