"""Waits for descriptors with poll(2), or with select(2) where a sandbox denies the former."""

import errno
import select

# What a seccomp filter answers. Neither is an answer of poll(2) itself.
DENIED = (errno.EPERM, errno.ENOSYS, errno.EACCES)


def is_readable(fd: int, within_s: float) -> bool:
    """Return whether *fd* can be read, or is at its end, within *within_s*, which passes else."""
    waiting = Poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(within_s * 1000))


class Poll:
    """`select.poll`, as far as the loop uses it. After a denied poll(2) it calls select(2), which takes no descriptor
    above 1,023: a host of several hundred ranks."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}
        self._poll: select.poll | None = select.poll()

    def register(self, fd: int, events: int) -> None:
        """Wait for *events* (POLLIN, POLLOUT) of *fd* as well."""
        self._events[fd] = events
        if self._poll is not None:
            self._poll.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Wait for *fd* no longer."""
        del self._events[fd]
        if self._poll is not None:
            self._poll.unregister(fd)

    def poll(self, timeout_ms: float | None) -> list[tuple[int, int]]:
        """Return (descriptor, events) for those that are ready within *timeout_ms* (None: no limit)."""
        if self._poll is not None:
            try:
                return self._poll.poll(timeout_ms)
            except OSError as error:
                if error.errno not in DENIED:
                    raise
                self._poll = None
        reads = [fd for fd, events in self._events.items() if events & select.POLLIN]
        writes = [fd for fd, events in self._events.items() if events & select.POLLOUT]
        readable, writable, _ = select.select(reads, writes, [], None if timeout_ms is None else timeout_ms / 1000)
        return [(fd, select.POLLIN) for fd in readable] + [(fd, select.POLLOUT) for fd in writable]
