"""scripts/build-horovod: what it says where it cannot build, and that a wheel is made once."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.horovod.bed import ROOT, TENSORFLOW, TORCH, lacks

pytestmark = [pytest.mark.horovod, pytest.mark.skipif(bool(lacks(TORCH)), reason=str(lacks(TORCH)))]

# An unheard-of variable makes another wheel of it, one that is never there.
NEVER_MADE = {"HOROVOD_OF_A_TEST": "1"}


def build(python: Path | str, environ: Mapping[str, str] = os.environ) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        (ROOT / "scripts/build-horovod", python), env=dict(environ), capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(("folder", "library"), [(TORCH, "torch/mpi_lib_v2"), (TENSORFLOW, "tensorflow/mpi_lib")])
def test_a_wheel_that_was_made_for_these_versions_is_given_at_once(folder: Path, library: str) -> None:
    completed = build(folder / "python")

    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    with zipfile.ZipFile(completed.stdout.strip()) as wheel:
        libraries = [name for name in wheel.namelist() if name.endswith(".so")]
    assert len(libraries) == 1
    assert library in libraries[0]


def test_an_interpreter_without_torch_and_tensorflow_is_told_to_get_one(tmp_path: Path) -> None:
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"), check=True)

    completed = build(tmp_path / "bare/bin/python")

    assert completed.returncode == 1
    assert "has neither torch nor tensorflow; install one into it first" in completed.stderr


@pytest.mark.parametrize("program", ["cmake", "make", "g++"])
def test_a_missing_compiler_is_named_with_the_package_that_brings_it(tmp_path: Path, program: str) -> None:
    for folder in ("/bin", "/usr/bin"):
        for path in Path(folder).iterdir():
            if path.name != program and not (tmp_path / path.name).is_symlink():
                (tmp_path / path.name).symlink_to(path)

    completed = build(TORCH / "python", {"PATH": str(tmp_path), **NEVER_MADE})

    assert completed.returncode == 1
    assert f"needs {program}, found none; on Debian and Ubuntu: apt-get install cmake make g++" in completed.stderr


@pytest.mark.long
def test_a_build_that_fails_says_the_compilers_words_and_where_the_rest_is(tmp_path: Path) -> None:
    # A compiler that knows C++20 and then says no to every file.
    (tmp_path / "g++").write_text(
        '#!/bin/sh\ncase "$*" in *-fsyntax-only*) exit 0;; esac\necho "x.cc:1: error: no" >&2; exit 1\n'
    )
    (tmp_path / "g++").chmod(0o755)
    # Where its Python is comes before PATH.
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {TORCH / "python"} "$@"\n')
    (tmp_path / "python").chmod(0o755)

    completed = build(tmp_path / "python", {**os.environ, **NEVER_MADE, "HOROVOD_WITHOUT_MPI": "1"})

    log = ROOT / completed.stderr.strip().rpartition("all of it is in ")[2]
    assert completed.returncode == 1
    assert "error: no" in completed.stderr
    assert "error: no" in log.read_text()
    log.unlink()


def test_of_two_builds_of_a_wheel_at_once_one_builds(tmp_path: Path) -> None:
    # An interpreter whose pip makes an empty wheel, slowly, and writes down that it did.
    (tmp_path / "python").write_text(
        f"""#!/bin/sh
        case "$*" in
          *"-m pip"*" install "*) ;;
          *"-m pip"*" wheel "*)
            echo built >>{tmp_path}/builds
            sleep 1
            until [ "$1" = --wheel-dir ]; do shift; done
            mkdir "$2" && : >"$2/horovod-0-py3-none-any.whl" ;;
          *) exec {TORCH / "python"} "$@" ;;
        esac
        """
    )
    (tmp_path / "python").chmod(0o755)
    environ = {**os.environ, "HOROVOD_OF_A_TEST": str(tmp_path)}

    argv = (ROOT / "scripts/build-horovod", tmp_path / "python")
    both = [subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate(timeout=300)[0].strip() for process in both)

    shutil.rmtree(Path(first).parent)
    assert first == second
    assert (tmp_path / "builds").read_text() == "built\n"


def test_an_interpreter_that_is_not_there_is_said_at_once() -> None:
    completed = build("/nowhere/python")

    assert completed.returncode == 1
    assert "no '/nowhere/python' here" in completed.stderr
