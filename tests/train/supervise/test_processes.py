"""The processes of a phase by themselves: real ones with their pipes, without the loop that reaps them."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.errors import UserError
from toolkit.job.plan import Phase, ProcessSpec, StopPolicy
from toolkit.log import Log
from toolkit.train.supervise import children, kernel
from toolkit.train.supervise.console import Console, Outlets
from toolkit.train.supervise.guardian import Guardian
from toolkit.train.supervise.limits import raise_open_files
from toolkit.train.supervise.link import HostLineMonitors
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.supervisor import Supervisor

WITHIN_S = 60.0
# The shell says that it has started another process, and both stay.
TWO = ("/bin/sh", "-c", "sleep 1000 & echo started; wait")


class Starter(Supervisor):
    """A supervisor with what starting processes needs, and without signals."""

    guardian: Guardian | None = None
    line_monitors: HostLineMonitors | None = None

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.end, self.out = os.pipe()
        os.set_blocking(self.end, False)
        self.console = Console(
            host="algo-1",
            prefix_ranks=False,
            make_monitor=lambda rank, host: None,
            files=None,
            file_bytes=1 << 20,
            note=self.said.append,
            outlets=Outlets(self.out, self.out),
        )
        self.poll_loop = PollLoop(self.console)
        self.log = Log()
        self.log.say_through(lambda line: self.said.append(line.decode()))
        self.run_folder = folder
        self.python = sys.executable
        self.prctl = kernel.prctl()
        self.open_files = raise_open_files()
        self._phases: list[Processes] = []

    def phase(self, main: ProcessSpec) -> Processes:
        self._phases.append(Processes(self, Phase(name="train", main=main), self.poll_loop, self.said.append))
        return self._phases[-1]

    def shown(self) -> bytes:
        try:
            return os.read(self.end, 1 << 16)
        except BlockingIOError:
            return b""

    def until_shown(self, text: bytes) -> bytes:
        """Relay output until *text* has come; return all that came."""
        output, ends_s = b"", time.monotonic() + WITHIN_S
        while text not in output and time.monotonic() < ends_s:
            self.poll_loop.step(0.05)
            output += self.shown()
        assert text in output
        return output

    def close(self) -> None:
        for pid in {pid for phase in self._phases for pid in phase.living}:
            children.send_all({pid, *kernel.descendants(pid)}, 9)
            os.waitpid(pid, 0)
        self.poll_loop.end()
        os.close(self.end)
        os.close(self.out)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.close()


def spec(name: str, *argv: str, optional: bool = False) -> ProcessSpec:
    environ = {"PATH": os.environ["PATH"]}
    return ProcessSpec(name=name, argv=argv, environ=environ, cwd=Path("/"), stop=StopPolicy(), optional=optional)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def gone(pids: set[int]) -> bool:
    """True once each of *pids* has ended; its parent may not have reaped it yet."""
    ends_s = time.monotonic() + WITHIN_S
    while any(b"Z" not in kernel.stat_fields(pid)[:1] for pid in pids if Path(f"/proc/{pid}").exists()):
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.01)
    return True


def test_a_program_that_cannot_be_started_is_the_users_error_and_leaves_no_descriptor_open(
    home: Starter,
) -> None:
    phase = home.phase(spec("script", "/no/such/program"))
    descriptors = open_descriptors()

    with pytest.raises(UserError, match="/no/such/program"):
        phase.start_main()

    assert open_descriptors() == descriptors
    assert not phase.living and not phase.streams


def test_an_optional_service_that_cannot_be_started_is_a_warning_and_a_needed_one_an_error(
    home: Starter,
) -> None:
    phase = home.phase(spec("script", *TWO))

    phase.start_service(spec("monitor", "/no/such/monitor", optional=True))
    with pytest.raises(UserError, match="/no/such/server"):
        phase.start_service(spec("server", "/no/such/server"))

    assert len(home.said) == 1 and "monitor: " in home.said[0] and "/no/such/monitor" in home.said[0]
    assert not phase.living


def test_a_service_is_none_of_the_processes_that_the_phase_waits_for(home: Starter) -> None:
    phase = home.phase(spec("script", *TWO))
    phase.start_service(spec("server", *TWO))
    phase.start_main()

    assert [process.name for process in phase.services] == ["server"]
    assert [process.name for process in phase.at_work] == ["script"]
    assert [process.name for process in phase.main] == ["script"]
    assert phase.ranks == []


def test_killing_the_launcher_kills_what_it_started_and_no_service(home: Starter) -> None:
    phase = home.phase(spec("mpirun", *TWO))
    phase.start_service(spec("server", "/bin/sh", "-c", "exec sleep 1000"))
    phase.start_main()
    home.until_shown(b"started\n")
    (main,), (server,) = phase.main, phase.services
    below = kernel.descendants(main.pid)

    killed = phase.kill_main(is_relayed=True)

    assert killed >= {main.pid, *below} and below and server.pid not in killed
    assert gone({main.pid, *below})
    assert b"Z" not in kernel.stat_fields(server.pid)[:1]


@pytest.mark.parametrize("is_heard", [True, False])
def test_what_a_killed_launcher_had_to_say_is_shown_only_if_it_is_to_be_heard(home: Starter, is_heard: bool) -> None:
    speaks = (
        "echo started; while [ ! -e said ]; do sleep 0.02; done; echo rank 1 was killed; touch done; exec sleep 1000"
    )
    main = spec("mpirun", "/bin/sh", "-c", f"cd {home.run_folder} && {speaks}")
    phase = home.phase(main)
    phase.start_main()
    home.until_shown(b"started\n")
    (home.run_folder / "said").touch()
    ends_s = time.monotonic() + WITHIN_S
    while not (home.run_folder / "done").exists() and time.monotonic() < ends_s:
        time.sleep(0.01)

    killed = phase.kill_main(is_relayed=is_heard)
    assert gone(killed)
    home.poll_loop.drain()

    assert home.shown() == (b"rank 1 was killed\n" if is_heard else b"")
