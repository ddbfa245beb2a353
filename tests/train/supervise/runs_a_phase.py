"""Runs one phase under a real supervisor: `python -m tests.train.supervise.runs_a_phase FOLDER`.

FOLDER/phase.json says what (Wanted); ended.json or error.txt is the result. The script's lines come on stdout.
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from toolkit.job.events import DaemonEnded, Heard, Launch, PeerFailed, Stop
from toolkit.job.outcome import Exit, PhaseEnd, RuleMatch
from toolkit.job.plan import Phase, ProcessSpec, StopPolicy
from toolkit.log import Log
from toolkit.train.supervise.console import Console
from toolkit.train.supervise.phases import run_phase
from toolkit.train.supervise.signals import Signals
from toolkit.train.supervise.supervisor import Supervisor


class Wanted(msgspec.Struct):
    """The shell texts of a script and its services. *rule*: what the log rules do once the file FOLDER/found exists.
    *peer_fails*: once the script has made FOLDER/began, the link lets it end (FOLDER/go), and reports another host's
    failure when the script has ended and nobody has reaped it. The supervisor's work for later makes FOLDER/running."""

    script: str
    services: list[str] = []
    rule: str = ""
    peer_fails: bool = False
    grace_s: float = 60.0


class FileMonitors:
    """Line monitors whose rule matches once a file exists."""

    def __init__(self, path: Path, kind: str) -> None:
        self._found = path
        self._kind = kind
        self.ruled: RuleMatch | None = None
        self.stop_rule = ""

    def note_rank(self, rank: int, local_rank: int | None, pid: int) -> None:
        pass

    def due_in_s(self) -> float:
        return 0.0

    def tick(self) -> None:
        time.sleep(0.01)
        if not self._found.exists():
            return
        if self._kind == "fails":
            raise RuntimeError("a fault of the rules")
        if self._kind == "ends":
            self.ruled = RuleMatch(exit_code=94, at_ns=time.monotonic_ns(), text="found it")
        else:
            self.stop_rule = "LossNotDecreasing"


class FailingPeer:
    """A link over which another host's failure comes when the script has ended, but was not reaped."""

    def __init__(self, folder: Path) -> None:
        self.fd, write_end = os.pipe()
        os.write(write_end, b"!")
        self._folder = folder
        self._tells = True

    def serve(self) -> list[Heard]:
        if not self._tells or not (self._folder / "began").exists():
            return []
        self._tells = False
        os.read(self.fd, 1)
        (self._folder / "go").touch()
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        return [PeerFailed(text="rank 1 of host algo-2 failed")]

    def tell_own_failure(self, so_far: PhaseEnd) -> None:
        (self._folder / "answer.json").write_bytes(msgspec.json.encode(so_far))

    def due_in_s(self) -> float:
        return 1.0

    def tell_ready(self) -> None: ...
    def tell_needs(self, missing: tuple[str, ...]) -> None: ...
    def tell_stop(self, stop: Stop) -> None: ...
    def tell_idle(self, seconds: float) -> None: ...
    def tell_step(self, step: int) -> None: ...
    def tell_ranks_ended(self) -> None: ...
    def tell_unfinalized_rank(self, exit: Exit, living_ranks: int) -> None: ...
    def tell_rank_done(self, process: str) -> None: ...
    def tell_failure(self, so_far: PhaseEnd) -> None: ...
    def tell_leader_done(self) -> None: ...
    def tell_daemon_ended(self, code: int) -> None: ...

    def forward_launch(self, launch: Launch) -> bool:
        return False

    def read_command(self) -> str | None:
        return None

    def take_daemon_ends(self) -> list[DaemonEnded]:
        return []


def main(folder: Path) -> None:
    request = msgspec.json.decode((folder / "phase.json").read_bytes(), type=Wanted)
    signal.alarm(120)  # Whatever a test breaks, this program ends.

    def spec(name: str, text: str, rank: int | None = None) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=("/bin/sh", "-c", text) if text else ("/no/such/program",),
            environ={"PATH": os.environ["PATH"], "TEST_RUN": str(os.getpid())},
            cwd=folder,
            stop=StopPolicy(grace_s=request.grace_s),
            rank=rank,
        )

    log = Log()
    with Signals(last=True) as signals:
        console = Console(
            host="algo-1", prefix_ranks=False, make_monitor=lambda *_: None, files=None, file_bytes=1, note=print
        )
        supervisor = Supervisor(
            signals=signals,
            console=console,
            log=log,
            run_folder=folder,
            marker=f"TEST_RUN={os.getpid()}",
            python=sys.executable,
            alone=not request.peer_fails,
            link=FailingPeer(folder) if request.peer_fails else None,
            line_monitors=FileMonitors(folder / "found", request.rule) if request.rule else None,
            once_running=(folder / "running").touch,
        )
        (folder / "guardian.pid").write_text(str(supervisor.guardian.pid if supervisor.guardian else 0))
        log.say_through(console.stderr.say, supervisor.finish)
        services = tuple(spec(f"service {index}", text) for index, text in enumerate(request.services))
        phase = Phase(name="train", main=spec("script", request.script, rank=0), services=services)
        phase = msgspec.structs.replace(phase, together=bool(request.rule))
        try:
            (folder / "ended.json").write_bytes(msgspec.json.encode(run_phase(supervisor, phase)))
        except Exception as error:
            (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
        finally:
            log.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
