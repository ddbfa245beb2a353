from pathlib import Path

import pytest

from toolkit.job.machine import Mpi
from toolkit.train.probe.mpi import find_mpirun, read_version

HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: a day\n"


def program(folder: Path, text: str, code: int = 0) -> dict[str, str]:
    """Return an environment whose mpirun says *text*."""
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\nexit {code}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("text", "kind", "version"),
    [
        ("mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "openmpi4", "4.1.8"),
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/\n", "openmpi5", "5.0.11"),
        ("mpirun (Open MPI) 6.0.0rc1\n", "openmpi5", "6.0.0rc1"),
        (HYDRA, "mpich", "5.0.2"),
    ],
)
def test_mpirun_says_what_it_is(tmp_path: Path, text: str, kind: str, version: str) -> None:
    mpirun, trouble = find_mpirun(program(tmp_path, text))

    assert mpirun is not None
    assert (mpirun.kind, mpirun.version, mpirun.path) == (kind, version, str(tmp_path / "mpirun"))
    assert trouble == ""


@pytest.mark.parametrize("text", ["mpirun (Open MPI) 3.1.6\n", "a wrapper of ours, 1.0\n", ""])
def test_what_is_not_known_is_quoted(tmp_path: Path, text: str) -> None:
    mpirun, trouble = find_mpirun(program(tmp_path, text))

    assert mpirun is None
    assert "neither Open MPI 4 or later nor an MPICH" in trouble
    assert text.strip() in trouble


def test_a_mpirun_that_does_not_run_is_told_apart_from_none(tmp_path: Path) -> None:
    _, broken = find_mpirun(program(tmp_path, "", code=3))
    _, absent = find_mpirun({"PATH": str(tmp_path / "empty")})

    assert "ended with 3" in broken
    assert "no mpirun on PATH" in absent


def test_a_hydra_without_a_version_is_one_all_the_same() -> None:
    assert read_version("HYDRA build details:\n", "/x") == Mpi(kind="mpich", version="", path="/x")
