"""`toolkit run --backend docker` by a person who is not root but may use the engine: the files are theirs."""

import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from tests.docker.engine import ROOT, Engine
from tests.mpi.test_places import NOBODY, as_nobody, root

pytestmark = [pytest.mark.docker, pytest.mark.root, root]

WRITES = """
import os, pathlib
print("user", os.getuid(), os.getgid(), "home", os.path.expanduser("~"), flush=True)
model = pathlib.Path(os.environ["SM_MODEL_DIR"])
(model / "deep/deeper").mkdir(parents=True)
(model / "deep/deeper/weights").write_text("trained")
(model / "mine").write_text("closed")
(model / "mine").chmod(0o600)
pathlib.Path("/opt/ml/checkpoints/last").write_text("kept")
pathlib.Path("/opt/ml/code/cache").mkdir()
pathlib.Path("/opt/ml/code/cache/entry").write_text("cached")
"""
FAILS = "raise ValueError('a label is out of range')\n"


class Person:
    """Nobody, in the group that may use the engine, with a folder of their own."""

    def __init__(self, engine: Engine, image: str, folder: Path) -> None:
        self.folder = folder
        self._engine = engine
        self._image = image
        socket = urlsplit(engine.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")).path
        groups = f"--groups={Path(socket).stat().st_gid}"
        self._prefix = tuple(word.replace("--clear-groups", groups) for word in as_nobody())
        (folder / "code").mkdir()

    def play(self, script: str, *words: str, image: str = "") -> ToolkitRun:
        """`toolkit run` the *script*, in another *image* if one is named."""
        (self.folder / "code/train.py").write_text(script)
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join(self._prefix)} {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        boxed = ("--name", self._engine.name, "--backend", "docker", "--image", image or self._image)

        class Nobodys(ToolkitRun):
            pass

        Nobodys.python = str(python)
        script_path = str(self.folder / "code/train.py")
        environ = {**self._engine.environ, "HOME": str(self.folder)}
        return Nobodys(self.folder, script_path, *boxed, *words, **environ)

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a program as this person."""
        return subprocess.run((*self._prefix, *words), cwd="/", capture_output=True, text=True, timeout=60)

    def foreign(self) -> list[Path]:
        """Return the files in the folder that are another's."""
        return [path for path in self.folder.rglob("*") if path.is_file() and path.lstat().st_uid != NOBODY]


@pytest.fixture
def person(engine: Engine, image: str) -> Iterator[Person]:
    if not ROOT.stat().st_mode & 0o001:
        pytest.skip(f"{ROOT} is closed to others")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed to others.
        yield Person(engine, image, Path(folder))


def test_what_a_container_writes_is_the_persons_to_read_and_remove(person: Person) -> None:
    with person.play(WRITES, "--hosts", "2", "--checkpoints", str(person.folder / "kept")) as run:
        code = run.end()

    assert code == 0, run.console
    assert run.console.count(f"user {NOBODY} {NOBODY} home /tmp") == 2
    assert person.foreign() == []
    weights = run.folder / "hosts/algo-2/opt/ml/model/deep/deeper/weights"
    assert person.run("cat", str(weights), str(weights.parents[2] / "mine")).stdout == "trainedclosed"
    removed = person.run("rm", "-r", str(run.folder), str(person.folder / "kept"))
    assert (removed.returncode, removed.stderr) == (0, "")


def test_a_failed_jobs_files_are_the_persons_too(person: Person) -> None:
    with person.play(FAILS) as run:
        code = run.end()

    assert code == 1, run.console
    assert "ValueError: a label is out of range" in run.report["failure_reason"]
    assert person.foreign() == []
    assert person.run("rm", "-r", str(run.folder)).returncode == 0


def test_requirements_are_installed_for_a_person_in_an_image_whose_python_is_roots(person: Person) -> None:
    with zipfile.ZipFile(person.folder / "code/mine-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("mine.py", "NAME = 'mine'\n")
        about = "mine-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (person.folder / "code/requirements.txt").write_text("./mine-1.0-py3-none-any.whl\n")

    with person.play("import mine, torch\nprint('has', mine.NAME)\n") as run:
        code = run.end()

    assert code == 0, run.console
    assert "has mine" in run.console
    assert "cannot write to the image's packages" in run.console
