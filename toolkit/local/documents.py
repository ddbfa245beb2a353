"""What the platform writes for each host before it starts the container: documents and environment. Pure.

Names and shapes as seen in jobs of 2026 and in what SageMaker's Python SDK 2.257 sends.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.local.spec import SHARDED, Spec
from toolkit.records import Record

REGION = "us-east-1"
ACCOUNT = "000000000000"
# Variables of an outer job or launcher: a host of this job must not take them for its own.
FOREIGN_PREFIXES = ("SM_", "SAGEMAKER_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PET_", "SLURM_")
FOREIGN_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TF_CONFIG")
FOREIGN_JOBS = ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "CURRENT_HOST", "MASTER_ADDR", "MASTER_PORT")


class Place(Record, frozen=True, kw_only=True):
    """Where one host of the job lives on this machine, and what all hosts share."""

    host: str
    base: Path
    submitted: Path
    port: int
    cpus: int


def hyperparameters(spec: Spec, submitted: Path, region: str) -> dict[str, str]:
    """Return hyperparameters.json: the user's and the SDK's own, each value JSON in a string."""
    ours = {
        "sagemaker_program": spec.entry,
        "sagemaker_submit_directory": str(submitted),
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": spec.name,
        "sagemaker_region": region,
    }
    values = {**ours, **distribution_flags(spec), **spec.hyperparameters}
    return {name: json.dumps(value) for name, value in values.items()}


def distribution_flags(spec: Spec) -> dict[str, Any]:
    """Return the hyperparameters that the SDK's estimators make of their `distribution`."""
    asked = spec.distribution
    instance_type = _first_group_type(spec)
    flags: dict[str, Any] = {}
    if _enabled(asked, "pytorchddp"):
        flags |= {"sagemaker_pytorch_ddp_enabled": True, "sagemaker_instance_type": instance_type}
    if _enabled(asked, "torch_distributed"):
        flags |= {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": instance_type}
    smart = asked.get("smdistributed", {})
    if "dataparallel" in smart or "modelparallel" in smart:
        flags["sagemaker_distributed_dataparallel_enabled"] = _enabled(smart, "dataparallel")
        flags["sagemaker_instance_type"] = instance_type
    if _enabled(smart, "dataparallel"):
        options = smart["dataparallel"].get("custom_mpi_options", "")
        flags["sagemaker_distributed_dataparallel_custom_mpi_options"] = options
    if _enabled(smart, "modelparallel"):
        flags["mp_parameters"] = smart["modelparallel"].get("parameters", {})
    if _enabled(asked, "mpi"):
        flags["sagemaker_mpi_enabled"] = True
        processes = spec.processes_per_host or asked["mpi"].get("processes_per_host")
        if processes:
            flags["sagemaker_mpi_num_of_processes_per_host"] = processes
        flags["sagemaker_mpi_custom_mpi_options"] = asked["mpi"].get("custom_mpi_options", "")
    if _enabled(asked, "pytorchxla"):
        flags["sagemaker_pytorch_xla_multi_worker_enabled"] = True
    if _enabled(asked, "parameter_server"):
        flags["sagemaker_parameter_server_enabled"] = True
    if _enabled(asked, "multi_worker_mirrored_strategy"):
        flags["sagemaker_multi_worker_mirrored_strategy_enabled"] = True
    if asked.get("instance_groups"):
        flags["sagemaker_distribution_instance_groups"] = list(asked["instance_groups"])
    return flags


def resources(spec: Spec, host: str) -> dict[str, Any]:
    """Return resourceconfig.json as *host* is given it. All hosts are on this machine, so they meet on loopback."""
    group = spec.group_of(host)
    return {
        "current_host": host,
        "current_instance_type": group.instance_type,
        "current_group_name": group.name,
        "hosts": list(spec.hosts),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": list(group.hosts)}
            for group in spec.groups
        ],
        "network_interface_name": "lo",
        "topology": None,
    }


def inputs(spec: Spec) -> dict[str, Any]:
    """Return inputdataconfig.json."""
    return {
        channel.name: {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": SHARDED if channel.sharded else "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in spec.channels
    }


def documents(spec: Spec, place: Place, region: str) -> dict[str, Any]:
    """Return every document in input/config of *place*, by file name."""
    files: dict[str, Any] = {
        "hyperparameters.json": hyperparameters(spec, place.submitted, region),
        "inputdataconfig.json": inputs(spec),
        "resourceconfig.json": resources(spec, place.host),
        "metric-definition-regex.json": [{"Name": name, "Regex": regex} for name, regex in spec.metrics],
    }
    if spec.checkpoints:
        local = str(place.base / "checkpoints")
        files["checkpointconfig.json"] = {"LocalPath": local, "S3Uri": spec.checkpoints.as_uri()}
    return files


def environment(spec: Spec, place: Place, own: Mapping[str, str], region: str) -> dict[str, str]:
    """Return the environment of *place*'s `train`: the person's *own*, what the platform sets, then what the job asks.

    OMP_NUM_THREADS is set where nobody did: the hosts share this machine's cores, and each would take all of them.
    """
    kept = {name: value for name, value in own.items() if not _is_foreign(name)}
    ranks = len(spec.hosts) * (spec.processes_per_host or 1)
    if ranks > 1 and "OMP_NUM_THREADS" not in kept:
        kept["OMP_NUM_THREADS"] = str(max(1, place.cpus // ranks))
    if spec.processes_per_host:
        kept["TOOLKIT_PROCESSES_PER_HOST"] = str(spec.processes_per_host)
    platform = {
        "SAGEMAKER_BASE_DIR": str(place.base),
        "TRAINING_JOB_NAME": spec.name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{spec.name}",
        "AWS_REGION": region,
        "MASTER_PORT": str(place.port),
        "TOOLKIT_HOST_ADDRESSES": ",".join(f"{host}=127.0.0.1" for host in spec.hosts),
    }
    return {**kept, **platform, **spec.environment}


def region_of(own: Mapping[str, str]) -> str:
    """Return the region a person works in, else one that exists."""
    return own.get("AWS_REGION") or own.get("AWS_DEFAULT_REGION") or REGION


def _enabled(distribution: Mapping[str, Any], name: str) -> bool:
    return bool(distribution.get(name, {}).get("enabled"))


def _first_group_type(spec: Spec) -> str:
    named = spec.distribution.get("instance_groups") or [spec.groups[0].name]
    return next(group.instance_type for group in spec.groups if group.name == named[0])


def _is_foreign(name: str) -> bool:
    return name in (*FOREIGN_RANKS, *FOREIGN_JOBS) or name.startswith(FOREIGN_PREFIXES)
