"""The names of SageMaker's environment variables. A test keeps them out of all other packages' code."""

from collections.abc import Mapping

from toolkit.errors import ContractError
from toolkit.job.cluster import Cluster
from toolkit.job.documents import base_variable
from toolkit.job.strategy import Strategy
from toolkit.patterns import lazy

PREFIX = "SAGEMAKER_"
BASE_DIR = base_variable.BASE_DIR
PROGRAM = "SAGEMAKER_PROGRAM"
SUBMIT_DIRECTORY = "SAGEMAKER_SUBMIT_DIRECTORY"
TRAINING_MODULE = "SAGEMAKER_TRAINING_MODULE"
JOB_NAME = "TRAINING_JOB_NAME"
JOB_ARN = "TRAINING_JOB_ARN"
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_REGION")
LOG_LEVEL = "SAGEMAKER_CONTAINER_LOG_LEVEL"
_MODULE = lazy(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def are_set(environ: Mapping[str, str]) -> bool:
    """Return whether *environ* is that of a SageMaker job."""
    return any(environ.get(name) for name in (BASE_DIR, JOB_NAME, JOB_ARN))


def plugin(environ: Mapping[str, str]) -> str | None:
    """Return the framework plug-in that *environ* names, "module:function"; None without one.

    Raises:
        ContractError: it does not have that form.
    """
    text = environ.get(TRAINING_MODULE)
    if not text:
        return None
    module, _, function = text.partition(":")
    if not _MODULE.fullmatch(module) or not function.isidentifier():
        raise ContractError(f"expected 'module:function', found {text!r}", where=TRAINING_MODULE)
    return text


def for_script(name: str, region: str) -> dict[str, str]:
    """Return the variables with SageMaker's names that scripts get on every platform."""
    return {"SAGEMAKER_JOB_NAME": name, "SAGEMAKER_REGION": region}


def defaults(strategy: Strategy, cluster: Cluster) -> dict[str, str]:
    """Return the variables that scripts get unless set: those that AWS's smddp launcher gives its ranks
    (sagemaker-training 5.1.4, smdataparallel.py)."""
    if strategy.name != "smddp" or cluster.size == 1:
        return {}
    return {"SAGEMAKER_INSTANCE_TYPE": strategy.instance_type or cluster.instance_type}
