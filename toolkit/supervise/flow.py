"""What the loop waits for, and the bytes on their way: descriptors, streams, back-pressure.

A console that takes nothing must not make the loop wait nor memory grow: while an outlet is full its streams are not
read, their pipes fill, and their writers wait as they would on any slow terminal.
"""

import select
import time
from collections.abc import Callable

from toolkit.supervise.console import Console
from toolkit.supervise.outlet import STALLED_STOP_S, Outlet
from toolkit.supervise.relay import Stream

QUIET_PIPE_S = 1.0
# What a pipe may hold at the end: it is read to its end, but not for ever where a daemon goes on writing.
LAST_READS = 64


class Flow:
    """One `poll` and a handler for each descriptor in it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._streams: dict[int, Stream] = {}
        self._paused: set[int] = set()
        self._waiting_for_room: set[int] = set()
        self._moved_s = 0.0
        for outlet in console.outlets:
            outlet.served = True
            self._mind(outlet)

    def watch(self, fd: int, handler: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call *handler* whenever *fd* is ready (or at its end)."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget *fd*; no harm if it is not known."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def add(self, stream: Stream) -> None:
        """Read *stream* until its end."""
        self._streams[stream.fd] = stream
        self._read_again(stream)

    def forget(self, stream: Stream) -> None:
        """Read nothing more from *stream*, and drop what is held of it."""
        if self._streams.pop(stream.fd, None) is not None:
            self.unwatch(stream.fd)
            self._paused.discard(stream.fd)
            stream.discard()

    @property
    def drained(self) -> bool:
        """True if every stream is at its end."""
        return not self._streams

    def step(self, timeout_s: float | None) -> None:
        """Wait until something is ready, at most *timeout_s* (None: as long as it takes), and handle it."""
        waits = [wait for wait in (timeout_s, self._rest_s(time.monotonic())) if wait is not None]
        for fd, _ in self._poll.poll(min(waits) * 1000 + 1 if waits else None):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
        now_s = time.monotonic()
        for stream in self._streams.values():
            rest_s = stream.rest_s(now_s)
            if rest_s is not None and rest_s <= 0:
                stream.refresh(now_s)
        for outlet in self._console.outlets:
            rest_s = outlet.rest_s(now_s)
            if rest_s is not None and rest_s <= 0:
                outlet.refresh(now_s)
            self._mind(outlet)

    def begin_draining(self) -> None:
        """Start the patience of `patience_ends_s` anew: what lies in the pipes has not been looked at yet."""
        self._moved_s = time.monotonic()

    def patience_ends_s(self) -> float:
        """Return when (monotonic) to stop waiting for pipes that somebody holds open, or for a console that stalls."""
        waiting = [each.moved_s + each.patience_s for each in self._console.outlets if each.pending_bytes]
        return max(self._moved_s + QUIET_PIPE_S, *waiting) if waiting else self._moved_s + QUIET_PIPE_S

    def give_up_stalled(self, for_s: float | None = STALLED_STOP_S) -> None:
        """Let no script wait any longer for a console that has taken nothing for *for_s* seconds (None: its patience):
        lines are counted as lost from now on, until it takes something again."""
        now_s = time.monotonic()
        for outlet in self._console.outlets:
            if outlet.stalled(now_s, for_s):
                outlet.refuse()
        self._resume()

    def stalled_s(self) -> float:
        """Return for how many seconds the console has made scripts wait, 0 if it does not."""
        full = [outlet.moved_s for outlet in self._console.outlets if outlet.full]
        return max(time.monotonic() - min(full), 0.0) if full else 0.0

    def drain(self) -> None:
        """Relay what is left, and serve nothing else, until every stream is at its end or patience is."""
        outlets = {outlet.fd for outlet in self._console.outlets}
        for fd in set(self._handlers) - set(self._streams) - outlets:
            self.unwatch(fd)
        self.begin_draining()
        while not self.drained and time.monotonic() < self.patience_ends_s():
            self.step(QUIET_PIPE_S)

    def release(self) -> None:
        """Wait for nothing any more; nobody else looks after what the outlets hold back."""
        for outlet in self._console.outlets:
            outlet.settle()
        for fd in list(self._handlers):
            self.unwatch(fd)

    def end(self) -> None:
        """Read what the pipes still hold, flush and close."""
        self.give_up_stalled(None)
        for stream in list(self._streams.values()):
            self.unwatch(stream.fd)
            for _ in range(LAST_READS):
                if not stream.read(time.monotonic()):
                    break
            stream.close()
        self._streams.clear()
        self.release()

    def _rest_s(self, now_s: float) -> float | None:
        sources = (*self._streams.values(), *self._console.outlets)
        return min((rest for each in sources if (rest := each.rest_s(now_s)) is not None), default=None)

    def _read_again(self, stream: Stream) -> None:
        self._paused.discard(stream.fd)
        self.watch(stream.fd, lambda: self._on_stream(stream))

    def _on_stream(self, stream: Stream) -> None:
        fd = stream.fd
        self._moved_s = time.monotonic()
        stream.read(self._moved_s)
        if stream.ended:
            self.unwatch(fd)
            self._streams.pop(fd, None)
        self._mind(stream.outlet)

    def _mind(self, outlet: Outlet) -> None:
        if not outlet.pending_bytes:
            return
        if outlet.fd not in self._waiting_for_room:
            self._waiting_for_room.add(outlet.fd)
            self.watch(outlet.fd, self._on_room, select.POLLOUT)
        if outlet.full:
            for stream in self._streams.values():
                if stream.outlet is outlet and stream.fd not in self._paused:
                    self._paused.add(stream.fd)
                    self.unwatch(stream.fd)

    def _on_room(self) -> None:
        self._moved_s = time.monotonic()
        for outlet in self._console.outlets:
            outlet.pump()
            if not outlet.pending_bytes and outlet.fd in self._waiting_for_room:
                self._waiting_for_room.discard(outlet.fd)
                self.unwatch(outlet.fd)
        self._resume()

    def _resume(self) -> None:
        for fd in list(self._paused):
            stream = self._streams[fd]
            if not stream.outlet.full:
                self._read_again(stream)
