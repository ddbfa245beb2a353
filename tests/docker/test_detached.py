"""Jobs in containers: `attach` and `stop` with detached ones; a quota of cores."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.test_detached import DEAF, Desk, until
from tests.docker.engine import Engine
from tests.docker.test_run import WAITS
from toolkit.series import sample_reader

pytestmark = pytest.mark.docker
SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("computing", flush=True)
while True: time.sleep(0.05)
"""


class Containers(Desk):
    """A person's folder whose jobs run in containers."""

    def __init__(self, folder: Path, engine: Engine, image: str) -> None:
        super().__init__(folder)
        self.engine = engine
        self.environ |= engine.environ
        self._boxed = ("--backend", "docker", "--image", image)

    def begin(self, text: str, hosts: int = 1) -> Path:
        """Start *text* as a detached job; return its folder once the script of each host runs."""
        (self.folder / "code").mkdir()
        (self.folder / "code/train.py").write_text(text)
        name = self.engine.name
        done = self.toolkit("run", "code/train.py", "--detach", "--name", name, "--hosts", str(hosts), *self._boxed)
        assert done.returncode == 0, done.stderr
        folder = self.folder / "jobs" / name
        logs = [folder / f"logs/algo-{number}.log" for number in range(1, hosts + 1)]
        until(lambda: all(log.exists() and "computing" in log.read_text() for log in logs), "the script of each host")
        return folder

    def left(self, folder: Path) -> str:
        """Return the containers and networks of the job that are still there."""
        label = f"label=toolkit.job-dir={folder}"
        listings = (("ps", "--all", "--quiet"), ("network", "ls", "--quiet"))
        return "".join(self.engine.ask(*words, "--filter", label) for words in listings)


@pytest.fixture
def desk(engine: Engine, image: str, tmp_path: Path) -> Containers:
    return Containers(tmp_path, engine, image)


def described(desk: Containers) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(desk.toolkit("describe", desk.engine.name, "--json").stdout)
    return facts


def test_two_containers_are_stopped_with_their_grace_and_attach_ends_with_them(desk: Containers) -> None:
    folder = desk.begin(SAVES, hosts=2)
    name = desk.engine.name
    attached = subprocess.Popen(
        desk.argv("attach", name), cwd=desk.folder, env=desk.environ, stdout=subprocess.PIPE, text=True
    )
    running = described(desk)["TrainingJobStatus"]

    stopped = desk.toolkit("stop", name)

    out, _ = attached.communicate(timeout=60)
    assert (running, stopped.returncode) == ("InProgress", 0)
    assert f"{name}: Stopped, exit code 143" in stopped.stderr
    assert (attached.returncode, out.count("| saved\n")) == (143, 2)
    facts = json.loads((folder / "job.json").read_text())
    assert facts["status"] == "Stopped"
    assert {host["cause"] for host in facts["hosts"].values()} == {"stopped by SIGTERM; the script ended with 0"}
    until(lambda: desk.left(folder) == "", "the end of the job's containers and network")


def test_stop_now_kills_a_script_in_a_container_that_ignores_sigterm(desk: Containers) -> None:
    folder = desk.begin(DEAF.replace("deaf", "computing"))

    stopped = desk.toolkit("stop", desk.engine.name, "--now")

    assert "SIGKILL to all hosts" in stopped.stderr
    assert described(desk)["TrainingJobStatus"] == "Stopped"
    until(lambda: desk.left(folder) == "", "the end of the job's containers and network")


def test_ctrl_c_ends_attach_alone_and_the_container_goes_on(desk: Containers) -> None:
    folder = desk.begin(WAITS)
    attached = subprocess.Popen(
        desk.argv("attach", desk.engine.name),
        cwd=desk.folder,
        env=desk.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert attached.stdout is not None
    until(lambda: "computing" in attached.stdout.readline(), "the job's output")  # type: ignore[union-attr]

    attached.send_signal(2)

    assert attached.wait(30) == 130
    attached.stdout.close()
    assert described(desk)["TrainingJobStatus"] == "InProgress"
    assert desk.toolkit("stop", desk.engine.name, "--now").returncode == 0
    until(lambda: desk.left(folder) == "", "the end of the job's container and network")


def test_a_quota_of_cores_is_measured(engine: Engine, image: str, tmp_path: Path) -> None:
    code, output = tmp_path / "code", tmp_path / "output"
    code.mkdir()
    output.mkdir()
    burns = (
        "import os, time\nos.fork()\nos.fork()\nends_s = time.monotonic() + 8\nwhile time.monotonic() < ends_s: pass\n"
    )
    (code / "train.py").write_text(burns)
    environ = {"SAGEMAKER_PROGRAM": "train.py", "TOOLKIT_MONITOR": "1", "TOOLKIT_MONITOR_INTERVAL_S": "0.1"}
    words = [word for name, value in environ.items() for word in ("--env", f"{name}={value}")]
    folders = ("--volume", f"{code}:/opt/ml/code", "--volume", f"{output}:/opt/ml/output")

    # Its share beside the machine's other work is large, so that the quota alone limits it.
    limits = ("--cpus", "0.3", "--cgroup-parent", "/", "--cpu-shares", "262144")

    ran = engine.run(*limits, *folders, *words, image, "train")

    assert ran.code == 0, ran
    samples = sample_reader.read(output / "monitor/samples")
    assert set(samples.series("cpu/all/quota_cores").mean.round(3)) == {0.3}
    assert samples.series("cpu/all/throttled_percent").high.max() > 50
