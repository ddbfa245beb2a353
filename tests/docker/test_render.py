"""`toolkit render compose`, its project run by `docker compose` as docs/orchestrators/plain.md says."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import ROOT, Container, Engine, document

pytestmark = pytest.mark.docker

HOSTS = ("algo-1", "algo-2")
# Dollars: Compose would put variables in their places.
JOB = """
script = "code/train.py"
name = "{name}"
hosts = 2
{more}

[hyperparameter]
note = "costs $5, or ${{five}}"

[channel]
train = "data"

[metric]
loss = "loss=([0-9.]+)$"
"""
SUMS = """
import os, socket, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
sample = open(os.environ["SM_CHANNEL_TRAIN"] + "/a").read()
note = sys.argv[sys.argv.index("--note") + 1]
told = f"{socket.gethostname()} {total.item():g} {sample} {note}"
open(os.environ["SM_MODEL_DIR"] + "/told", "w").write(told)
open("/opt/ml/checkpoints/" + socket.gethostname(), "w").write("kept")
print("loss=0.25", flush=True)
dist.destroy_process_group()
"""
FAILS = """
import os, time
print("computing", flush=True)
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    raise ValueError("a label is out of range")
time.sleep(600)
"""
SAVES = """
import os, signal, sys, time
def save(*_):
    open(os.environ["SM_MODEL_DIR"] + "/last", "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("computing", flush=True)
while True:
    time.sleep(0.05)
"""


class Project:
    """A rendered project and what `docker compose` does with it, in a folder with the job file and its code."""

    def __init__(self, engine: Engine, image: str, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.name = engine.name
        self._image = image
        (folder / "code").mkdir()
        (folder / "data").mkdir()
        (folder / "data/a").write_text("sample")

    def write(self, script: str, more: str = "") -> None:
        """Write the job: its *script*, and *more* top-level words of its file."""
        (self.folder / "code/train.py").write_text(script)
        (self.folder / "job.toml").write_text(JOB.format(name=self.name, more=more))

    def render(self) -> str:
        words = (sys.executable, "-m", "toolkit.cli.main", "render", "compose", "job.toml", "--image", self._image)
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            words, cwd=self.folder, env=environ, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def compose(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """`toolkit render compose ... | docker compose -f - WORDS`, to its end."""
        return subprocess.run(
            ("docker", "compose", "-f", "-", *words),
            cwd=self.folder,
            env=self.engine.environ,
            input=self.render(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )

    def codes(self) -> dict[str, int]:
        """Return each host's exit code."""
        codes = {}
        for box in self.left("container"):
            form = '{{index .Config.Labels "com.docker.compose.service"}} {{.State.ExitCode}}'
            host, _, code = self.engine.ask("inspect", "--format", form, box).partition(" ")
            codes[host] = int(code)
        return codes

    def left(self, *kinds: str) -> list[str]:
        """Return the project's containers, networks, volumes that are there."""
        project_filter = f"label=com.docker.compose.project={self.name}"
        resources: list[str] = []
        for kind in kinds:
            every = ("--all",) if kind == "container" else ()
            resources += self.engine.ask(kind, "ls", "--quiet", *every, "--filter", project_filter).split()
        return resources

    def host(self, name: str) -> Path:
        return self.folder / "jobs" / self.name / "hosts" / name


@pytest.fixture
def project(engine: Engine, image: str, tmp_path: Path) -> Iterator[Project]:
    project = Project(engine, image, tmp_path)
    yield project
    if (tmp_path / "job.toml").exists():
        project.compose("down", "--timeout", "0")


def test_both_hosts_of_a_rendered_project_train_together_and_nothing_is_left(project: Project) -> None:
    project.write(SUMS, 'distribution = "torch_distributed"\ncheckpoints = "kept"')

    up = project.compose("up")
    codes = project.codes()
    down = project.compose("down")

    assert up.returncode == down.returncode == 0, up.stdout + down.stdout
    assert codes == {"algo-1": 0, "algo-2": 0}, up.stdout
    for name in HOSTS:
        host = project.host(name)
        assert (host / "model/told").read_text() == f"{name} 3 sample costs $5, or ${{five}}"
        assert document(host / "output/outcome.json")["exit_code"] == 0
        assert (host / "output/success").exists()
        assert '"loss"' in (host / "output/metrics.jsonl").read_text()
    assert sorted(path.name for path in (project.folder / "kept").iterdir()) == list(HOSTS)
    assert project.left("container", "network", "volume") == []


def test_both_hosts_of_a_rendered_project_name_the_one_that_failed(project: Project) -> None:
    project.write(FAILS)

    up = project.compose("up")

    assert project.codes() == {"algo-1": 1, "algo-2": 1}, up.stdout
    for name in HOSTS:
        outcome = document(project.host(name) / "output/outcome.json")
        assert (outcome["cause_host"], outcome["exit_code"]) == ("algo-2", 1)
        assert "ValueError: a label is out of range" in (project.host(name) / "output/failure").read_text()[:1024]


def test_compose_stop_lets_the_scripts_of_a_rendered_project_save(project: Project) -> None:
    project.write(SAVES)
    started = project.compose("up", "--detach")
    assert started.returncode == 0, started.stdout
    for name in HOSTS:
        Container(project.engine, f"{project.name}-{name}-1").until("computing")

    stopped = project.compose("stop")

    assert stopped.returncode == 0, stopped.stdout
    assert project.codes() == {"algo-1": 143, "algo-2": 143}
    assert [(project.host(name) / "model/last").read_text() for name in HOSTS] == ["saved", "saved"]
