"""The distribution for SDK v3's users: what its wheel holds, and when it is not built."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.project.test_repository import PYPROJECT
from tests.sdk import replay


def build(project: Path, into: Path) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    return subprocess.run(words, cwd=project, capture_output=True, text=True)


def test_its_wheel_holds_the_packs_that_jobs_carry(distribution: Path, tmp_path: Path) -> None:
    project = Path(shutil.copytree(replay.DISTRIBUTION, tmp_path / "project", ignore=shutil.ignore_patterns("packs")))
    shutil.rmtree(project / "toolkit_sagemaker")
    shutil.copytree(distribution / "toolkit_sagemaker", project / "toolkit_sagemaker")

    done = build(project, tmp_path / "dist")

    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))).namelist()
    carried = [name for name in names if name.startswith("toolkit_sagemaker/driver/packs/")]
    assert len([name for name in carried if name.endswith(".pack")]) >= 12  # Of other Pythons where there are any.
    assert "toolkit_sagemaker/driver/packs/SHA256SUMS" in carried


def test_a_build_without_them_is_refused_and_says_what_makes_them(tmp_path: Path) -> None:
    project = Path(shutil.copytree(replay.DISTRIBUTION, tmp_path / "project", ignore=shutil.ignore_patterns("packs")))

    done = build(project, tmp_path / "dist")

    assert done.returncode != 0
    assert "run scripts/carried-packs" in done.stderr
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").iterdir())


def test_it_has_the_version_of_the_toolkit() -> None:
    version = PYPROJECT["project"]["version"]
    texts = [(replay.DISTRIBUTION / name).read_text() for name in ("pyproject.toml", "toolkit_sagemaker/__init__.py")]

    assert f'\nversion = "{version}"\n' in texts[0]
    assert f'\n__version__ = "{version}"\n' in texts[1]
