import json
from pathlib import Path
from typing import Any

import pytest

from tests.job.file.made import job_file
from toolkit.errors import ContractError
from toolkit.job.channel import Channel
from toolkit.job.documents import writing


def test_every_hyperparameter_is_json_in_a_string() -> None:
    job = job_file(
        hyperparameters={"epochs": 5, "optimizer": "adam", "lr": 1e-5, "x": None, "flag": True, "l": [1, "a"]}
    )

    hyperparameters = writing.hyperparameters(job, Path("/j/sourcedir.tar.gz"), "eu-west-1")

    assert hyperparameters == {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"/j/sourcedir.tar.gz"',
        "sagemaker_container_log_level": "20",
        "sagemaker_job_name": '"job"',
        "sagemaker_region": '"eu-west-1"',
        "epochs": "5",
        "optimizer": '"adam"',
        "lr": "1e-05",
        "x": "null",
        "flag": "true",
        "l": '[1, "a"]',
    }


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("sagemaker_program", "x.py", "toolkit run SCRIPT"),
        ("sagemaker_submit_directory", "s3://bucket/source.tar.gz", "--source"),
        ("sagemaker_job_name", "other", "--name"),
        ("sagemaker_region", "eu-west-1", "AWS_REGION"),
        ("sagemaker_program", "train.py", ""),
        ("sagemaker_job_name", "job", ""),
        ("sagemaker_container_log_level", 10, ""),
        ("sagemaker_s3_output", "s3://bucket/out", ""),
        ("sagemaker_mpi_enabled", True, ""),
    ],
)
def test_a_hyperparameter_that_contradicts_what_the_job_says_itself_is_refused(
    name: str, value: Any, hint: str
) -> None:
    job = job_file(hyperparameters={name: value})

    if not hint:
        assert writing.hyperparameters(job, Path("/s.tar.gz"), "us-east-1")[name] == json.dumps(value)
        return
    with pytest.raises(ContractError) as caught:
        writing.hyperparameters(job, Path("/s.tar.gz"), "us-east-1")
    assert str(caught.value).startswith(f"hyperparameter {name}: expected none, as the job itself says this, found ")
    assert hint in str(caught.value)


LOCAL = {"sagemaker_instance_type": "local"}


@pytest.mark.parametrize(
    ("distribution", "flags"),
    [
        ({}, {}),
        ("pytorchddp", {"sagemaker_pytorch_ddp_enabled": True, **LOCAL}),
        ("torch_distributed", {"sagemaker_torch_distributed_enabled": True, **LOCAL}),
        (
            "smddp",
            {
                "sagemaker_distributed_dataparallel_enabled": True,
                **LOCAL,
                "sagemaker_distributed_dataparallel_custom_mpi_options": "",
            },
        ),
        ("mpi", {"sagemaker_mpi_enabled": True, "sagemaker_mpi_custom_mpi_options": ""}),
        (
            {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A"}},
            {
                "sagemaker_mpi_enabled": True,
                "sagemaker_mpi_num_of_processes_per_host": 8,
                "sagemaker_mpi_custom_mpi_options": "-x A",
            },
        ),
        ("pytorchxla", {"sagemaker_pytorch_xla_multi_worker_enabled": True}),
        ("parameter_server", {"sagemaker_parameter_server_enabled": True}),
        (
            "multi_worker_mirrored_strategy",
            {"sagemaker_multi_worker_mirrored_strategy_enabled": True},
        ),
        (
            {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"p": 2}}}, "mpi": {"enabled": True}},
            {
                "sagemaker_distributed_dataparallel_enabled": False,
                **LOCAL,
                "mp_parameters": {"p": 2},
                "sagemaker_mpi_enabled": True,
                "sagemaker_mpi_custom_mpi_options": "",
            },
        ),
        ({"pytorchddp": {"enabled": False}}, {}),
    ],
)
def test_a_distribution_becomes_the_flags_that_the_sdk_makes_of_it(
    distribution: str | dict[str, Any], flags: dict[str, Any]
) -> None:
    assert writing.distribution_flags(job_file(distribution=distribution)) == flags


def test_channels_are_told_with_mode_and_distribution() -> None:
    channels = (
        Channel(name="train", folder=Path("/d"), mode="Pipe", sharded=True),
        Channel(name="test", folder=Path("/d")),
    )

    assert writing.inputs(job_file(channels=channels)) == {
        "train": {"TrainingInputMode": "Pipe", "S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "None"},
        "test": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"},
    }
