"""Pure but for one look for an installed package: `model_dir`, by which SageMaker's TensorFlow estimator tells scripts
where models go, as AWS's TensorFlow images treat it (sagemaker-tensorflow-training 20.4, training.py)."""

from collections.abc import Mapping
from typing import Any

from toolkit.job.documents import sagemaker_variables
from toolkit.log import Log

PLUGIN = "sagemaker_tensorflow_container.training:main"
NAME = "model_dir"
TUNING = "_tuning_objective_metric"
LOCAL = "/opt/ml"
REMOTE = "s3://"


def is_tensorflow_job(hyperparameters: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return True if this is a TensorFlow estimator's job: in AWS's image, or with `model_dir` where TensorFlow is
    installed."""
    plugin = environ.get(sagemaker_variables.TRAINING_MODULE)
    if plugin:
        return plugin == PLUGIN
    if not isinstance(hyperparameters.get(NAME), str):
        return False
    import importlib.util  # Costs milliseconds at the start, which only such a job pays.

    return importlib.util.find_spec("tensorflow") is not None


def with_own_folder(hyperparameters: dict[str, Any], job: str, log: Log) -> dict[str, Any]:
    """Return the script's hyperparameters in a job of a tuning job: each job has a `model_dir` of its own.

    A model_dir below /opt/ml, which no other job sees, stays.
    """
    folder = hyperparameters.get(NAME)
    if not isinstance(folder, str) or not folder or folder.startswith(LOCAL) or not job:
        return hyperparameters
    moved = f"{folder.rstrip('/')}/{job}/model"
    log.info(f"model_dir is {moved}: jobs of a tuning job do not share one")
    return {**hyperparameters, NAME: moved}


def defaults(hyperparameters: Mapping[str, Any], region: str) -> dict[str, str]:
    """Return variables for names that nothing else sets: TensorFlow's log level, and for a model_dir in S3 what its
    file system reads (TensorFlow I/O)."""
    folder = hyperparameters.get(NAME)
    environ = {"TF_CPP_MIN_LOG_LEVEL": "1"}
    if isinstance(folder, str) and folder.startswith(REMOTE):
        environ["S3_USE_HTTPS"] = "1"
        if region:
            environ["S3_REGION"] = region
    return environ
