"""A console stream as the loop writes it: whole blocks, in order, never blocking, bounded.

A log driver that stalls must not stop the loop, and O_NONBLOCK must not be set on a description that others share (the
shell, a sibling container process). So a pipe or terminal is opened anew through /proc/self/fd, which gives a
description of our own; where that is refused (a pipe of another user), at most PIPE_BUF bytes are written after
POLLOUT, which then cannot block (pipe(7)). Sockets are sent to with MSG_DONTWAIT. Regular files never block.
"""

import errno
import os
import select
import stat
from collections import deque
from itertools import islice

LIMIT_BYTES = 1 << 20
PIPE_BUF = 4096
UNLIMITED = 1 << 20
PARTS = 64
NEWLINE = 10
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032


class Outlet:
    """The queue in front of one descriptor. `full`: its sources should not be read until it has room again."""

    def __init__(self, fd: int) -> None:
        self.fd, self._write_bytes = _own_description(fd)
        self._queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.lost_bytes = 0
        self.broken = False
        self.at_line_start = True

    @property
    def full(self) -> bool:
        return self.pending_bytes >= LIMIT_BYTES

    def put(self, *parts: bytes | memoryview) -> None:
        """Write *parts*, one behind the other, or as much as goes at once, and keep the rest for `pump`."""
        is_idle = not self._queue
        for part in parts:
            if not part:
                continue
            self.at_line_start = part[-1] == NEWLINE
            if self.broken:
                self.lost_bytes += len(part)
                continue
            self._queue.append(memoryview(part))
            self.pending_bytes += len(part)
        if is_idle:
            self.pump()

    def say(self, line: bytes) -> None:
        """Write *line* of our own, on a line of its own even while a script's line is open."""
        self.put(line if self.at_line_start else b"\n" + line)

    def pump(self) -> None:
        """Write what goes without blocking. A reader that is gone is no failure of the job: the rest is counted."""
        while self._queue:
            try:
                written = self._write()
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    return
                self._give_up()
                return
            if written == 0:
                return
            self.pending_bytes -= written
            while written:
                head = self._queue.popleft()
                if written < len(head):
                    self._queue.appendleft(head[written:])
                written -= min(written, len(head))

    def _write(self) -> int:
        head = self._queue[0]
        if self._write_bytes == UNLIMITED:
            return os.writev(self.fd, list(islice(self._queue, PARTS)))
        if self._write_bytes == 0:
            return _send(self.fd, head)
        if self._write_bytes == PIPE_BUF and not _writable(self.fd):
            return 0
        return os.write(self.fd, head[:PIPE_BUF])

    def _give_up(self) -> None:
        self.broken = True
        self.lost_bytes += self.pending_bytes
        self.pending_bytes = 0
        self._queue.clear()


def same_sink(one: int, other: int) -> bool:
    """True if two descriptors lead to the same pipe, terminal or file (`2>&1`)."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _own_description(fd: int) -> tuple[int, int]:
    """Return (descriptor, bytes a write may take; 0: send as a socket, PIPE_BUF: only after POLLOUT)."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return os.open(os.devnull, os.O_WRONLY), UNLIMITED
    if stat.S_ISSOCK(mode):
        return fd, 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return fd, UNLIMITED
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), UNLIMITED
    except OSError:
        return fd, PIPE_BUF


def _writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _send(fd: int, head: memoryview) -> int:
    import socket

    with socket.socket(fileno=os.dup(fd)) as end:
        return end.send(head[: 1 << 16], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
