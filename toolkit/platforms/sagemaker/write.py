"""SageMaker's documents for a job that SageMaker does not run: `toolkit run` lays them out as files, and on other
platforms scripts are shown the same by SM_*. Pure; `train` itself reads its jobs from none of this.

Names and shapes as seen in jobs of 2026 and in what SageMaker's Python SDK 2.257 sends.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.job.cluster import Group

if TYPE_CHECKING:  # Most jobs have no job file.
    from toolkit.jobfile.spec import Group as AskedGroup
    from toolkit.jobfile.spec import Spec


def hyperparameters(spec: "Spec", submitted: Path, region: str) -> dict[str, str]:
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


def distribution_flags(spec: "Spec") -> dict[str, Any]:
    """Return the hyperparameters that the SDK's estimators make of their `distribution`."""
    asked = spec.distribution
    instance_type = first_type(spec)
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
    if _enabled(asked, "horovod"):
        flags["sagemaker_horovod_enabled"] = True
        flags["sagemaker_mpi_custom_mpi_options"] = asked["horovod"].get("custom_mpi_options", "")
    if _enabled(asked, "pytorchxla"):
        flags["sagemaker_pytorch_xla_multi_worker_enabled"] = True
    if _enabled(asked, "parameter_server"):
        flags["sagemaker_parameter_server_enabled"] = True
    if _enabled(asked, "multi_worker_mirrored_strategy"):
        flags["sagemaker_multi_worker_mirrored_strategy_enabled"] = True
    if asked.get("instance_groups"):
        flags["sagemaker_distribution_instance_groups"] = list(asked["instance_groups"])
    return flags


def inputs(spec: "Spec") -> dict[str, Any]:
    """Return inputdataconfig.json."""
    return {
        channel.name: {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": "ShardedByS3Key" if channel.sharded else "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in spec.channels
    }


def resources(
    current: str, hosts: tuple[str, ...], groups: "Iterable[Group | AskedGroup]", interface: str
) -> dict[str, Any]:
    """Return resourceconfig.json as the host *current* is given it."""
    own = next(group for group in groups if current in group.hosts)
    return {
        "current_host": current,
        "current_instance_type": own.instance_type,
        "current_group_name": own.name,
        "hosts": list(hosts),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": list(group.hosts)}
            for group in groups
        ],
        "network_interface_name": interface,
        "topology": None,
    }


def _enabled(distribution: Mapping[str, Any], name: str) -> bool:
    return bool(distribution.get(name, {}).get("enabled"))


def first_type(spec: "Spec") -> str:
    """Return the instance type of the first group that takes part in the distribution."""
    named = spec.distribution.get("instance_groups") or [spec.groups[0].name]
    return next(group.instance_type for group in spec.groups if group.name == named[0])
