"""An environment with both wheels: container-training-toolkit's and that of the import name sagemaker_training."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.train.base import ROOT, Base

DISTRIBUTION = ROOT / "distributions/sagemaker_training"


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A base folder with the documents of a one-host job and no code yet."""
    return Base(tmp_path)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both wheels, built."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, DISTRIBUTION):
        words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        done = subprocess.run(words, cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory, wheels: list[Path]) -> Path:
    """The interpreter of an environment with both, and with the packages of this one behind them."""
    folder = tmp_path_factory.mktemp("image") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    interpreter = folder / "bin/python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "zz-beside.pth").write_text(sysconfig.get_path("purelib"))
    install(interpreter, *wheels)
    return interpreter


def install(python: Path, *wheels: Path) -> None:
    """Install *wheels* alone, without an index."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    words = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", *map(str, wheels)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
