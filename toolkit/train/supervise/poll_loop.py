"""The one poll loop: descriptors, the ranks' streams, back-pressure.

If the console takes nothing, the loop must not wait and memory must not grow. So while an outlet is full, its streams
are not read: their pipes fill, and the writers wait as at any slow terminal.
"""

import select
import time
from collections.abc import Callable

from toolkit.train.supervise.console import Console
from toolkit.train.supervise.outlet import STALLED_STOP_S, Outlet
from toolkit.train.supervise.poll import Poll
from toolkit.train.supervise.relay import Stream

QUIET_PIPE_S = 1.0
# Reads of each pipe at the end: enough to empty it, but not endless if a daemon goes on writing.
LAST_READS = 64


class PollLoop:
    """One `poll` and a handler for each descriptor in it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._poll = Poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._streams: dict[int, Stream] = {}
        self._paused: set[int] = set()
        self._waiting_for_room: set[int] = set()
        self._moved_s = 0.0
        for outlet in console.outlets:
            outlet.served = True
            self._mind(outlet)

    def watch(self, fd: int, handler: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call *handler* whenever *fd* is ready or at its end."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching *fd*, if it is watched."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def add(self, stream: Stream) -> None:
        """Read *stream* until its end."""
        self._streams[stream.fd] = stream
        self._read_again(stream)

    def forget(self, stream: Stream) -> None:
        """Stop reading *stream*, and drop what is held of it."""
        if self._streams.pop(stream.fd, None) is not None:
            self.unwatch(stream.fd)
            self._paused.discard(stream.fd)
            stream.discard()

    @property
    def drained(self) -> bool:
        """True if every stream is at its end."""
        return not self._streams

    def step(self, timeout_s: float | None) -> None:
        """Wait until a descriptor is ready, at most *timeout_s* (None: no limit), and handle it."""
        waits = [wait for wait in (timeout_s, self._due_in_s(time.monotonic())) if wait is not None]
        for fd, _ in self._poll.poll(min(waits) * 1000 + 1 if waits else None):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
        now_s = time.monotonic()
        for stream in self._being_read:
            due_in_s = stream.due_in_s(now_s)
            if due_in_s is not None and due_in_s <= 0:
                stream.refresh(now_s)
        for outlet in self._console.outlets:
            due_in_s = outlet.due_in_s(now_s)
            if due_in_s is not None and due_in_s <= 0:
                outlet.refresh(now_s)
            self._mind(outlet)

    def begin_draining(self) -> None:
        """Restart the time of `patience_ends_s`: the pipes may hold output that was not read yet."""
        self._moved_s = time.monotonic()

    def patience_ends_s(self) -> float:
        """Return when (monotonic) to stop waiting for pipes that a process holds open, or for a stalled console."""
        waiting = [outlet.moved_s + outlet.patience_s for outlet in self._console.outlets if outlet.pending_bytes]
        return max(self._moved_s + QUIET_PIPE_S, *waiting) if waiting else self._moved_s + QUIET_PIPE_S

    def give_up_stalled(self, for_s: float | None = STALLED_STOP_S) -> None:
        """Let no script wait any longer for a console that has taken nothing for *for_s* seconds (None: its patience).
        From now on lines count as lost until the console takes something again."""
        now_s = time.monotonic()
        for outlet in self._console.outlets:
            if outlet.stalled(now_s, for_s):
                outlet.refuse()
        self._resume()

    def stalled_s(self) -> float:
        """Return for how many seconds scripts have waited for the console, 0 if they do not."""
        full = [outlet.moved_s for outlet in self._console.outlets if outlet.full]
        return max(time.monotonic() - min(full), 0.0) if full else 0.0

    def drain(self) -> None:
        """Relay what is left, and serve nothing else, until every stream has ended or `patience_ends_s` is reached."""
        outlets = {outlet.fd for outlet in self._console.outlets}
        for fd in set(self._handlers) - set(self._streams) - outlets:
            self.unwatch(fd)
        self.begin_draining()
        while not self.drained and time.monotonic() < self.patience_ends_s():
            self.step(QUIET_PIPE_S)

    def release(self) -> None:
        """Stop waiting for the outlets; write what they hold back, since nobody else will."""
        for outlet in self._console.outlets:
            outlet.settle()
        for fd in list(self._handlers):
            self.unwatch(fd)

    def end(self) -> None:
        """Read what the pipes still hold, then flush and close."""
        self.give_up_stalled(None)
        for stream in list(self._streams.values()):
            self.unwatch(stream.fd)
            for _ in range(LAST_READS):
                if not stream.read(time.monotonic()):
                    break
            stream.close()
        self._streams.clear()
        self.release()

    @property
    def _being_read(self) -> list[Stream]:
        """The streams that are read. The rest of an unfinished line of another may wait in its pipe."""
        return [stream for fd, stream in self._streams.items() if fd not in self._paused]

    def _due_in_s(self, now_s: float) -> float | None:
        sources = (*self._being_read, *self._console.outlets)
        return min((rest for source in sources if (rest := source.due_in_s(now_s)) is not None), default=None)

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
                stream.wait_anew(time.monotonic())
                self._read_again(stream)
