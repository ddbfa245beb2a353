"""ModelTrainer's channel sm_drivers: how `train` reads a job from documents that were written for sm_train.sh."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.job.machine import Machine
from toolkit.log import Log
from toolkit.settings import Settings
from toolkit.train.platforms.sagemaker.drivers import starts_train
from toolkit.train.platforms.sagemaker.read_job import read

# As model_dump() of the SDK's classes writes them, with every key.
SOURCE = {
    "source_dir": "src",
    "requirements": "requirements.txt",
    "entry_script": "train.py",
    "command": None,
    "ignore_patterns": [".git"],
}
TORCHRUN = {"process_count_per_node": 2, "smp": None}
MPI = {"process_count_per_node": None, "mpi_additional_options": ["--mca", "btl_tcp_if_include eth0"]}


def write(base: Path, source: Any, distributed: Any, hyperparameters: Any = None) -> None:
    config, drivers = base / "input/config", base / "input/data/sm_drivers"
    config.mkdir(parents=True)
    drivers.mkdir(parents=True)
    channels = {name: {"TrainingInputMode": "File"} for name in ("code", "sm_drivers")}
    (config / "hyperparameters.json").write_text(json.dumps(hyperparameters or {}))
    (config / "inputdataconfig.json").write_text(json.dumps(channels))
    (config / "resourceconfig.json").write_text(json.dumps({"current_host": "b", "hosts": ["a", "b"]}))
    (drivers / "sourcecode.json").write_text(json.dumps(source))
    (drivers / "distributed.json").write_text(json.dumps(distributed))


def job(base: Path, **environ: str) -> Job:
    machine = Machine(cpus=1, cpus_total=1, memory_bytes=1)
    return read({"SAGEMAKER_BASE_DIR": str(base), **environ}, Settings(), machine, Log())


@pytest.mark.parametrize(
    ("distributed", "name", "per_host", "options"),
    [
        ({}, "script", None, ""),
        (TORCHRUN, "torch_distributed", 2, ""),
        (MPI, "mpi", None, "--mca btl_tcp_if_include eth0"),
    ],
)
def test_the_script_and_its_ranks_are_told_by_the_channel(
    tmp_path: Path, distributed: Any, name: str, per_host: int | None, options: str
) -> None:
    write(tmp_path, SOURCE, distributed, {"lr": "0.1"})

    parsed = job(tmp_path)

    assert (parsed.spec.entry, parsed.spec.source) == ("train.py", str(tmp_path / "input/data/code"))
    assert (parsed.strategy.name, parsed.strategy.processes_per_host) == (name, per_host)
    assert parsed.strategy.mpirun_options == options
    assert (parsed.spec.hyperparameters, parsed.argument_style) == ({"lr": 0.1}, "json")


def test_a_script_may_be_named_from_its_folder_as_a_shell_has_it(tmp_path: Path) -> None:
    write(tmp_path, {**SOURCE, "entry_script": "./train.py"}, {})

    assert job(tmp_path).spec.entry == "train.py"


def test_an_archive_in_the_channel_is_the_source(tmp_path: Path) -> None:
    write(tmp_path, {**SOURCE, "source_dir": "s3://bucket/code/source.tar.gz"}, {})

    assert job(tmp_path).spec.source == str(tmp_path / "input/data/code/source.tar.gz")


def test_a_script_finds_what_sm_train_would_tell_it(tmp_path: Path) -> None:
    write(tmp_path, SOURCE, TORCHRUN)

    environ = job(tmp_path, SM_MASTER_PORT="9999").environ

    assert (environ["SM_HOST_COUNT"], environ["SM_CURRENT_HOST_RANK"], environ["SM_MASTER_ADDR"]) == ("2", "1", "a")
    assert environ["SM_MASTER_PORT"] == "9999"  # What the user set stays.
    assert json.loads(environ["SM_DISTRIBUTED_CONFIG"]) == TORCHRUN
    assert environ["SM_OUTPUT_FAILURE"] == str(tmp_path / "output/failure")


def test_a_program_that_is_named_wins_over_the_channel(tmp_path: Path) -> None:
    write(tmp_path, SOURCE, TORCHRUN, {"sagemaker_program": '"other.py"'})

    parsed = job(tmp_path)

    assert (parsed.spec.entry, parsed.strategy.name, parsed.argument_style) == ("other.py", "script", "sagemaker")


@pytest.mark.parametrize(
    ("change", "distributed", "words"),
    [
        ({"command": "python train.py --fast"}, {}, ("$.entry_script", "'python train.py --fast'", "sm_train.sh")),
        ({"entry_script": None}, {}, ("$.entry_script", "found none")),
        ({"requirements": "deps/gpu.txt"}, {}, ("$.requirements", "'deps/gpu.txt'")),
        ({}, {"process_count_per_node": 0, "smp": None}, ("distributed.json", "$.process_count_per_node")),
        ({}, [1], ("distributed.json", "expected an object")),
    ],
)
def test_what_cannot_be_served_is_said(
    tmp_path: Path, change: dict[str, Any], distributed: Any, words: tuple[str, ...]
) -> None:
    write(tmp_path, {**SOURCE, **change}, distributed)

    with pytest.raises(ContractError) as caught:
        job(tmp_path)

    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        ("train", True),
        ("exec train", True),
        ("exec /opt/toolkit/bin/train", True),
        ("cd sub && exec train", True),
        ("cd 'a b'; exec train --ignored;", True),
        ("NCCL_DEBUG=INFO exec train", True),
        ("export A='b && c'\nexec env B=1 train\n", True),
        ("exec toolkit train", True),
        ("pip install x && train", True),
        ("exec train 2>&1", True),
        ("exec train > log", True),
        ("exec train >log 2>>errors <&-", True),
        ("2>/dev/null train &>log;", True),
        ("pip install x >/dev/null 2>&1; exec train", True),
        ("exec tini -- train", True),
        ("exec /usr/bin/tini -g -p SIGTERM -- /opt/venv/bin/train", True),
        ("exec dumb-init -c train", True),
        ("dumb-init --rewrite 15:2 -- train", True),
        ("exec /usr/bin/env -u A B=1 train", True),
        ("nohup nice -n 5 train >log", True),
        ("A=1 timeout -k 60 3h stdbuf -oL train", True),
        ("exec gosu user toolkit train", True),
        ("exec > log; exec train", True),
        ("#!/bin/bash\n# start\nexec train\n", True),
        ("pip install x  # what it needs\nexec train  # PID 1", True),
        ("exec env A=1 \\\n  train \\\n  --ignored", True),
        ("exec train\n# python after.py", True),
        ("# exec train", False),
        ("python x.py # train", False),
        ("exec > train", False),
        ("exec tini -- python >train", False),
        ("tini", False),
        ("timeout train", False),
        ("env -u train python", False),
        ("train | tee log", False),
        ("exec train >", True),
        ("train && python after.py", False),
        ("exec trainer", False),
        ("python train", False),
        ("echo exec train", False),
        ("exec 'train", False),
        ("exec", False),
        (";", False),
    ],
)
def test_the_last_program_of_a_command_is_train_or_is_not(command: str, is_ours: bool) -> None:
    assert starts_train(command) is is_ours


def test_a_command_of_any_kind_is_ours_where_sm_train_has_started_it(tmp_path: Path) -> None:
    """A start script of the user's: the SDK's own drivers do not run beside a command."""
    write(tmp_path, {**SOURCE, "command": "bash start.sh", "requirements": "deps/gpu.txt"}, TORCHRUN)

    parsed = job(tmp_path, SM_OUTPUT_FAILURE="/opt/ml/output/failure")

    assert (parsed.spec.entry, parsed.strategy.name, parsed.spec.requirements) == (
        "train.py",
        "torch_distributed",
        False,
    )


@pytest.mark.parametrize("command", ["train", "/usr/local/bin/train --ignored", "exec train", "cd x && exec train"])
def test_a_command_that_is_train_runs_what_the_image_names(tmp_path: Path, command: str) -> None:
    write(tmp_path, {**SOURCE, "entry_script": None, "command": command}, TORCHRUN, {"lr": "0.1"})

    parsed = job(tmp_path, SAGEMAKER_TRAINING_MODULE="framework:main")

    assert (parsed.spec.plugin, parsed.spec.entry, parsed.spec.source, parsed.strategy.name) == (
        "framework:main",
        None,
        None,
        "script",
    )
    assert (parsed.argument_style, parsed.spec.hyperparameters) == ("sagemaker", {"lr": 0.1})


def test_a_command_that_is_train_runs_the_script_beside_it_as_the_job_asks(tmp_path: Path) -> None:
    write(tmp_path, {**SOURCE, "command": "train"}, TORCHRUN, {"lr": "0.1"})

    parsed = job(tmp_path)

    assert (parsed.spec.entry, parsed.strategy.name, parsed.argument_style) == (
        SOURCE["entry_script"],
        "torch_distributed",
        "json",
    )


@pytest.mark.parametrize(("requirements", "installs"), [(None, False), ("requirements.txt", True), ("auto", True)])
def test_requirements_are_installed_only_where_the_sender_asks_for_it(
    tmp_path: Path, requirements: str | None, installs: bool
) -> None:
    write(tmp_path, {**SOURCE, "requirements": requirements}, {})

    assert job(tmp_path).spec.requirements is installs


@pytest.mark.parametrize("name", ["sourcecode.json", "distributed.json"])
def test_a_document_of_the_channel_that_cannot_be_looked_at_is_not_absent(tmp_path: Path, name: str) -> None:
    write(tmp_path, SOURCE, TORCHRUN)
    file = tmp_path / "input/data/sm_drivers" / name
    file.unlink()
    file.symlink_to(name)

    with pytest.raises(ContractError, match=rf"{file}: expected a JSON document, found one .*Too many levels"):
        job(tmp_path)
