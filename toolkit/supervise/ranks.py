"""The door at which stand-ins ask `train` to run their ranks (toolkit/hook/standin.py says why and how)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.records import Record

if TYPE_CHECKING:
    import socket

WRAPPER = """#!/bin/sh
# Runs in place of a launcher's rank: hands it over to train. A first argument that is an option is an interpreter's.
case "$1" in -*) set -- {script_python} "$@" ;; esac
exec {python} -I -S {standin} {door} "$@"
"""


class Request(Record, frozen=True, kw_only=True):
    """What a stand-in asks for: a rank's command line, folder, environment (bytes, as the kernel has them) and cpus."""

    argv: tuple[str, ...]
    cwd: str
    environ: dict[bytes, bytes]
    affinity: tuple[int, ...]

    def number(self, name: bytes) -> int | None:
        """Return a variable of the environment as a number, None if it is not one."""
        value = self.environ.get(name, b"")
        return int(value) if value.isdigit() else None


class StandIn:
    """One connection. `asked` has its request once it is whole; `pid` the rank that was started for it."""

    def __init__(self, connection: "socket.socket") -> None:
        self._connection = connection
        self._read = b""
        self.asked: Request | None = None
        self.pid: int | None = None
        self.answered = False

    @property
    def fd(self) -> int:
        return self._connection.fileno()

    def read(self) -> tuple[list[int], bool]:
        """Take what came. Return (signals the launcher sent to the stand-in, True if it is gone)."""
        try:
            piece = self._connection.recv(1 << 16)
        except BlockingIOError:
            return [], False
        except OSError:
            piece = b""
        if not piece:
            return [], True
        self._read += piece
        if self.asked is None and not self._read_request():
            return [], False
        lines = self._read.split(b"\n")
        self._read = lines.pop()
        return [int(line.split()[1]) for line in lines if line.startswith(b"signal ")], False

    def answer(self, *, code: int | None, number: int | None) -> None:
        """Let the stand-in end as its rank did."""
        self.answered = True
        words = f"exit {code}\n" if code is not None else f"signal {number}\n"
        try:
            self._connection.sendall(words.encode())
        except OSError:
            pass  # The launcher killed it; that was said when its end closed.

    def close(self) -> None:
        self._connection.close()

    def _read_request(self) -> bool:
        length_text, newline, rest = self._read.partition(b"\n")
        if not newline or len(rest) < int(length_text):
            return False
        body, self._read = rest[: int(length_text)], rest[int(length_text) :]
        cwd, affinity, count, *fields = body.split(b"\0")
        argv, environ = fields[: int(count)], fields[int(count) :]
        self.asked = Request(
            argv=tuple(os.fsdecode(token) for token in argv),
            cwd=os.fsdecode(cwd),
            environ=dict(pair.partition(b"=")[::2] for pair in environ),
            affinity=tuple(int(cpu) for cpu in affinity.split(b",")),
        )
        return True


class Door:
    """Listens in the run's folder, which only this user can enter."""

    def __init__(self, folder: Path) -> None:
        import socket  # 3 ms that a script alone need not pay

        self.path = folder / "ranks.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(self.path))
        self._listener.listen(1024)

    @property
    def fd(self) -> int:
        return self._listener.fileno()

    def accept(self) -> StandIn | None:
        """Return the next stand-in at the door, None if there is none."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        connection.setblocking(False)
        return StandIn(connection)

    def close(self) -> None:
        self._listener.close()


def write_wrapper(path: Path, *, script_python: str, python: str, standin: Path, door: Path) -> bool:
    """Write the executable that launchers start in place of a rank; False if it cannot be executed (noexec, no sh)."""
    words = {"script_python": script_python, "python": python, "standin": str(standin), "door": str(door)}
    path.write_text(WRAPPER.format(**{name: _in_quotes(word) for name, word in words.items()}))
    path.chmod(0o700)
    return os.access(path, os.X_OK) and os.access("/bin/sh", os.X_OK)


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
