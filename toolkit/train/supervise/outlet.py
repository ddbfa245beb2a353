"""Writes a console stream: whole blocks, in order, never blocking, with a bounded queue.

A stalled log driver must not stop the loop, and O_NONBLOCK must not be set on an open file description that other
processes share (the shell, another process of the container). So a pipe or terminal is opened again through
/proc/self/fd, which gives a description of its own. If the kernel refuses that (another user's pipe), at most PIPE_BUF
bytes are written after POLLOUT, which cannot block (pipe(7)). Sockets get MSG_DONTWAIT. Regular files never block.

Bytes that do not reach the console are counted. When the console takes bytes again, a line reports the number.
"""

import errno
import fcntl
import os
import select
import stat
import time
from collections import deque
from itertools import islice

from toolkit.train.supervise.poll import Poll

LIMIT_BYTES = 1 << 20
# The limit of the queue for lines of `train` itself, which, unlike a script's, have no pipe in which to wait.
OWN_LIMIT_BYTES = 4 << 20
# Seconds without a byte taken after which a console counts as stalled.
STALLED_S = 30.0
# The same during a stop: a script that waits for a stalled console cannot save, and the platform sends SIGKILL at its
# deadline.
STALLED_STOP_S = 2.0
PIPE_BUF = 4096
UNLIMITED = 1 << 20
PARTS = 64
NEWLINE = 10
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
UNREAD = "nobody read it"
CLOSED = "it was closed when train was started"
# The disk behind the console is full; it may have room later. After any other error the console is gone.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Outlet:
    """The queue in front of one descriptor. `full`: its sources should not be read until it has room again.

    `lost_bytes`: how many bytes will never reach the console; `reason`: why. `moved_s` (monotonic): when the console
    last took bytes, or when the pending ones began to wait. `patience_s`: after this time it counts as stalled.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self._write_bytes = _own_description(fd)
        self._queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.lost_bytes = 0
        self.reason = ""
        self.broken = False
        self.moved_s = 0.0
        self.patience_s = STALLED_S
        self.at_line_start = True
        self._refuses = False
        self._unsaid_bytes = 0

    @property
    def full(self) -> bool:
        return self.pending_bytes >= LIMIT_BYTES and not self._refuses

    @property
    def missing_bytes(self) -> int:
        """Bytes that the console has not taken: lost, or still pending."""
        return self.lost_bytes + self.pending_bytes

    def stalled(self, now_s: float, for_s: float | None = None) -> bool:
        """True if bytes are pending and the console has taken none for *for_s* seconds (None: `patience_s`), or none
        since `refuse`."""
        for_s = self.patience_s if for_s is None else for_s
        return self.pending_bytes > 0 and (self._refuses or now_s - self.moved_s >= for_s)

    def refuse(self) -> None:
        """Drop everything that is put from now on, until the console takes bytes again."""
        self._refuses = True
        self.reason = UNREAD

    def put(self, *parts: bytes | memoryview) -> None:
        """Write *parts* in order, as far as the console takes them now, and keep the rest for `pump`."""
        if self._refuses:
            self._lose(sum(map(len, parts)))
        else:
            self._take(*parts)

    def say(self, line: bytes) -> None:
        """Write *line*, a message of `train`, on a line of its own; queue it if the console is stalled."""
        if self.pending_bytes >= OWN_LIMIT_BYTES:
            self._lose(len(line))
        else:
            # After a loss, the line that reports it also ends an unfinished line.
            self._take(line if self.at_line_start or self._unsaid_bytes else b"\n" + line)
        self.pump()

    def pump(self) -> None:
        """Write as much as possible without blocking. If the reader is gone, count the rest: the job does not fail."""
        pending_bytes = self.pending_bytes
        while self._queue:
            try:
                written = self._write()
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    self._give_up(error)
                break
            if written == 0:
                break
            self.pending_bytes -= written
            while written:
                head = self._queue.popleft()
                if written < len(head):
                    self._queue.appendleft(head[written:])
                written -= min(written, len(head))
        if self._queue and self.pending_bytes < pending_bytes:
            self.moved_s = time.monotonic()
        if self._refuses and self.pending_bytes < pending_bytes:
            self._refuses = False

    def _take(self, *parts: bytes | memoryview) -> None:
        if self.broken or (self._unsaid_bytes and not self._say_loss()):
            self._lose(sum(map(len, parts)))
            return
        is_idle = not self._queue
        for part in parts:
            if part:
                self.at_line_start = part[-1] == NEWLINE
                self._queue.append(memoryview(part))
                self.pending_bytes += len(part)
        if is_idle:
            self.pump()
            if self._queue:
                self.moved_s = time.monotonic()

    def _write(self) -> int:
        head = self._queue[0]
        if self._write_bytes == UNLIMITED:
            return os.writev(self.fd, list(islice(self._queue, PARTS)))
        if self._write_bytes == 0:
            return _send(self.fd, head)
        if self._write_bytes == PIPE_BUF and not _writable(self.fd):
            return 0
        return os.write(self.fd, head[:PIPE_BUF])

    def _lose(self, count: int) -> None:
        self.lost_bytes += count
        self._unsaid_bytes += count

    def _give_up(self, error: OSError) -> None:
        self.broken = error.errno not in FULL
        self.reason = CLOSED if error.errno == errno.EBADF else error.strerror or type(error).__name__
        self._lose(self.pending_bytes)
        self.pending_bytes = 0
        self._queue.clear()
        self.at_line_start = False  # Half a line may have been written.

    def _say_loss(self) -> bool:
        """Write a line with the number of bytes missing here; return False if the console does not take even that."""
        line = b"[toolkit] warning: %d bytes are missing here: %s\n" % (self._unsaid_bytes, self.reason.encode())
        line = line if self.at_line_start else b"\n" + line
        written = 0
        if not self._queue:  # The line itself must not count as lost.
            self._queue.append(memoryview(line))
            try:
                written = self._write()
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    self._queue.clear()
                    return False
            self._queue.clear()
        self._unsaid_bytes = 0
        self.at_line_start = True
        if written < len(line):
            self._queue.append(memoryview(line)[written:])
            self.pending_bytes += len(line) - written
        return True


def same_sink(first_fd: int, second_fd: int) -> bool:
    """True if two descriptors lead to the same pipe, terminal or file (`2>&1`)."""
    try:
        first, second = os.fstat(first_fd), os.fstat(second_fd)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _own_description(fd: int) -> tuple[int, int]:
    """Return (descriptor, the most bytes for one write; 0: send as to a socket; PIPE_BUF: write only after POLLOUT)."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return fd, UNLIMITED  # Closed: what is written counts as lost.
    if stat.S_ISSOCK(mode):
        return fd, 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return fd, UNLIMITED
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:  # cli/streams.py put it in a closed one's place.
        return fd, UNLIMITED
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), UNLIMITED
    except OSError:
        return fd, PIPE_BUF


def _writable(fd: int) -> bool:
    poll = Poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _send(fd: int, head: memoryview) -> int:
    import socket

    with socket.socket(fileno=os.dup(fd)) as end:
        return end.send(head[: 1 << 16], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
