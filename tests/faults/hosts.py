"""The hosts of one job, real `train` processes on this machine: started, watched by one loop, and swept up.

Times: time.monotonic_ns(), one clock for the harness and the ranks.
"""

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.faults.launchers import ENGINES, Launcher
from tests.ports import free_ports
from tests.train.base import ROOT, Base
from toolkit.train.supervise.kernel import find_marked

MARKER = "FAULT_MATRIX"
RANK = Path(__file__).with_name("rank.py")
# After the last `train` has ended: what is still there then was left over. (A killed train's guardian needs a moment.)
LEAVES_S = 1.0
SAYS = re.compile(rb"^\[toolkit\] ")


class Host:
    """One `train`: what it prints, line by line with its time, and how it ended (as a shell shows it)."""

    def __init__(self, name: str, base: Base) -> None:
        self.name = name
        self.base = base
        self.prefix: tuple[str, ...] = ()
        self.environ: dict[str, str] = {}
        self.address = "127.0.0.1"
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: list[tuple[int, bytes]] = []
        self.code: int | None = None
        self.ended_ns: int | None = None
        self.rests: dict[str, bytes] = {"out": b"", "err": b""}

    @property
    def log(self) -> str:
        return b"\n".join(line for _, line in self.lines).decode(errors="replace")

    @property
    def failure(self) -> str:
        """The failure text: the file's, or where it could not be written, what `train` said instead. "": none."""
        with contextlib.suppress(OSError):
            return (self.base.output / "failure").read_text()
        return self.log.partition("Reporting training FAILURE")[2].partition("cannot be written")[0]

    def heard(self, words: str, since_ns: int) -> int | None:
        """Return when `train` here first said something with *words* in it after *since_ns*, None if never."""
        text = words.encode()
        return next((ns for ns, line in self.lines if ns >= since_ns and SAYS.match(line) and text in line), None)

    def take(self, name: str, piece: bytes) -> None:
        """Take a piece of a stream; at its end (b"") what was no whole line counts as one."""
        now_ns = time.monotonic_ns()
        *complete, rest = (self.rests[name] + piece).split(b"\n")
        if not piece and rest:
            complete, rest = [*complete, rest], b""
        self.rests[name] = rest
        self.lines += [(now_ns, line) for line in complete]


class Hosts:
    """A job's hosts. Leaving the block kills, by pid, what is left of them, and undoes what was done to the machine."""

    def __init__(
        self,
        folder: Path,
        count: int,
        launcher: Launcher,
        *,
        per_host: int = 1,
        environ: Mapping[str, str],
        words: Mapping[str, str],
        link_port: int | None = None,
    ) -> None:
        self.folder = folder
        self.launcher = launcher
        self.per_host = per_host
        self._engine = engine = ENGINES[launcher]
        self.meet = folder / "meet"
        self.meet.mkdir(parents=True)
        names = [f"algo-{number}" for number in range(1, count + 1)]
        self.marker = f"{MARKER}={uuid.uuid4().hex}"
        self.all = {name: Host(name, Base(folder / name)) for name in names}
        self._selector = selectors.DefaultSelector()
        self._environ = dict(environ)
        self.port, own_port, self.spare_port = free_ports(3)
        self.link_port = link_port or own_port
        self._words = {
            "meet": str(self.meet),
            "ranks": str(count * per_host),
            "together": engine.together,
            **words,
        }
        for host in self.all.values():
            self.write(host.name)
            host.base.code.mkdir(parents=True)
            shutil.copy(RANK, host.base.code / "train.py")
            host.base.output.mkdir(parents=True)

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.sweep()
        for host in self.all.values():
            if host.process is not None:
                host.process.wait()
                for stream in (host.process.stdout, host.process.stderr):
                    if stream is not None:
                        stream.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Host):
                os.close(key.fd)
        self._selector.close()

    def write(self, name: str, **more: str) -> None:
        """Write a host's hyperparameters, and *more*."""
        engine = self._engine
        self.all[name].base.hyperparameters(
            {
                **{word: json.dumps(value) for word, value in self._words.items()},
                **({engine.flag: "true"} if engine.flag else {}),
                **({"mp_parameters": json.dumps(engine.parameters)} if engine.parameters else {}),
                "sagemaker_mpi_num_of_processes_per_host": str(self.per_host),
                **more,
            }
        )

    def start(self, *names: str) -> None:
        """Start `train` on these hosts, on all without a name; again, where it has ended."""
        addresses = ",".join(f"{host.name}={host.address}" for host in self.all.values())
        python = self._engine.python
        for host in [self.all[name] for name in names] or self.all.values():
            interface = "lo" if host.address.startswith("127.") else "eth0"
            host.base.resources(list(self.all), host.name, network_interface_name=interface)
            variables = {
                "PATH": os.pathsep.join((str(python.parent), "/usr/bin", "/bin")),
                "TOOLKIT_HOST_ADDRESSES": addresses,
                "MASTER_PORT": str(self.port),
                "TOOLKIT_LINK_PORT": str(self.link_port),
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(host.base.folder),
                "PYTHONPATH": str(ROOT),
                MARKER: self.marker.partition("=")[2],
            }
            host.code = host.ended_ns = None
            host.process = subprocess.Popen(
                (*host.prefix, str(python), "-m", "toolkit.cli.main", "train"),
                env=host.base.environ(**{**variables, **self._engine.environ, **self._environ, **host.environ}),
                cwd=host.base.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for stream, tag in ((host.process.stdout, "out"), (host.process.stderr, "err")):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream, selectors.EVENT_READ, (host, tag))
            self._selector.register(os.pidfd_open(host.process.pid), selectors.EVENT_READ, host)

    def until(self, done: Callable[[], bool], deadline_s: float) -> bool:
        """Watch the hosts until *done*; False if that did not come within *deadline_s*."""
        ends_s = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() >= ends_s:
                return False
            for key, _ in self._selector.select(0.02):
                if isinstance(key.data, Host):
                    self._ended(key.data, key.fd)
                else:
                    self._read(key.fd, *key.data)
        return True

    def pause(self, seconds: float) -> None:
        """Watch the hosts for a while."""
        self.until(lambda: False, seconds)

    @property
    def all_here(self) -> bool:
        """True once every rank of the job has begun."""
        return len(list(self.meet.glob("here-*"))) == len(self.all) * self.per_host

    @property
    def fault_ns(self) -> int | None:
        """Return the time at which a rank broke, None if none has."""
        try:
            return int((self.meet / "fault").read_text())
        except OSError:
            return None

    def over(self, *but: str) -> bool:
        """True once every `train` that was started has ended and its streams are at their end (*but* these hosts)."""
        owners = [key.data if isinstance(key.data, Host) else key.data[0] for key in self._selector.get_map().values()]
        return all(host.name in but for host in owners)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to one host's `train` (not to its ranks)."""
        process = self.all[name].process
        assert process is not None
        process.send_signal(number)

    def left(self) -> set[int]:
        """Return the pids of everything of this job that is there."""
        return find_marked(self.marker.encode())

    def sweep(self) -> set[int]:
        """Kill what is left a moment after the end; return its pids."""
        ends_s = time.monotonic() + LEAVES_S
        while (left := self.left()) and time.monotonic() < ends_s:
            time.sleep(0.02)
        again = left
        while again:
            for pid in again:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for host in self.all.values():
                if host.process is not None:
                    host.process.poll()
            time.sleep(0.01)
            again = self.left()
        return left

    def _read(self, fd: int, host: Host, tag: str) -> None:
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        host.take(tag, piece)
        if not piece:
            self._selector.unregister(fd)

    def _ended(self, host: Host, fd: int) -> None:
        assert host.process is not None
        host.ended_ns = time.monotonic_ns()
        code = host.process.wait()
        host.code = code if code >= 0 else 128 - code
        self._selector.unregister(fd)
        os.close(fd)


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep as many cores busy."""
    command: Sequence[str] = (sys.executable, "-c", "while True: pass")
    processes = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
