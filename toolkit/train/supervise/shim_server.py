"""The server to which rank shims and mpirun's agents connect.

A rank shim asks `train` to run its rank (toolkit/rank/hook/rank_shim.py explains it). mpirun's agent asks for a daemon
on another host (toolkit/rank/hook/mpi_agent.py).
"""

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.job.events import Launch
from toolkit.job.plan import SHIM_SOCKET
from toolkit.records import Record

if TYPE_CHECKING:
    import socket

# Descriptors that come with a request get numbers that nothing else in a starting process uses.
LOWEST_PASSED = 200
# A C int.
DESCRIPTOR_BYTES = 4
# The first line of a message is a word and a number; arguments and environment together may have some megabytes.
LONGEST_HEAD = 64
LONGEST_BODY_BYTES = 256 << 20
AGENT_SCRIPT = """#!/bin/sh
# mpirun starts this in place of ssh; train has the daemon started by the other host's train.
exec {python} -I -S {agent} "$@"
"""
RANK_SCRIPT = """#!/bin/sh
# Runs in place of a launcher's rank: hands it over to train. A first argument that is an option is an interpreter's.
case "$1" in -*) set -- {script_python} "$@" ;; esac
exec {python} -I -S {shim} {server} "$@"
"""


class CommandRequest(Record, frozen=True, kw_only=True):
    """A follower's main process asks for the command that this host is to run."""


class RankRequest(Record, frozen=True, kw_only=True):
    """A rank shim's request to start a rank."""

    argv: tuple[str, ...]
    cwd: str
    environ: dict[bytes, bytes]
    """Bytes, as in the kernel."""
    affinity: tuple[int, ...]
    """The CPUs; empty: unknown."""
    passed: int | None = None
    """The number of a descriptor that the rank inherits (its PMI_FD); the connection owns and closes it."""

    def number(self, name: bytes) -> int | None:
        """Return a variable of the environment as a number, None if it is unset or no number."""
        value = self.environ.get(name, b"")
        return int(value) if value.isdigit() else None


class ShimConnection:
    """A connection of a rank shim, an agent or a daemon.

    `asked`: its request, once it is complete. `pid`: the process of the rank that `train` started for it.
    """

    def __init__(self, connection: "socket.socket") -> None:
        self._connection = connection
        self._read = b""
        self._passed: int | None = None
        self.asked: RankRequest | Launch | CommandRequest | None = None
        self.pid: int | None = None
        self.answered = False
        self.is_strange = False  # What came is no message of a rank shim.

    @property
    def fd(self) -> int:
        return self._connection.fileno()

    @property
    def peer(self) -> int:
        """The pid at the other end."""
        import socket

        credentials = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * 4)
        return int.from_bytes(credentials[:4], sys.byteorder)

    def read(self) -> tuple[list[int], bool]:
        """Read what came. Return (the signals that the launcher sent to the rank shim, True if the shim is gone)."""
        try:
            piece = self._receive()
        except BlockingIOError:
            return [], False
        except OSError:
            piece = b""
        if not piece:
            return [], True
        self._read += piece
        try:
            if self.asked is None and not self._read_request():
                return [], False
            lines = self._read.split(b"\n")
            self._read = lines.pop()
            return [int(line.split()[1]) for line in lines if line.startswith(b"signal ")], False
        except (ValueError, IndexError):
            self.is_strange = True
            return [], True

    def give(self, command: str) -> None:
        """Send a follower's main process the command that it replaces itself with."""
        encoded = os.fsencode(command)
        self._say(b"command %d\n%s" % (len(encoded), encoded))

    def dismiss(self) -> None:
        """Tell a follower's main process that no command will follow."""
        self._say(b"over\n")

    def answer(self, *, code: int | None, number: int | None) -> None:
        """Let the rank shim end as its rank did."""
        self.answered = True
        words = f"exit {code}\n" if code is not None else f"signal {number}\n"
        self._say(words.encode())

    def close(self) -> None:
        self._connection.close()
        if self._passed is not None:
            os.close(self._passed)
            self._passed = None

    def _say(self, words: bytes) -> None:
        try:
            self._connection.sendall(words)
        except OSError:
            pass  # The launcher killed the shim; `read` reports its end.

    def _receive(self) -> bytes:
        import socket

        room = socket.CMSG_SPACE(DESCRIPTOR_BYTES)
        piece, extras, _, _ = self._connection.recvmsg(1 << 16, room)
        for level, kind, value in extras:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                number = int.from_bytes(value[:DESCRIPTOR_BYTES], sys.byteorder, signed=True)
                self._passed = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, LOWEST_PASSED)
                os.close(number)
        return piece

    def _read_request(self) -> bool:
        head, newline, rest = self._read.partition(b"\n")
        word, _, length_text = head.rpartition(b" ")
        if len(head) > LONGEST_HEAD or (newline and not 0 <= int(length_text) <= LONGEST_BODY_BYTES):
            raise ValueError
        if not newline or len(rest) < int(length_text):
            return False
        body, self._read = rest[: int(length_text)], rest[int(length_text) :]
        if word == b"daemon":
            self.asked = CommandRequest()
            return True
        if word == b"launch":
            host, _, command = body.partition(b"\0")
            self.asked = Launch(host=host.decode("utf-8", "replace"), command=os.fsdecode(command))
            return True
        cwd, affinity, count, *fields = body.split(b"\0")
        argv, environ = fields[: int(count)], fields[int(count) :]
        if not argv or len(argv) != int(count):
            raise ValueError
        self.asked = RankRequest(
            argv=tuple(os.fsdecode(token) for token in argv),
            cwd=os.fsdecode(cwd),
            environ=dict(pair.partition(b"=")[::2] for pair in environ),
            affinity=tuple(map(int, filter(None, affinity.split(b",")))),
            passed=self._passed,
        )
        return True


class ShimServer:
    """Listens on a socket in the run's folder, which only this user can enter."""

    def __init__(self, folder: Path) -> None:
        import socket  # 3 ms that a script alone need not pay

        self.path = folder / SHIM_SOCKET
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        # A socket's path may have at most 107 bytes; the folder's path may be longer.
        with _opened(folder) as fd:
            self._listener.bind(f"/proc/self/fd/{fd}/{self.path.name}")
        self._listener.listen(1024)

    @property
    def fd(self) -> int:
        return self._listener.fileno()

    def accept(self) -> ShimConnection | None:
        """Return the next connection, None if there is none.

        Raises:
            OSError: there is no descriptor or memory for it. It stays in the queue, so its rank would never start.
        """
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            return None
        connection.setblocking(False)
        return ShimConnection(connection)

    def close(self) -> None:
        self._listener.close()
        self.path.unlink(missing_ok=True)  # The next attempt's server uses the same path.


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def write_wrapper(path: Path, *, script_python: str, python: str, shim: Path, server: Path) -> str:
    """Write the executable that launchers start in place of a rank; return why it cannot be used, "" if it can."""
    words = {"script_python": script_python, "python": python, "shim": str(shim), "server": str(server)}
    return _write_executable(path, RANK_SCRIPT.format(**{name: _in_quotes(word) for name, word in words.items()}))


def write_agent(path: Path, *, python: str, agent: Path) -> str:
    """Write the executable that mpirun starts in place of ssh; return why it cannot be used, "" if it can."""
    return _write_executable(path, AGENT_SCRIPT.format(python=_in_quotes(python), agent=_in_quotes(str(agent))))


def _write_executable(path: Path, text: str) -> str:
    try:
        path.write_text(text)
        path.chmod(0o700)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    if os.access(path, os.X_OK) and os.access("/bin/sh", os.X_OK):
        return ""
    return f"{path} cannot be executed (noexec, or no /bin/sh)"


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
