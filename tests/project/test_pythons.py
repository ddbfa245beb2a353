"""The wheel works on every Python this machine has, without a compiler (71 of the contract's checklist)."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import SEES, Base

OLDEST = (3, 10)
BED = Path(__file__).parents[2] / ".beds/python"


@cache
def interpreters() -> dict[str, Path]:
    """Return by version ("3.12") the Pythons found on PATH, under pyenv and in the test bed (scripts/beds/python), but
    this one and those too old."""
    by_version: dict[str, Path] = {}
    for path in candidates():
        version = version_of(path)
        if version is not None and version >= OLDEST and version != sys.version_info[:2]:
            by_version.setdefault(".".join(map(str, version)), path)
    return dict(sorted(by_version.items(), key=lambda item: int(item[0].partition(".")[2])))


def candidates() -> Iterator[Path]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/3.*/bin/python3"), reverse=True)
    for minor in range(OLDEST[1], 20):
        path = shutil.which(f"python3.{minor}")
        if path is not None and "shims" not in path:
            yield Path(path)
    if (BED / ".ready").exists():
        yield from BED.glob("bin/python3.*")


def version_of(path: Path) -> tuple[int, int] | None:
    done = subprocess.run([path, "-VV"], capture_output=True, text=True)
    match = re.match(r"Python (\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None


def versions() -> list[Any]:
    """Return the versions, of which those between the oldest and the newest are long; ["none"] if there are none."""
    oldest, *between = interpreters() or ["none"]
    newest = between[-1:]
    return [oldest, *(pytest.param(version, marks=pytest.mark.long) for version in between[:-1]), *newest]


@pytest.fixture(scope="module")
def pythons() -> dict[str, Path]:
    by_version = interpreters()
    if not by_version:
        pytest.skip("no other Python of 3.10 or newer is installed here")
    return by_version


def installed(python: Path, wheel: Path, folder: Path) -> Path:
    """Return the `bin` of a new environment of *python* with *wheel* and what it asks for, from wheels only."""
    # pip of this interpreter installs for the other: an environment without pip is made in a tenth of the time.
    done = subprocess.run([python, "-m", "venv", "--without-pip", folder], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{python} cannot make environments: {done.stdout or done.stderr}")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-input", "--only-binary", ":all:", str(wheel)], capture_output=True, text=True
    )
    if done.returncode != 0 and "CI" not in os.environ:
        pytest.skip(f"msgspec cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.mark.parametrize("version", versions())
def test_train_works_on_another_python(version: str, pythons: dict[str, Path], wheel: Path, tmp_path: Path) -> None:
    """Contract 71, from the wheel: success with metrics, a failure with its cause, nothing on stderr but our words."""
    commands = installed(pythons[version], wheel, tmp_path / "venv")
    base = Base(tmp_path)
    base.hyperparameters({"epochs": "3"})
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    base.program(SEES + "print('loss=0.25')\n")
    environ = {"PATH": f"{commands}:/usr/bin:/bin", "PYTHONWARNINGS": "error", "PYTHONPATH": ""}

    done = base.train(environ, command=[str(commands / "train")])

    assert (done.status, done.succeeded) == (0, True), done
    assert done.argv == ["--epochs", "3"]
    assert done.stdout == b"loss=0.25\n"
    assert b'"loss"' in (base.output / "metrics.jsonl").read_bytes()
    assert [line for line in done.stderr.decode().splitlines() if not line.startswith("[toolkit] ")] == []

    base.program("raise RuntimeError('no such shard')\n")
    done = base.train(environ, command=[str(commands / "train")])

    assert done.status == 1
    assert done.failure is not None
    assert "RuntimeError: no such shard" in done.failure[:1024]


def test_the_search_sees_no_interpreter_twice() -> None:
    by_version = interpreters()

    assert len(set(by_version.values())) == len(by_version)
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" not in by_version
