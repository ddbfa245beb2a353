"""Runs Python programs in forks of an interpreter that has imported their libraries: where a test is not about how a
rank starts, the rank need not take seconds of a core for `import torch`.

In a fork all is as after `python PROGRAM`: the environment, sys.argv, sys.path with PYTHONPATH, sitecustomize with the
rank hook, which sees the imports of what is imported already, random numbers, and the end of the interpreter. Only the
libraries were imported in another environment, the kernel shows the server's command line, and the forks of one server
have the same hashes of strings and addresses, by which sets are ordered: tests/started.py forks neighbours from two.
"""

import atexit
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

SERVER = Path(__file__).with_name("fork_server.py")
START_S = 300.0
GLOOS_LINE = re.compile(r"^\[Gloo\] Rank .*\n", re.M)  # torch 2.9 writes them to stdout.
TORCH = ("torch", "torch._dynamo")  # The first optimizer imports the second, as long as the first.
# What torch, its compiler and Hugging Face's libraries read when they are imported.
ENVIRON = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


class _Server:
    """An interpreter that has imported *modules*, and forks. It ends with this process."""

    def __init__(self, python: str, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, str(SERVER), str(theirs.fileno()), *modules],
                env={"PATH": os.environ["PATH"], **ENVIRON},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket.settimeout(START_S)
        assert self._socket.recv(16) == b"ready", f"the fork server with {modules} did not start"

    def fork(self, request: Mapping[str, object], stdout: int, stderr: int) -> tuple[int, socket.socket]:
        """Return the pid of a fork, and the socket that its exit status comes from."""
        parent_end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [stdout, stderr, theirs.fileno()])
        parent_end.settimeout(START_S)
        return int(parent_end.recv(32)), parent_end

    def close(self) -> None:
        """Let it end, and its forks."""
        self._socket.close()
        self._process.wait()


_servers: dict[tuple[str, tuple[str, ...], int], _Server] = {}
_starting = threading.Lock()


@atexit.register
def _close() -> None:
    for server in _servers.values():
        server.close()


class Fork:
    """A program in a fork, with the methods of a subprocess.Popen whose output is captured."""

    def __init__(
        self,
        program: Path,
        *arguments: str,
        environ: Mapping[str, str],
        modules: tuple[str, ...] = TORCH,
        python: str = sys.executable,
        folder: Path | None = None,
        warnings: Literal["default", "ignore"] = "default",
        server_number: int = 0,
    ) -> None:
        """*modules* are imported already. *folder*: its working directory, this process's if not given.
        *server_number*: of the servers with *modules*."""
        key = (python, modules, server_number)
        with _starting:
            server = _servers.get(key)
            if server is None:
                server = _servers[key] = _Server(python, modules)
        self._stdout, self._stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self.returncode: int | None = None
        request = {
            "argv": [str(program), *arguments],
            "environ": dict(environ),
            "folder": str(folder or Path.cwd()),
            "warnings": warnings,
        }
        self.pid, self._end = server.fork(request, self._stdout.fileno(), self._stderr.fileno())

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status, as subprocess has it."""
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                status = self._end.recv(32)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
            assert status, "the fork server has ended"
            self.returncode = int(status)
            self._end.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it has printed, once it has ended; without the lines that gloo adds."""
        self.wait(timeout)
        return GLOOS_LINE.sub("", _read(self._stdout)), _read(self._stderr)

    def kill(self) -> None:
        """Kill it, if it may still run."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode()
