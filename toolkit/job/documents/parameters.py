"""The names of the platform's own hyperparameters, and what sets them apart from the user's.

job_spec.py reads them, writing.py writes them.
"""

import json
from collections.abc import Mapping
from typing import Any

from toolkit.job.documents import model_dir
from toolkit.job.strategy import STRATEGIES, StrategyName

PROGRAM = "sagemaker_program"
SUBMITTED = "sagemaker_submit_directory"
JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"
LOG_LEVEL = "sagemaker_container_log_level"
OUTPUT = "sagemaker_s3_output"
# Hyperparameters of the platform that SM_FRAMEWORK_PARAMS leaves out (sagemaker-training 5.1.4, params.py).
RESERVED = frozenset(
    (
        PROGRAM,
        SUBMITTED,
        "sagemaker_enable_cloudwatch_metrics",
        REGION,
        LOG_LEVEL,
        JOB_NAME,
        "default_user_module_name",
        model_dir.TUNING,
        OUTPUT,
    )
)
# The flag of each strategy. If several are on, the first wins.
FLAGS: dict[StrategyName, str] = {name: f"sagemaker_{row.sdk_flag}" for name, row in STRATEGIES.items() if row.sdk_flag}
PROCESSES = "sagemaker_mpi_num_processes"
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
INSTANCE_TYPE = "sagemaker_instance_type"
GROUPS = "sagemaker_distribution_instance_groups"
MODEL_PARALLEL = "mp_parameters"
# TrainingCompilerConfig(enabled=True, debug=False) of sagemaker-python-sdk 2.x.
COMPILER = "sagemaker_training_compiler_enabled"
COMPILER_DEBUG = "sagemaker_training_compiler_debug_mode"
MPIRUN_OPTIONS = "sagemaker_mpi_custom_mpi_options"
SMDDP_MPIRUN_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"

# Every name that is read, beside those that say which script runs.
KNOWN = frozenset(
    (
        *FLAGS.values(),
        PROCESSES,
        PROCESSES_PER_HOST,
        INSTANCE_TYPE,
        GROUPS,
        COMPILER,
        COMPILER_DEBUG,
        MPIRUN_OPTIONS,
        SMDDP_MPIRUN_OPTIONS,
    )
)
# Where a client may have put them for a strategy that AWS's images start as they start smddp.
ANY_MPIRUN_OPTIONS = (MPIRUN_OPTIONS, SMDDP_MPIRUN_OPTIONS)


def mpirun_options(strategy: StrategyName) -> str:
    """Return the name of the hyperparameter that holds the user's options for *strategy*'s mpirun."""
    return SMDDP_MPIRUN_OPTIONS if strategy == "smddp" else MPIRUN_OPTIONS


def is_platforms(name: str) -> bool:
    """Return True if the hyperparameter *name* is the platform's own, and not one of the user's script."""
    return name in RESERVED or name.startswith("sagemaker_")


def decode_values(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return *hyperparameters* with each string decoded as JSON once. Strings that are not JSON and other values stay.

    SageMaker's SDK writes every value as JSON in a string; other clients write plain text. NaN and Infinity count as
    JSON, as in Python's json.
    """
    return {name: _decode(value) if isinstance(value, str) else value for name, value in hyperparameters.items()}


def split(hyperparameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the user's, SM_FRAMEWORK_PARAMS) of decoded hyperparameters."""
    user = {name: value for name, value in hyperparameters.items() if not is_platforms(name)}
    platform = {name: value for name, value in hyperparameters.items() if is_platforms(name) and name not in RESERVED}
    return user, platform


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
