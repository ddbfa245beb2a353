"""A Slurm cluster on one machine, of one's own: munged, slurmctld and several slurmd, all children of the tests.

Nodes algo-1, algo-2, ... share the machine; they differ by the port of their slurmd. Needs root (slurmd becomes the
job's user) and what scripts/beds/slurm installs.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ports import free_ports

BIN = Path(sys.executable).parent
SBIN = "/usr/sbin:/sbin"
# Slurm's programs print nothing that is asked for on stderr but warnings: kept apart from stdout.
DEADLINE_S = 60.0
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=200000
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=60
KillWait=20
PropagateResourceLimits=NONE
"""


class Cluster:
    """The cluster; `nodes` its nodes' names. To be used in a with statement: it ends all that it started."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = [f"algo-{number}" for number in range(1, nodes + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        for name in ("munge", "state", "log", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        ports = free_ports(1 + len(self.nodes))
        host_name = socket.gethostname().partition(".")[0]
        lines = [CONFIGURATION.format(name=host_name, folder=self.folder, port=ports[0])]
        for node, port in zip(self.nodes, ports[1:], strict=True):
            address = f"NodeHostname={host_name} NodeAddr=127.0.0.1 Port={port}"
            lines.append(f"NodeName={node} {address} CPUs=2 RealMemory=1000 State=UNKNOWN\n")
        lines.append(f"PartitionName=all Nodes=algo-[1-{len(self.nodes)}] Default=YES MaxTime=60 State=UP\n")
        self._configuration.write_text("".join(lines))
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes:
            self.run("scancel", "--signal=KILL", "--full", "--user=root", check=False)
            self.run("scancel", "--user=root", check=False)
            try:
                self.wait_for("squeue", "-h", answer="", deadline_s=20)
            except TimeoutError:
                pass  # slurmd, ending, kills what is left of its steps.
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for pid in self._strays():
            os.kill(pid, signal.SIGKILL)

    def run(
        self,
        *command: str,
        environ: Mapping[str, str] | None = None,
        check: bool = True,
        deadline_s: float = DEADLINE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs to its end, in the cluster's folder."""
        done = subprocess.run(
            command,
            env={**self.environ, **(environ or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def submit(self, script: str, *options: str, environ: Mapping[str, str] | None = None) -> str:
        """Submit the batch script of that text; return the job's id."""
        file = self.folder / f"{time.time_ns()}.sbatch"
        file.write_text(script)
        return self.run("sbatch", "--parsable", *options, str(file), environ=environ).stdout.strip()

    def state(self, job: str) -> str:
        """Return a job's state, as COMPLETED."""
        fields = self.run("scontrol", "--oneliner", "show", "job", job).stdout.split()
        return next(field.partition("=")[2] for field in fields if field.startswith("JobState="))

    def wait_for_state(self, job: str, *states: str, deadline_s: float = DEADLINE_S) -> str:
        """Return the state of *states* that a job is in at last."""
        end = time.monotonic() + deadline_s
        while (state := self.state(job)) not in states:
            if time.monotonic() > end:
                raise TimeoutError(f"job {job} is {state}, not {' or '.join(states)}, after {deadline_s:g} s")
            time.sleep(0.1)
        return state

    def wait_for(self, *command: str, answer: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until *command* says *answer*."""
        end = time.monotonic() + deadline_s
        while (output := self.run(*command, check=False).stdout.strip()) != answer:
            if time.monotonic() > end:
                raise TimeoutError(f"{' '.join(command)}: {output!r}, not {answer!r}, after {deadline_s:g} s")
            time.sleep(0.1)

    @property
    def environ(self) -> dict[str, str]:
        """The environment that Slurm's programs are started with: little, so that nothing of the tester's leaks in."""
        path = os.pathsep.join([str(BIN), "/usr/bin", "/bin", SBIN])
        return {"PATH": path, "HOME": str(self.folder), "LANG": "C.UTF-8", "SLURM_CONF": str(self._configuration)}

    @property
    def _configuration(self) -> Path:
        return self.folder / "slurm.conf"

    def _start_all(self) -> None:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        files = [f"--{option}={munge / name}" for option, name in MUNGE_FILES.items()]
        self._start("munged", "--foreground", "--force", *files)
        self._wait_for_file(munge / "socket")
        configuration = str(self._configuration)
        self._start("slurmctld", "-D", "-f", configuration)
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node, "-f", configuration)
        self.wait_for("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", answer="\n".join(self.nodes))

    def _start(self, *command: str) -> None:
        with (self.folder / "log" / f"{len(self._processes)}-{command[0]}.out").open("wb") as log:
            process = subprocess.Popen(
                command, env=self.environ, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._processes.append(process)

    def _wait_for_file(self, file: Path) -> None:
        end = time.monotonic() + DEADLINE_S
        while not file.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{file} is not there after {DEADLINE_S:g} s")
            time.sleep(0.02)

    def _strays(self) -> list[int]:
        """Return what of the cluster still lives: processes that know its configuration."""
        marker = f"SLURM_CONF={self._configuration}".encode()
        return [pid for pid in _pids() if marker in _environ(pid).split(b"\0")]


MUNGE_FILES = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def why_not() -> str:
    """Return why there can be no cluster here, "" if there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    programs: Sequence[str] = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
    missing = [name for name in programs if not any((Path(part) / name).exists() for part in path.split(":"))]
    return f"no {', '.join(missing)} here: run scripts/beds/slurm" if missing else ""


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
