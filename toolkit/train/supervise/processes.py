"""The processes of one phase: starts each with its streams, and knows which of them live."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from toolkit.errors import UserError
from toolkit.exit_codes import CANNOT_START
from toolkit.job.plan import AGENT_WRAPPER, RANK_WRAPPER, Phase, ProcessSpec
from toolkit.train.supervise import children
from toolkit.train.supervise.kernel import descendants, descendants_of, own_children, read_processes
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.process import PhaseProcess
from toolkit.train.supervise.relay import RankFile, Stream
from toolkit.train.supervise.shim_server import RankRequest, ShimConnection, ShimServer, write_agent, write_wrapper
from toolkit.train.supervise.supervisor import Supervisor

RANK_SHIM = Path(__file__).parents[2] / "rank" / "hook" / "rank_shim.py"
AGENT = Path(__file__).parents[2] / "rank" / "hook" / "mpi_agent.py"
KILL_AGAIN_S = 0.005


class Processes:
    """Starts them and keeps track of them. *note* takes notes for the outcome. `command`: the command line that the
    outcome shows."""

    def __init__(self, supervisor: Supervisor, phase: Phase, poll_loop: PollLoop, note: Callable[[str], None]) -> None:
        self.living: dict[int, PhaseProcess] = {}
        self.streams: dict[str, tuple[Stream, Stream]] = {}
        self.had_ranks = False
        self.spec = phase.main
        self.command = phase.main.argv
        self._supervisor = supervisor
        self._shared = not all(service.optional for service in phase.services)
        self._poll_loop = poll_loop
        self._note = note
        self._files: list[RankFile] = []

    # --- starting

    def open_shim_server(self) -> ShimServer | None:
        """Return the server to which rank shims and mpirun's agents connect. None if the phase has neither, or if the
        server cannot be opened: ranks then remain children of the launcher."""
        if not self.spec.has_rank_shim and not self.spec.mpi_role:
            return None
        folder = self._supervisor.run_folder
        try:
            server = ShimServer(folder)
        except OSError as error:
            self._leave_ranks(f"{folder}: {error.strerror}")
            return None
        wrapper, python = folder / RANK_WRAPPER, self.spec.rank_python
        if python and (
            problem := write_wrapper(
                wrapper, script_python=python, python=self._supervisor.python, shim=RANK_SHIM, server=server.path
            )
        ):
            server.close()
            self._leave_ranks(problem)
            return None
        agent = folder / AGENT_WRAPPER
        if self.spec.mpi_role == "agent" and (
            problem := write_agent(agent, python=self._supervisor.python, agent=AGENT)
        ):
            self._note(f"{problem}: no daemon can be started on other hosts")
        return server

    def start_main(self) -> None:
        """Start the phase's own process.

        Raises:
            UserError: it cannot be started.
        """
        spec = self.spec
        environ = {**spec.environ, **spec.launcher_environ}
        process = PhaseProcess(spec.name, is_main=True, rank=spec.rank, local_rank=None)
        shared = self._shared or (bool(spec.starts_ranks) and spec.has_rank_shim)
        self._start(process, spec.argv, environ, spec.cwd, shared=shared)

    def start_service(self, spec: ProcessSpec) -> None:
        """Start a process that runs beside the main process.

        Raises:
            UserError: it cannot be started, and is not optional.
        """
        process = PhaseProcess(spec.name, is_main=False, rank=None, local_rank=None, is_service=True)
        process.is_optional, process.gives = spec.optional, spec.gives
        if spec.optional:
            process.note_kill()  # Its end never counts as a failure, even if another process kills it.
        try:
            self._start(process, spec.argv, spec.environ, spec.cwd, shared=True)
        except UserError as error:
            if not spec.optional:
                raise
            self._supervisor.log.warning(f"{spec.name}: {error}")

    def start_rank(self, shim: ShimConnection, request: RankRequest) -> None:
        """Start the rank that *shim* requested; a rank that cannot be started ends with 127, as in a shell."""
        rank, local_rank = (request.number(name.encode()) for name in self.spec.rank_variables)
        process = PhaseProcess(f"rank {rank}", is_main=False, rank=rank, local_rank=local_rank)
        process.shim = shim
        try:
            self._start(
                process,
                request.argv,
                _rank_environ(self.spec, request),
                request.cwd,
                shared=len(self.spec.starts_ranks) > 1 or self._supervisor.console.prefixes,
                before_exec=lambda: _set_affinity_and_descriptor(request),
            )
        except UserError as error:
            self._supervisor.log.error(str(error))
            shim.answer(code=CANNOT_START, number=None)
            return
        shim.pid = process.pid
        self.had_ranks = True
        if self.spec.mpi_role == "daemon":  # The daemon's own command is MPI's; show that of a rank.
            self.command = request.argv

    def add(self, process: PhaseProcess, pid: int) -> None:
        """Add a process that was started elsewhere, without streams of its own, and runs as *pid*."""
        process.note_start(pid)
        self.living[pid] = process
        if self._supervisor.guardian is not None:
            self._supervisor.guardian.note_process(pid)

    def _start(
        self,
        process: PhaseProcess,
        argv: tuple[str, ...],
        environ: dict[str, str] | dict[bytes, bytes],
        cwd: Path | str,
        *,
        shared: bool,
        before_exec: Callable[[], None] = lambda: None,
    ) -> None:
        pipes = _two_pipes()
        out, out_write, err, err_write = pipes
        supervisor = self._supervisor
        try:
            pid = children.spawn(
                argv,
                environ,
                cwd,
                stdout=out_write,
                stderr=err_write,
                prctl=supervisor.prctl,
                before_exec=before_exec,
                open_files=supervisor.open_files,
            )
        except BaseException:
            for fd in pipes:
                os.close(fd)
            raise
        os.close(out_write)
        os.close(err_write)
        tags = self.spec.tags if process.is_main else None
        mask = supervisor.log.mask if process.is_main and self.spec.masked else None
        streams, files = supervisor.console.streams(
            process.name,
            process.rank,
            stdout=out,
            stderr=err,
            shared=shared,
            local_rank=process.local_rank,
            tags=tags,
            mask=mask,
        )
        for stream in streams:
            self._poll_loop.add(stream)
        self.streams[process.name] = streams
        self._files += files
        self.add(process, pid)
        if supervisor.line_monitors is not None and process.rank is not None:
            supervisor.line_monitors.note_rank(process.rank, process.local_rank, pid)

    def _leave_ranks(self, reason: str) -> None:
        self._note(f"{reason}: ranks are left to {self.spec.name}")
        shim_variables = ("PYTHON_EXEC", "TOOLKIT_PYTHON_EXEC")
        environ = {name: value for name, value in self.spec.environ.items() if name not in shim_variables}
        if "TOOLKIT_PYTHON_EXEC" in self.spec.environ:
            environ["PYTHON_EXEC"] = self.spec.environ["TOOLKIT_PYTHON_EXEC"]
        self.spec = msgspec.structs.replace(self.spec, has_rank_shim=False, environ=environ)

    # --- which processes live

    @property
    def main(self) -> list[PhaseProcess]:
        """The main process, while it lives."""
        return [process for process in self.living.values() if process.is_main]

    @property
    def services(self) -> list[PhaseProcess]:
        return [process for process in self.living.values() if process.is_service]

    @property
    def at_work(self) -> list[PhaseProcess]:
        """The living processes whose end the phase waits for: all but services."""
        return [process for process in self.living.values() if not process.is_service]

    @property
    def ranks(self) -> list[PhaseProcess]:
        return [process for process in self.living.values() if process.rank is not None]

    @property
    def rank_pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in self.ranks}

    def written_bytes(self) -> dict[int, int]:
        """Return how many bytes each living rank has written so far, by pid."""
        return {p.pid: sum(stream.read_bytes for stream in self.streams[p.name]) for p in self.ranks}

    def descendants(self) -> set[int]:
        """Return every process below `train`, whoever started it, except its guardian, what it keeps apart, and what
        these started."""
        processes = read_processes()
        return descendants_of({os.getpid()}, processes) - self._apart - descendants_of(self._apart, processes)

    def any_left(self) -> bool:
        """True if any descendant, except the guardian and what is kept apart, is alive or not yet reaped."""
        return bool(own_children() - self._apart)

    @property
    def _apart(self) -> set[int]:
        guardian = self._supervisor.guardian
        return self._supervisor.apart | ({guardian.pid} if guardian is not None else set())

    # --- signals

    def signal(self, processes: Iterable[PhaseProcess], number: int, *, noted: bool = True) -> None:
        """Send *number*. *noted*: record it, so that an end after it does not count as a failure."""
        for process in processes:
            if noted:
                process.note_signal()
            children.send(process.pid, number)

    def kill_all(self) -> None:
        """Send SIGKILL to every descendant."""
        for process in self.living.values():
            process.note_kill()
        self.kill_left()

    def kill_left(self) -> None:
        """Send SIGKILL to every descendant, and to the children that appear within KILL_AGAIN_S: a process that forks
        and exits faster than /proc is scanned becomes a child of `train`, which finds it so."""
        children.send_all(self.descendants(), signal.SIGKILL)
        ends_s = time.monotonic() + KILL_AGAIN_S
        while (left := own_children() - self._apart) and time.monotonic() < ends_s:
            children.send_all(left, signal.SIGKILL)

    def kill_main(self, *, is_relayed: bool) -> set[int]:
        """Send SIGKILL to the main process, if it lives, and to what it started; return their pids. Not
        *is_relayed*: drop what they print about ranks that are killed meanwhile."""
        killed: set[int] = set()
        for process in self.main:
            process.note_kill()
            killed |= {process.pid, *descendants(process.pid)}
            for stream in () if is_relayed else self.streams[process.name]:
                self._poll_loop.forget(stream)
        children.send_all(killed, signal.SIGKILL)
        return killed

    def kill_optional(self) -> None:
        """Send SIGKILL to the optional services that live, and to what they started."""
        for process in self.services:
            if process.is_optional:
                children.send_all({process.pid, *descendants(process.pid)}, signal.SIGKILL)

    def close_files(self) -> None:
        """Close the ranks' own files."""
        for file in self._files:
            file.close()


def _two_pipes() -> tuple[int, int, int, int]:
    first = os.pipe()
    try:
        return *first, *os.pipe()
    except OSError:
        for fd in first:
            os.close(fd)
        raise


def _rank_environ(spec: ProcessSpec, request: RankRequest) -> dict[bytes, bytes]:
    """Return a rank's environment: the one that the launcher gave the rank shim, with this host's own variables."""
    environ = dict(request.environ)
    for variable in (*spec.own_variables, *(spec.environ if spec.own_environ else ())):
        environ.pop(variable.encode(), None)
        if variable in spec.environ:
            environ[variable.encode()] = os.fsencode(spec.environ[variable])
    for alias, original in spec.rank_aliases.items():
        if original.encode() in environ:  # One value for all ranks, as an mpirun around `train` leaves it, is wrong.
            environ[alias.encode()] = environ[original.encode()]
    for name in (b"PYTHON_EXEC", b"TOOLKIT_SHIM_SOCKET"):
        environ.pop(name, None)
    if request.passed is not None:
        environ[b"PMI_FD"] = str(request.passed).encode()
    if b"TOOLKIT_PYTHON_EXEC" in environ:
        environ[b"PYTHON_EXEC"] = environ.pop(b"TOOLKIT_PYTHON_EXEC")
    return environ


def _set_affinity_and_descriptor(request: RankRequest) -> None:
    """Set, between fork and exec of a rank, the processors and the descriptor that its launcher gave the rank shim."""
    if request.affinity:
        os.sched_setaffinity(0, request.affinity)
    if request.passed is not None:
        os.set_inheritable(request.passed, True)
