"""A script's arguments and variables are, byte for byte, those of sagemaker-training 5.1.4 (tests/data)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from toolkit.job.arguments import arguments
from toolkit.job.machine import Machine
from toolkit.job.variables import variables
from toolkit.log import Log
from toolkit.settings import Settings
from toolkit.train.platforms.sagemaker.read_job import read

GOLDENS = sorted((Path(__file__).parents[3] / "data/sagemaker_training_5_1_4").glob("*.json"))
# The differences, all intended (toolkit/job/variables.py says why): golden -> variable -> our value.
# If only TRAINING_JOB_NAME names the job, sagemaker-training leaves SAGEMAKER_JOB_NAME empty.
DIFFERENT: dict[str, dict[str, str]] = {"today": {"SAGEMAKER_JOB_NAME": "a-job"}}


class Given:
    """A golden, its documents written below a temporary base, and what our job gives the script."""

    def __init__(self, golden: dict[str, Any], base: Path) -> None:
        (base / "input/config").mkdir(parents=True)
        for name, content in golden["documents"].items():
            (base / f"input/config/{name}.json").write_text(json.dumps(content))
        gpus, cpus = golden["machine"]["gpus"], golden["machine"]["cpus_total"]
        machine = Machine(
            cpus=1, cpus_total=cpus, memory_bytes=1, accelerator="nvidia" if gpus else "none", accelerators=gpus
        )
        environ = {**golden["environ"], "SAGEMAKER_BASE_DIR": str(base)}
        job = read(environ, Settings(), machine, Log())
        self.argv = arguments(job.spec.hyperparameters, "sagemaker")
        merged = golden["environ"] | variables(job, self.argv)
        self.variables = {name: value.replace(str(base), "@BASE@") for name, value in merged.items()}


@pytest.fixture(params=GOLDENS, ids=lambda file: file.stem)
def golden(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param.stem, json.loads(request.param.read_text())


def test_the_goldens_are_there() -> None:
    assert len(GOLDENS) >= 12


def test_arguments_are_those_of_sagemaker_training(golden: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    _, content = golden

    case = Given(content, tmp_path / "ml")

    assert list(case.argv) == content["seen"]["argv"]


def test_variables_are_those_of_sagemaker_training(golden: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    name, content = golden

    variables = Given(content, tmp_path / "ml").variables

    expected = content["seen"]["environ"] | DIFFERENT.get(name, {})
    assert {key: variables.get(key) for key in expected} == expected


def test_nothing_is_added_but_aliases_the_python_path_and_the_checkpoints(
    golden: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    _, content = golden

    variables = Given(content, tmp_path / "ml").variables

    recorded = content["seen"]["environ"]
    aliases = {re.sub("[^A-Z0-9_]", "_", name) for name in recorded}
    assert set(variables) - set(recorded) - set(content["environ"]) <= aliases | {"PYTHONPATH", "SM_CHECKPOINT_DIR"}


def test_the_training_environment_has_every_key_of_sagemaker_training(tmp_path: Path) -> None:
    content = json.loads(GOLDENS[0].read_text())

    training_env = json.loads(Given(content, tmp_path / "ml").variables["SM_TRAINING_ENV"])

    assert sorted(training_env) == sorted(json.loads(content["seen"]["environ"]["SM_TRAINING_ENV"]))
