"""The distribution as it is built, an image that has never heard of the toolkit, and jobs that the SDK has sent."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sdk import jobs, replay
from tests.sdk.replay import Container


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the package toolkit_sagemaker, with the packs that jobs carry."""
    cache = replay.BED / "msgspec"
    if not cache.is_dir():
        pytest.skip("needs msgspec's wheels: run scripts/beds/sdk")
    folder = tmp_path_factory.mktemp("distribution")
    shutil.copytree(
        replay.DISTRIBUTION / "toolkit_sagemaker",
        folder / "toolkit_sagemaker",
        ignore=shutil.ignore_patterns("packs", "__pycache__"),
    )
    packs = folder / "toolkit_sagemaker/driver/packs"
    words = [sys.executable, str(replay.ROOT / "scripts/carried-packs"), "--into", str(packs), "--cache", str(cache)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an image with torch and without the toolkit."""
    return replay.make_image(tmp_path_factory.mktemp("image") / "python")


@pytest.fixture(scope="session")
def sent(tmp_path_factory: pytest.TempPathFactory, distribution: Path) -> Path:
    """The folder of each job of jobs.py, as ModelTrainer has sent it."""
    if not replay.PYTHON.exists():
        pytest.skip("needs SageMaker's SDK v3: run scripts/beds/sdk")
    folder = tmp_path_factory.mktemp("sent")
    replay.send(folder, jobs.JOBS, distribution)
    return folder


@pytest.fixture
def container(sent: Path, image: Path, tmp_path: Path) -> Any:
    """Returns the container of a job by its name; skips where none can be made."""
    if not replay.may_contain():
        pytest.skip("needs to be allowed to make a PID namespace")

    def make(name: str, host: str = "algo-1") -> Container:
        shutil.copytree(sent / name / host, tmp_path / name / host)
        return Container(tmp_path / name, image, host)

    return make
