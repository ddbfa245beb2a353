"""Ports of this machine: whether one is free, which process holds it, and a free one for a job.

`_socket` in place of `socket`, which takes 3 to 12 ms to import: every job of one host takes a port before its start.
"""

import _socket
import errno
import os
from collections.abc import Iterator
from pathlib import Path

# Below the kernel's ephemeral ports (from 32768), one of which an outgoing connection could take at any time.
RANGE = range(20_000, 30_000)
LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp.
TRIES = 200
SHOWN_WORDS = 3  # Of a command: the interpreter, an option and the script; what follows may be a secret.


class OwnPort:
    """The port that a job has for itself. `port`: 0 before `take` or `claim`.

    A port cannot be held open for the launcher that will listen on it. So that two jobs which start at the same moment
    do not use the same one, each `train` claims its port by an abstract Unix socket, whose names belong to the
    network namespace, as ports do, and which the kernel removes with the process.
    """

    def __init__(self) -> None:
        self.port = 0
        self._claim: _socket.socket | None = None

    def take(self, first: int) -> int:
        """Return a free port: the one of an earlier call, else *first*, else one by chance. *first* if none is free."""
        if self.port and not refused(self.port):
            return self.port
        return next((port for port in _from(first) if not refused(port) and self.claim(port)), first)

    def claim(self, port: int) -> bool:
        """Claim *port* in place of the port of an earlier call; False if another job of this machine has it."""
        if self._claim is not None and self.port == port:
            return True
        self.close()
        try:
            claim = _claimed(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            claim = None  # A sandbox denies such sockets: only the claim cannot be made.
        self.port, self._claim = port, claim
        return True

    def close(self) -> None:
        """Give the port up."""
        if self._claim is not None:
            self._claim.close()
        self.port, self._claim = 0, None


def refused(port: int) -> str:
    """Return why *port* cannot be opened on this host, "" if it can. The port is closed again."""
    for family, any_address in ((_socket.AF_INET, "0.0.0.0"), (_socket.AF_INET6, "::")):
        reason = _bound(family, any_address, port)
        if reason:
            return reason
    return ""


def holder(port: int, proc: Path = Path("/proc")) -> str:
    """Return who listens on *port*, as "process 42 (python train.py)"; "" if no process does."""
    inodes = set(_listening(port, proc))
    if not inodes:
        return ""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in sorted((name for name in os.listdir(proc) if name.isdigit()), key=int):
        if links & set(_descriptors(proc / process / "fd")):
            return f"process {process} ({_command(proc / process)})"
    return "a process that this user may not look at (another user's, or another container's)"


def _from(first: int) -> Iterator[int]:
    """Yield ports to try: *first*, then others in an order that differs between processes (`random` takes 5 ms to
    import)."""
    yield first
    start = int.from_bytes(os.urandom(2), "big")
    yield from (RANGE.start + (start + index * 1999) % len(RANGE) for index in range(TRIES))


def _claimed(port: int) -> _socket.socket:
    """Return a socket that stands for *port* among the jobs of this machine.

    Raises:
        OSError: EADDRINUSE if another job has it.
    """
    claim = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        claim.bind(b"\0toolkit-port-%d" % port)
    except OSError:
        claim.close()
        raise
    return claim


def _bound(family: int, address: str, port: int) -> str:
    try:
        attempt = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            attempt.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            if family == _socket.AF_INET6:
                attempt.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
            attempt.bind((address, port))
        finally:
            attempt.close()
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return ""  # This host has no IPv6, so no program uses the port there.
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ""


def _listening(port: int, proc: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on *port*, whatever the address."""
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text("utf-8", "replace").splitlines()[1:]
        except OSError:
            continue  # No /proc, or no IPv6.
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _descriptors(folder: Path) -> Iterator[str]:
    try:
        numbers = os.listdir(folder)
    except OSError:
        return  # Another user's, or it has ended.
    for number in numbers:
        try:
            yield os.readlink(folder / number)
        except OSError:
            continue


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "ended meanwhile"
    first_words = [word.decode("utf-8", "replace") for word in words[:SHOWN_WORDS]]
    return " ".join([*first_words, *["..."] * (len(words) > SHOWN_WORDS)])
