"""`environment.Environment()` and what is around it, compared with what sagemaker-training 5.1.4 gave (tests/data)."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import ROOT, Base

GOLDENS = sorted((ROOT / "tests/data/sagemaker_training_5_1_4").glob("*.json"))
SHOWS = """
import json, os
os.cpu_count = lambda: CPUS
from sagemaker_training import environment
env = environment.Environment()
print(json.dumps({"args": env.to_cmd_args(), "variables": env.to_env_vars(), "properties": dict(env), "count": len(env),
                  "hyperparameters": environment.read_hyperparameters(), "code": environment.code_dir}))
"""


def evaluate(python: Path, base: Base, text: str, **more: str) -> Any:
    """Return what the program *text* prints, JSON, in the image's environment."""
    program = base.folder / "shows.py"
    program.write_text(text)
    done = subprocess.run([python, program], env=base.environ(**more), capture_output=True, text=True, cwd=base.folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.replace(str(base.root), "@BASE@"))


@pytest.mark.parametrize("file", GOLDENS, ids=lambda file: file.stem)
def test_arguments_variables_and_properties_are_those_of_sagemaker_training(
    file: Path, base: Base, python: Path
) -> None:
    golden = json.loads(file.read_text())
    for name, content in golden["documents"].items():
        base.document(f"{name}.json", content)
    lines = "".join(f"GPU {index}: NVIDIA A100 (UUID: GPU-{index})\\n" for index in range(golden["machine"]["gpus"]))
    base.executable("nvidia-smi", f"#!/bin/sh\nprintf '{lines}'\n")
    unset = {"TRAINING_JOB_NAME": "", "AWS_REGION": ""}

    values = evaluate(
        python, base, SHOWS.replace("CPUS", str(golden["machine"]["cpus_total"])), **{**unset, **golden["environ"]}
    )

    recorded = golden["seen"]["environ"]
    expected = {
        name: value for name, value in recorded.items() if name.startswith("SM_") and name not in golden["environ"]
    }
    aliases = {re.sub("[^A-Z0-9_]", "_", name) for name in expected} | {"SM_CHECKPOINT_DIR"}
    properties = json.loads(recorded["SM_TRAINING_ENV"])
    assert values["args"] == golden["seen"]["argv"]
    assert {name: values["variables"].get(name) for name in expected} == expected
    assert set(values["variables"]) - set(expected) <= aliases
    assert values["properties"] == properties
    assert values["count"] == len(properties)
    assert values["code"] == "@BASE@/code"


def test_the_goldens_are_there() -> None:
    assert len(GOLDENS) >= 12


def test_an_environment_is_a_mapping_of_its_properties(base: Base, python: Path) -> None:
    values = evaluate(
        python,
        base,
        "import collections.abc, json\nfrom sagemaker_training import environment\n"
        "env = environment.Environment()\n"
        "print(json.dumps([isinstance(env, collections.abc.Mapping), env['hosts'], env.get('nothing', 'none'),\n"
        "  'hosts' in env, 'to_cmd_args' in env, sorted(env) == env.properties(), str(env) == str(dict(env))]))\n",
    )

    assert values == [True, ["algo-1"], "none", True, False, True, True]


def test_given_documents_take_the_place_of_the_files(base: Base, python: Path) -> None:
    values = evaluate(
        python,
        base,
        "import json\nfrom sagemaker_training import environment\n"
        "env = environment.Environment(hyperparameters={'sagemaker_program': 'other.py', 'a': 1,\n"
        "    'sagemaker_mpi_enabled': True, 'sagemaker_s3_output': 's3://b/o'},\n"
        "  resource_config={'hosts': ['h2', 'h1'], 'current_host': 'h1'}, input_data_config={'z': {}})\n"
        "print(json.dumps([env.user_entry_point, env.to_cmd_args(), env.additional_framework_parameters,\n"
        "  env.master_hostname, env.is_master, env.channel_input_dirs, env.sagemaker_s3_output()]))\n",
    )

    assert values == [
        "other.py",
        ["-a", "1"],
        {"sagemaker_mpi_enabled": True},
        "h2",
        False,
        {"z": "@BASE@/input/data/z"},
        "s3://b/o",
    ]


def test_a_changed_hyperparameter_is_in_arguments_and_variables(base: Base, python: Path) -> None:
    """AWS's TensorFlow plug-in changes model_dir so."""
    values = evaluate(
        python,
        base,
        "import json\nfrom sagemaker_training import environment\n"
        "env = environment.Environment(hyperparameters=environment.read_hyperparameters())\n"
        "env.hyperparameters['model_dir'] = 's3://b/job/model'\n"
        "print(json.dumps([env.to_cmd_args(), env.to_env_vars()['SM_HP_MODEL_DIR']]))\n",
    )

    assert values == [["--model_dir", "s3://b/job/model"], "s3://b/job/model"]


def test_an_environment_outside_a_job_needs_no_script(base: Base, python: Path) -> None:
    values = evaluate(
        python,
        base,
        "import json\nfrom sagemaker_training import environment\n"
        "env = environment.Environment(hyperparameters={'a': 1, 'sagemaker_own': 2})\n"
        "print(json.dumps([env.hosts == [env.current_host], env.user_entry_point, env.hyperparameters,\n"
        "  env.additional_framework_parameters]))\n",
        SAGEMAKER_BASE_DIR="",
        TRAINING_JOB_NAME="",
        TOOLKIT_PLATFORM="plain",
        TOOLKIT_BASE=str(base.folder / "none"),
    )

    assert values == [True, None, {"a": 1}, {"sagemaker_own": 2}]


def test_a_broken_document_is_named(base: Base, python: Path) -> None:
    base.document("resourceconfig.json", b"{")
    program = "from sagemaker_training import environment; environment.Environment()"

    done = subprocess.run([python, "-c", program], env=base.environ(), capture_output=True, text=True)

    assert done.returncode == 1
    assert f"{base.config}/resourceconfig.json: expected JSON, found a mistake at line 1 column 2" in done.stderr
