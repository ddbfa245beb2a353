"""Starts what ModelTrainer of SageMaker's SDK v3 has sent as the platform starts it.

Its command line is PID 1 of a PID namespace, /opt/ml is the job's own folder, and the image is an interpreter that has
never heard of the toolkit.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.train.base import Base
from tests.train.live import Live

ROOT = Path(__file__).parents[2]
BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "sdk"
PYTHON = BED / "v3/bin/python"
PROGRAMS = ROOT / "tests/programs"
DISTRIBUTION = ROOT / "distributions/sagemaker_sdk"
# $1: the folder of the job. A container has its own /opt/ml and loopback.
CONTAINER = 'ip link set lo up && mkdir -p /opt/ml && mount --bind "$1/opt/ml" /opt/ml && shift && exec "$@"'
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "sh", "-c", CONTAINER, "sh")
OURS = ("msgspec", "toolkit", "container_training_toolkit", "_container_training_toolkit", "sagemaker", "__editable__")
TORCHRUN = "#!{python}\nfrom torch.distributed.run import main\nmain()\n"


def make_image(folder: Path) -> Path:
    """Make an interpreter with the packages of this one but the toolkit and msgspec; return the folder of its commands.

    Its pip only says what it is asked.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith((*OURS, "pip")) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    (site / "pip").mkdir()
    (site / "pip/__init__.py").write_text('__version__ = "25.0"\n')
    (site / "pip/__main__.py").write_text('import sys\nprint("pip was asked to", *sys.argv[1:], flush=True)\n')
    commands = folder / "bin"
    executable(commands / "pip3", '#!/bin/sh\nexec python3 -m pip "$@"\n')
    executable(commands / "torchrun", TORCHRUN.format(python=commands / "python3"))
    return commands


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def send(folder: Path, jobs: dict[str, dict[str, Any]], distribution: Path) -> None:
    """Let the SDK send *jobs*, by their names, each into its folder below *folder*."""
    commands = folder / "commands"
    commands.mkdir(parents=True)
    executable(commands / "docker", f'#!/bin/sh\nexec {PYTHON} {PROGRAMS}/sdk_v3_docker.py "$@"\n')
    wanted = []
    for name, job in jobs.items():
        place = folder / name
        source = place / "src"
        source.mkdir(parents=True)
        for file, text in job.get("files", {}).items():
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            (source / file).write_text(text)
        wanted.append({**job, "folder": str(place)})
    environ = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "HOME": str(folder),
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONPATH": str(distribution),
    }
    done = subprocess.run(
        [PYTHON, PROGRAMS / "sdk_v3_sends.py"],
        input=json.dumps(wanted),
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Container(Base):
    """One host of a job that was sent, before it starts."""

    def __init__(self, sent: Path, image: Path, host: str = "algo-1") -> None:
        self.folder = sent / host  # Not by Base's own, which writes documents: the SDK has.
        self.root = self.folder / "opt/ml"
        self.output = self.root / "output"
        self.image = image
        container = json.loads((self.folder / "container.json").read_text())
        self.entrypoint: list[str] = container["entrypoint"]
        self.variables: dict[str, str] = container["environ"]
        (self.folder / "tmp").mkdir(exist_ok=True)

    def environ(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.image}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder / "tmp"),
            **self.variables,
            **more,
        }

    @property
    def command(self) -> list[str]:
        """The command that starts it as PID 1."""
        return [*NAMESPACES, str(self.folder), *self.entrypoint]


@contextmanager
def started(container: Container, **more: str) -> Iterator[Live]:
    """Start *container*; what of it still lives at the end of the block is killed."""
    with subprocess.Popen(
        container.command,
        env=container.environ(**more),
        cwd=container.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield Live(container, process)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def may_contain() -> bool:
    """True if this user may make such containers."""
    return shutil.which("unshare") is not None and not subprocess.run([*NAMESPACES[:6], "true"]).returncode


def first_process(job: Live) -> int:
    """Return the pid, outside, of the container's PID 1."""
    return int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0])


def run(container: Container, **more: str) -> Any:
    """Run *container* to its end; return how it ended."""
    with started(container, **more) as job:
        return job.end()


def lines(text: str, words: Sequence[str]) -> list[str]:
    """Return the lines of *text* that hold one of *words*."""
    return [line for line in text.splitlines() if any(word in line for word in words)]
