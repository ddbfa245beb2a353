"""Pure: makes SageMaker's documents for jobs that SageMaker does not run. `toolkit run` writes them as files, and on
other platforms the SM_* variables show their content to scripts. `train` itself never reads a job from them there.

Names and formats as seen in SageMaker's jobs of 2026 and in requests of its Python SDK 2.257.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ContractError
from toolkit.job.cluster import Group
from toolkit.job.documents import parameters
from toolkit.job.strategy import STRATEGIES

if TYPE_CHECKING:  # Most jobs have no job file.
    from toolkit.job.file.job_file import JobFile

# Hyperparameters that `toolkit run` writes itself, and how a user sets each.
OPTION_HINTS = {
    parameters.PROGRAM: "Name the script itself: toolkit run SCRIPT, or script in the job file.",
    parameters.SUBMITTED: "The folder of the code is --source, or source in the job file.",
    parameters.JOB_NAME: "The job's name is --name, or name in the job file.",
    parameters.REGION: "Set AWS_REGION.",
}
# The strategies for which the SDK also sends the instance type.
TYPED = ("pytorchddp", "torch_distributed", "smddp")


def hyperparameters(file: "JobFile", submitted: Path, region: str) -> dict[str, str]:
    """Return hyperparameters.json: the user's hyperparameters and the SDK's own, each value JSON in a string.

    Raises:
        ContractError: a hyperparameter of the user's contradicts a part of the job, and would win or be ignored.
    """
    platform = {
        parameters.PROGRAM: file.entry,
        parameters.SUBMITTED: str(submitted),
        parameters.LOG_LEVEL: 20,
        parameters.JOB_NAME: file.name,
        parameters.REGION: region,
    }
    for name, value in file.hyperparameters.items():
        if name in OPTION_HINTS and value != platform[name]:
            message = f"expected none, as the job itself says this, found {value!r}"
            raise ContractError(message, where=file.hyperparameter_places[name], hint=OPTION_HINTS[name])
    values = {**platform, **distribution_flags(file), **file.hyperparameters}
    return {name: json.dumps(value) for name, value in values.items()}


def distribution_flags(file: "JobFile") -> dict[str, Any]:
    """Return the hyperparameters that the SDK's estimators make of their `distribution`."""
    strategy = file.strategy
    flags: dict[str, Any] = {}
    if strategy.name != "script":
        flags |= {parameters.FLAGS[name]: True for name in (strategy.name, *strategy.ignored)}
    if strategy.model_parallel is not None:
        flags.setdefault(parameters.FLAGS["smddp"], False)
        flags[parameters.MODEL_PARALLEL] = strategy.model_parallel
    if strategy.name in TYPED or strategy.model_parallel is not None:
        flags[parameters.INSTANCE_TYPE] = file.first_type
    if strategy.name == "mpi" and (processes := file.processes_per_host or strategy.processes_per_host):
        flags[parameters.PROCESSES_PER_HOST] = processes
    if STRATEGIES[strategy.name].may_use_mpirun or strategy.mpirun_options:
        flags[parameters.mpirun_options(strategy.name)] = strategy.mpirun_options
    if file.distribution_groups:
        flags[parameters.GROUPS] = list(file.distribution_groups)
    return flags


def inputs(file: "JobFile") -> dict[str, Any]:
    """Return inputdataconfig.json."""
    return {
        channel.name: {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": "ShardedByS3Key" if channel.sharded else "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for channel in file.channels
    }


def resources(current: str, hosts: tuple[str, ...], groups: Iterable[Group], interface: str) -> dict[str, Any]:
    """Return resourceconfig.json for the host *current*."""
    group_of_host = next(group for group in groups if current in group.hosts)
    return {
        "current_host": current,
        "current_instance_type": group_of_host.instance_type,
        "current_group_name": group_of_host.name,
        "hosts": list(hosts),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": list(group.hosts)}
            for group in groups
        ],
        "network_interface_name": interface,
        "topology": None,
    }
