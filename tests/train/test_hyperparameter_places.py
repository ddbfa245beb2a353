"""A wrong hyperparameter of the platform's own: the error names the file, variable or option in which it stands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NAME = "sagemaker_mpi_num_of_processes_per_host"
TORCHRUN = "sagemaker_torch_distributed_enabled"
EXPECTED = 'expected a whole number, 1 to 1,000,000, found "many"'


def job_file(folder: Path, **hyperparameters: object) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps({"script": "train.py", "hyperparameter": hyperparameters}))
    return path


def console(folder: Path, *words: str, **environ: str) -> str:
    """Run the toolkit with *words* in *folder*, which has a script; return its console. It must end with 78."""
    (folder / "train.py").touch()
    (folder / "base/input/config").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        (sys.executable, "-m", "toolkit.cli.main", *words),
        cwd=folder,
        env={**os.environ, "TOOLKIT_BASE": str(folder / "base"), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 78, done
    return done.stdout + done.stderr


def test_one_in_a_document_of_sagemakers_is_named_with_it(tmp_path: Path) -> None:
    document = tmp_path / "base/input/config/hyperparameters.json"
    document.parent.mkdir(parents=True)
    document.write_text(json.dumps({NAME: '"many"', TORCHRUN: "true"}))

    assert f"{document}: $.{NAME}: {EXPECTED}" in console(tmp_path, "train", TOOLKIT_PROGRAM="train.py")


def test_one_in_a_job_file_is_named_with_the_file(tmp_path: Path) -> None:
    path = job_file(tmp_path, **{NAME: "many", TORCHRUN: True})

    written = console(tmp_path, "train", TOOLKIT_JOB=str(path), TOOLKIT_HYPERPARAMETERS='{"lr": 1}')

    assert f'"{path}: $.hyperparameter.{NAME}: {EXPECTED}' in written.replace("\\", "")


def test_one_in_a_variable_is_named_with_the_variable(tmp_path: Path) -> None:
    path = job_file(tmp_path, **{NAME: 2, TORCHRUN: True})

    written = console(tmp_path, "train", TOOLKIT_JOB=str(path), TOOLKIT_HYPERPARAMETERS=json.dumps({NAME: "many"}))

    assert f'"TOOLKIT_HYPERPARAMETERS: $.{NAME}: {EXPECTED}' in written


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--hyperparameter", f"{NAME}=many"), f"toolkit run: --hyperparameter {NAME}"),
        (("--", f"--{NAME}", "many"), f"toolkit run: the words behind --: {NAME}"),
    ],
)
def test_one_on_the_command_line_is_named_with_its_option(tmp_path: Path, words: tuple[str, ...], place: str) -> None:
    path = job_file(tmp_path, **{NAME: 2, TORCHRUN: True})

    assert f"error: {place}: {EXPECTED}\n" in console(tmp_path, "run", str(path), *words)


def test_one_in_the_job_file_of_toolkit_run_is_named_with_the_file(tmp_path: Path) -> None:
    path = job_file(tmp_path, **{NAME: "many", TORCHRUN: True})

    written = console(tmp_path, "run", str(path), "--hyperparameter", "lr=1")

    assert f"error: {path}: $.hyperparameter.{NAME}: {EXPECTED}\n" in written


def test_one_that_contradicts_the_job_is_named_with_its_place(tmp_path: Path) -> None:
    path = job_file(tmp_path, sagemaker_job_name=7)

    assert f"error: {path}: $.hyperparameter.sagemaker_job_name: expected none" in console(tmp_path, "run", str(path))
