"""One job of the comparison: run by sagemaker-training 5.1.4 or by this toolkit, and what was seen of it."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.train.base import TRAIN, Base

ROOT = Path(__file__).parents[2]
VERSION = "5.1.4"
THEIRS = ROOT / ".cache" / f"sagemaker-training-{VERSION}"
# The same import name over this toolkit, for jobs whose programs import it.
DISTRIBUTION = ROOT / "distributions/sagemaker_training/container_training_toolkit_sagemaker_training"
# AWS's PyTorch plug-in 3.0.0, which runs on it: for cases of its launchers and of captured output.
PLUGIN = ROOT / ".cache/sagemaker-pytorch-training-3.0.0"
PYTORCH = "sagemaker_pytorch_container.training:main"
SAYS_ARGV = "import json, os, sys\nprint(json.dumps(sys.argv[1:]))\nopen(os.environ['ARGV_FILE'], 'w').write(\n"
SAYS_ARGV += "    json.dumps({'argv': sys.argv[1:], 'environ': dict(os.environ)}))\n"
# The leader of two hosts listens for a moment, as torchrun does.
SAYS_ARGV += "words = sys.argv\nif '--node_rank' in words and words[words.index('--node_rank') + 1] == '0':\n"
SAYS_ARGV += (
    "    import socket, time\n    with socket.create_server(('', int(words[words.index('--master_port') + 1]))):\n"
)
SAYS_ARGV += "        time.sleep(3)\n"
MPI4PY = "import runpy, sys\nsys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
# Runs a job as PID 1 of a container, with a network and an sshd that are its own: nothing of it outlives it.
CAGED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--net", "sh", "-c")
CAGE = 'ip link set lo up; mount --bind "$CAGE_SSHD" /usr/sbin/sshd 2>/dev/null; exec "$@"'
# Ports of its own, for a job that sees which one it is given: any other job of this machine may hold 7777.
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


@functools.cache
def own_network() -> tuple[str, ...]:
    """Return the command that gives a job ports of its own; nothing where this machine does not allow it."""
    allowed = subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode == 0
    return OWN_NETWORK if allowed else ()


@dataclass(frozen=True)
class Side:
    """The side that runs the jobs: this toolkit, or sagemaker-training from a virtual environment of its own."""

    is_ours: bool

    @property
    def command(self) -> tuple[str, ...]:
        return TRAIN if self.is_ours else (str(THEIRS / "bin/train"),)

    @property
    def python(self) -> str:
        return sys.executable if self.is_ours else str(THEIRS / "bin/python")


@dataclass
class Seen:
    """The traces that a job left: `status` as a shell shows it (128 + signal), streams, files, time."""

    status: int
    stdout: str
    log: str
    wall_s: float
    failure: str
    success: bool
    script: dict[str, Any]
    launched: dict[str, Any]
    files: list[str]
    hosts: list["Seen"] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        environ: dict[str, str] = self.script.get("environ", {})
        return environ

    @property
    def argv(self) -> list[str]:
        argv: list[str] = self.script.get("argv", [])
        return argv


@dataclass
class Job:
    """A job: what its base folder holds, its variables, and how it is started."""

    name: str
    prepare: Callable[[Base], None]
    environ: dict[str, str]
    framework: bool = False  # In an image with AWS's PyTorch plug-in.
    caged: bool = False  # As PID 1.
    own_network: bool = False  # Nobody else holds its ports, where this machine allows that.
    shell: bool = False  # As a child of bash.
    words: tuple[str, ...] = ()
    deadline_s: float = 40.0
    signals: tuple[tuple[float, int], ...] = ()  # (seconds after the script is ready, signal)
    both: bool = False  # Two hosts at once, each with a base folder of its own.
    again: bool = False  # A second time in the same container.
    stdin: str = ""
    imports: bool = False  # Our side has the distribution of the name sagemaker_training, as the other has its own.
    module: bool = False  # Started as `python -m sagemaker_training.cli.train`.

    def run(self, side: Side) -> Seen:
        """Run it in a new folder; texts are told apart from where it ran: BASE and PYTHON stand for its paths."""
        with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as name:
            if not self.both:
                return self._one(Path(name).resolve(), side)
            folders = [Path(name).resolve() / host for host in ("one", "two")]
            started = [self._start(folder, side, place) for place, folder in enumerate(folders)]
            results = [self._end(folder, side, *begun) for folder, begun in zip(folders, started, strict=True)]
            results[0].hosts = results
            return results[0]

    def _one(self, folder: Path, side: Side) -> Seen:
        result = self._end(folder, side, *self._start(folder, side, 0))
        if self.again:
            base = Base.__new__(Base)
            base.__dict__.update(folder=folder, root=folder / "opt/ml", code=folder / "opt/ml/code")
            base.program("print('second')\n")
            result = self._end(folder, side, *self._begin(folder, side))
        return result

    def _start(self, folder: Path, side: Side, place: int) -> tuple[subprocess.Popen[bytes], float]:
        base = Base(folder)
        hosts = ("127.0.0.1", "127.0.0.2") if self.both else ("localhost",)
        base.resources(hosts, current=hosts[place], network_interface_name="lo")
        base.hyperparameters({"sagemaker_submit_directory": str(base.code)})
        self._stubs(base, side)
        (base.output / "data").mkdir(parents=True)  # The platform makes it; 5.1.4 does not.
        self.prepare(base)
        return self._begin(folder, side)

    @staticmethod
    def _stubs(base: Base, side: Side) -> None:
        packages = base.folder / "packages"
        for name in ("torch", "torch/distributed", "pip", "mpi4py"):
            (packages / name).mkdir(parents=True)
            (packages / name / "__init__.py").write_text('__version__ = "2.13.0"\n')
        (packages / "torch/distributed/run.py").write_text(SAYS_ARGV)
        (packages / "mpi4py/__main__.py").write_text(MPI4PY)
        base.executable("torchrun", f'#!/bin/sh\nexec {side.python} -m torch.distributed.run "$@"\n')
        base.executable("sshd", "#!/bin/sh\nexec sleep 600\n")

    def _begin(self, folder: Path, side: Side) -> tuple[subprocess.Popen[bytes], float]:
        packages = [str(folder / "packages")] + ([] if side.is_ours else [str(PLUGIN)])
        packages += [str(DISTRIBUTION)] if side.is_ours and self.imports else []
        environ = {
            "PATH": os.pathsep.join([str(folder / "bin"), str(Path(side.python).parent), "/usr/bin", "/bin"]),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "SAGEMAKER_BASE_DIR": str(folder / "opt/ml"),
            "TRAINING_JOB_NAME": "job-1",
            "AWS_REGION": "eu-central-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYTHONPATH": os.pathsep.join(packages),
            "ARGV_FILE": str(folder / "argv.json"),
            "READY_FILE": str(folder / "ready"),
            "CAGE_SSHD": str(folder / "bin/sshd"),
            **({"SAGEMAKER_TRAINING_MODULE": PYTORCH} if self.framework else {}),
            **{name: value.replace("BASE", str(folder / "opt/ml")) for name, value in self.environ.items()},
        }
        command = [*([side.python, "-m", "sagemaker_training.cli.train"] if self.module else side.command), *self.words]
        if self.shell:
            command = ["bash", "-c", '"$@"; exit $?', "bash", *command]
        if self.own_network:
            command = [*own_network(), *command]
        if self.caged:
            command = [*CAGED, CAGE, "sh", *command]
        begun = time.monotonic()
        with (folder / "stdout").open("ab") as out, (folder / "stderr").open("ab") as err:
            process = subprocess.Popen(
                command,
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return process, begun

    def _end(self, folder: Path, side: Side, process: subprocess.Popen[bytes], begun: float) -> Seen:
        if self.signals:
            while not (folder / "ready").exists() and process.poll() is None and time.monotonic() < begun + 30:
                time.sleep(0.01)
            for after_s, number in self.signals:
                time.sleep(after_s)
                _signal(process.pid, number, caged=self.caged)
        try:
            status = process.wait(max(0.1, begun + self.deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = 999  # Still running: the table says so.
        wall_s = time.monotonic() - begun
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        return _look(folder, side, status if status >= 0 else 128 - status, wall_s)


def _signal(pid: int, number: int, *, caged: bool) -> None:
    """Signal `train`: in a cage it is the only child of unshare."""
    if caged:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(children[0]) if children else pid
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _look(folder: Path, side: Side, status: int, wall_s: float) -> Seen:
    def text(name: str) -> str:
        path = folder / name
        return normalise(path.read_bytes().decode("utf-8", "surrogateescape")) if path.is_file() else ""

    def normalise(text: str) -> str:
        text = text.replace(str(folder / "opt/ml"), "BASE").replace(str(folder), "FOLDER")
        beside_links = str(Path(side.python).parent.resolve() / Path(side.python).name)
        for python in (side.python, beside_links, os.path.realpath(side.python)):
            text = text.replace(python, "PYTHON")
        text = re.sub(r"\bPYTHON3(\.\d+)?\b", "PYTHON", text)  # Whichever of its names pip wrote into its scripts.
        return re.sub(r"(?<![\w./-])[\w./-]*gethostname[\w./-]*\.so", "GETHOSTNAME", text)

    root = folder / "opt/ml"
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*")) if root.is_dir() else []
    success = root / "output/success"
    return Seen(
        status,
        text("stdout"),
        text("stdout") + text("stderr"),
        wall_s,
        text("opt/ml/output/failure"),
        success.is_file() and success.stat().st_size == 0,
        json.loads(text("opt/ml/output/data/seen.json") or "{}"),
        json.loads(text("argv.json") or "{}"),
        files,
    )
