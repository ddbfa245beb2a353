"""Messages between the ranks: any picklable object, with raw buffers beside it, over a socket for each pair of ranks.

Goals: a small message costs one call into the kernel on each side and one change of threads; a send never waits for the
peer; a dead peer is noticed at once by end of file, from whatever this rank waits for.

`send` gives the kernel what it takes from the caller's own thread. Only what it does not take is left to the peer's
writer thread, which is started at the first such message. A reader thread for each peer puts messages into mailboxes,
or calls back. Waiting for a message fails as soon as any peer is lost: all ranks work on the same step, so no reply is
certain any more. Messages that arrived before the loss can still be received.

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

from toolkit.rank.modelparallel.errors import PeerInOtherCall, PeerLost

HEAD = struct.Struct("<IQI")
GOODBYE = HEAD.pack(0, 0, 0)
STAGE_BYTES = 16 << 10
IOV_MAX = 1024
FLUSH_WITHIN_S = 10.0
# A host that vanishes without a word (power, cable) is noticed after half a minute.
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))

Buffer = Any  # Anything that memoryview takes.


class Message(NamedTuple):
    """A message that arrived, unpickled."""

    source: int
    """The rank that sent it."""
    kind: str
    """The protocol to which it belongs, such as "allgather"."""
    key: Any
    """Distinguishes the messages of a kind."""
    payload: Any
    """The object that was sent."""
    buffers: list[memoryview]
    """Flat, writable, of bytes; no other message has them."""


class _PickledMessage(NamedTuple):
    """A message whose payload is still pickled: the thread that receives it unpickles it, and gets its errors."""

    source: int
    kind: str
    key: Any
    payload: bytes
    """The pickled payload; the other fields are those of `Message`."""
    buffers: list[memoryview]

    def unpickle(self) -> Message:
        return Message(self.source, self.kind, self.key, pickle.loads(self.payload), self.buffers)


class Messenger:
    """Rank *me*'s connections: *peers* are blocking sockets by rank (rank/mesh/mesh.py), *names* all ranks' names."""

    def __init__(self, me: int, peers: Mapping[int, socket.socket], names: Sequence[str]) -> None:
        self.me = me
        self._names = tuple(names)
        self._links = {peer: _Link(connection) for peer, connection in peers.items()}
        self._lock = threading.RLock()
        self._mailboxes: dict[tuple[str, Hashable], deque[_PickledMessage]] = {}
        self._waiters: dict[tuple[str, Hashable], list[_Waiter]] = {}
        self._callbacks: dict[str, Callable[[Message], None]] = {}
        self._on_lost: list[Callable[[PeerLost], None]] = []
        self._departed: dict[int, PeerLost] = {}  # The ranks that are lost or said goodbye.
        self._failure: BaseException | None = None  # The first loss, or an error in a callback.
        self._to_self: queue.SimpleQueue[_PickledMessage] = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._deliver_to_self, name="smp-to-self", daemon=True).start()
        for peer, link in self._links.items():
            link.start(self, peer)
        _close_in_children(self)

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
            self._to_self.put(_PickledMessage(peer, kind, key, body, copies))
            return
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        head = HEAD.pack(len(address), len(body), len(views))
        sizes = struct.pack(f"<{len(views)}Q", *(len(view) for view in views))
        frame_head = (
            b"".join((head, sizes, address, body)) if len(body) < STAGE_BYTES else b"".join((head, sizes, address))
        )
        frame = [memoryview(frame_head)]
        if len(body) >= STAGE_BYTES:
            frame.append(memoryview(body))
        try:
            self._links[peer].send([*frame, *(view for view in views if len(view))])
        except OSError as error:
            raise _copy_for_thread(self._departed.get(peer) or self._loss_error(peer)) from error

    def receive(
        self,
        source: int | None,
        kind: str,
        key: Hashable = None,
        timeout_s: float | None = None,
        instead: Collection[str] = (),
    ) -> Message:
        """Return the next message of *kind* and *key* from rank *source*, None: from any rank. Waits for it.

        *instead*: kinds of messages of *source* after which it will send no such message (unless the payload has an
        attribute is_elsewhere that is false).

        Raises:
            PeerInOtherCall: one of those has arrived, and none of *kind* before it.
            PeerLost: no such message has arrived, and *source* has said goodbye, or any rank is lost.
            TimeoutError: none arrived within *timeout_s*.
        """
        waiter = _Waiter(source, instead)
        with self._lock:
            mailbox = self._mailboxes.get((kind, key))
            if mailbox:
                for number, message in enumerate(mailbox):
                    if source is None or message.source == source:
                        del mailbox[number]
                        if not mailbox:
                            del self._mailboxes[kind, key]
                        return message.unpickle()
            for (other_kind, _), mailbox in self._mailboxes.items():
                if waiter.is_in_other_call(other_kind, mailbox):
                    raise PeerInOtherCall(source, other_kind)
            if failure := self._failure or self._loss_of(source):
                raise _copy_for_thread(failure)
            self._waiters.setdefault((kind, key), []).append(waiter)
        try:
            reply = waiter.reply.get(timeout=timeout_s)
        except queue.Empty:
            with self._lock:
                waiters = self._waiters.get((kind, key), [])
                if waiter in waiters:
                    waiters.remove(waiter)
                    awaited = "any rank" if source is None else self._names[source]
                    raise TimeoutError(f"Timed out waiting {timeout_s:g} s for {awaited} ({kind})") from None
            reply = waiter.reply.get()
        if isinstance(reply, BaseException):
            raise _copy_for_thread(reply)
        return reply.unpickle()

    def on(self, kind: str, callback: Callable[[Message], None]) -> None:
        """Call *callback* with each message of *kind*, also with those that have arrived already.

        It runs in the source's reader thread, in order for each source, and must not block.
        """
        with self._lock:  # Readers that bring a message of this kind wait until the earlier ones are handed over.
            waiting = [message for name, mailbox in self._mailboxes.items() if name[0] == kind for message in mailbox]
            self._mailboxes = {name: mailbox for name, mailbox in self._mailboxes.items() if name[0] != kind}
            for message in waiting:
                callback(message.unpickle())
            self._callbacks[kind] = callback

    def on_lost(self, callback: Callable[[PeerLost], None]) -> None:
        """Call *callback* once for each rank that is lost or says goodbye (`PeerLost.said_goodbye`); immediately for
        those that have left already. It runs in a reader thread and must not block."""
        with self._lock:
            self._on_lost.append(callback)
            already = list(self._departed.values())
        for lost in already:
            callback(lost)

    def close(self) -> None:
        """Say goodbye to all ranks, after all earlier messages. Waits until the kernel has them all, 10 s at most."""
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

    def _deliver_to_self(self) -> None:
        while True:
            self._deliver(self._to_self.get())

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
                self._deliver(_PickledMessage(peer, kind, key, body, [stream.read_buffer(size) for size in sizes]))
        except (OSError, EOFError):
            pass
        self._mark_departed(peer, said_goodbye)
        with contextlib.suppress(OSError, EOFError):
            while said_goodbye:  # Until end of file: data that nobody reads would reset the connection.
                stream.read(1)

    def _deliver(self, message: _PickledMessage) -> None:
        with self._lock:
            callback = self._callbacks.get(message.kind)
            if callback is None:
                name = (message.kind, message.key)
                waiters = self._waiters.get(name, [])
                for number, waiter in enumerate(waiters):
                    if waiter.source is None or waiter.source == message.source:
                        del waiters[number]
                        if not waiters:
                            del self._waiters[name]
                        waiter.reply.put(message)
                        return
                self._mailboxes.setdefault(name, deque()).append(message)
                other_call = PeerInOtherCall(message.source, message.kind)
                self._wake(other_call, lambda waiter: waiter.is_in_other_call(message.kind, [message]))
                return
        try:
            callback(message.unpickle())
        except Exception as error:  # noqa: BLE001 - it belongs to the threads that wait: nobody else would see it
            self._fail(error)

    def _mark_departed(self, peer: int, said_goodbye: bool) -> None:
        with self._lock:
            if peer in self._departed or self._is_closed:
                return
            lost = self._departed[peer] = self._loss_error(peer, said_goodbye)
            callbacks = list(self._on_lost)
        self._links[peer].stop()
        if said_goodbye:
            self._wake(lost, lambda waiter: self._loss_of(waiter.source) is not None)
        else:
            self._fail(lost)
        for callback in callbacks:
            callback(lost)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
            failure = self._failure
        self._wake(failure, lambda _: True)

    def _wake(self, error: BaseException, is_concerned: "Callable[[_Waiter], bool]") -> None:
        with self._lock:
            for name, waiters in list(self._waiters.items()):
                for waiter in waiters:
                    if is_concerned(waiter):
                        waiter.reply.put(error)
                self._waiters[name] = [waiter for waiter in waiters if not is_concerned(waiter)]

    def _loss_of(self, source: int | None) -> PeerLost | None:
        """Return the error if no message of *source* can arrive any more, None if one can."""
        if source is None:
            everybody = len(self._departed) == len(self._links) > 0
            return next(iter(self._departed.values())) if everybody else None
        return self._departed.get(source)

    def _loss_error(self, peer: int, said_goodbye: bool = False) -> PeerLost:
        ending = "reached its end" if said_goodbye else "ended or left"
        return PeerLost(peer, f"Connection closed by peer: {self._names[peer]} {ending}", said_goodbye)


class _Waiter:
    """A thread that waits for a message of *source* (None: of any rank). It gives up when *source* sends one of
    *instead*."""

    def __init__(self, source: int | None, instead: Collection[str]) -> None:
        self.source = source
        self._instead = instead
        self.reply: queue.SimpleQueue[_PickledMessage | BaseException] = queue.SimpleQueue()

    def is_in_other_call(self, kind: str, mailbox: "Iterable[_PickledMessage]") -> bool:
        """Return whether one of the messages of *kind* in *mailbox* shows that the awaited one will not arrive."""
        return kind in self._instead and any(
            getattr(message.unpickle().payload, "is_elsewhere", True)
            for message in mailbox
            if message.source == self.source
        )


class _Link:
    """The connection to one peer."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._changed = threading.Condition()
        self._pending: list[memoryview] = []  # For the writer thread to send.
        self._is_writing = False
        self._writer: threading.Thread | None = None
        self._is_stopped = False
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def start(self, messenger: Messenger, peer: int) -> None:
        """Read messages in a thread."""
        stream = _Stream(self.socket)
        threading.Thread(target=messenger._read, args=(peer, stream), name=f"smp-from-{peer}", daemon=True).start()

    def send(self, views: list[memoryview]) -> None:
        """Send *views*, one after the other; raises OSError if the peer has left."""
        with self._changed:
            if self._is_stopped:
                raise BrokenPipeError
            while views and not self._pending and not self._is_writing:
                try:
                    sent = self.socket.sendmsg(views[:IOV_MAX], (), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                views = _skip_bytes(views, sent)
            if views:
                self._pending.extend(views)
                if self._writer is None:
                    self._writer = threading.Thread(target=self._write, name="smp-writer", daemon=True)
                    self._writer.start()
                self._changed.notify_all()

    def stop(self) -> None:
        """Discard unsent data: the peer has left."""
        with self._changed:
            self._is_stopped = True
            self._pending = []
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def finish(self, deadline_s: float) -> None:
        """Wait until all data is sent, then shut down this direction of the connection."""
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
                    views = _skip_bytes(views, self.socket.sendmsg(views[:IOV_MAX]))
            except OSError:
                with self._changed:
                    self._is_writing = False
                    self._is_stopped = True
                    self._changed.notify_all()
                return  # The reader thread sees the end of the connection, too, and reports it.


class _Stream:
    """Reads from a socket through a small buffer, so that a small message takes one call into the kernel."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._ready = self._stage[:0]

    def read(self, count: int) -> bytes:
        """Return the next *count* bytes; raises EOFError if the stream ends before."""
        if count <= len(self._ready):
            chunk = bytes(self._ready[:count])
            self._ready = self._ready[count:]
            return chunk
        buffer = bytearray(count)
        self._fill(memoryview(buffer))
        return bytes(buffer)

    def read_buffer(self, count: int) -> memoryview:
        """Return the next *count* bytes in memory of their own."""
        buffer = memoryview(bytearray(count))  # Fresh pages of mmap take four times as long.
        self._fill(buffer)
        return buffer

    def _fill(self, target: memoryview) -> None:
        while len(target):
            if not len(self._ready):
                if len(target) >= STAGE_BYTES:
                    count = self._socket.recv_into(target, 0, socket.MSG_WAITALL)
                    if not count:
                        raise EOFError
                    target = target[count:]
                    continue
                count = self._socket.recv_into(self._stage)
                if not count:
                    raise EOFError
                self._ready = self._stage[:count]
            count = min(len(target), len(self._ready))
            target[:count] = self._ready[:count]
            target, self._ready = target[count:], self._ready[count:]


def _skip_bytes(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what remains of *views* after their first *count* bytes."""
    done = 0
    while done < len(views) and count >= len(views[done]):
        count -= len(views[done])
        done += 1
    views = views[done:]
    return [views[0][count:], *views[1:]] if views and count else views


def _copy_for_thread(error: BaseException) -> BaseException:
    """Return a copy of *error* for this thread: one object raised in several threads would mix their tracebacks."""
    if isinstance(error, PeerLost):
        return PeerLost(error.rank, str(error), error.said_goodbye)
    return error


def _close_in_children(messenger: Messenger) -> None:
    # A child (a DataLoader's worker) that kept the sockets open would hide the end of this rank from its peers.
    reference = weakref.ref(messenger)

    def close_sockets() -> None:
        messenger = reference()
        if messenger is not None:
            messenger.abandon()

    os.register_at_fork(after_in_child=close_sockets)
