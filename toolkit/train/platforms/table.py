"""The table of platforms, in the order in which `detect` tries them. A platform's module is imported only if chosen.

A platform's own file finds the Place where the job runs. generic.py and sagemaker/ make the JobSpec. assemble.py makes
the Job from the two, our settings and this machine.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from toolkit.folders import may_exist
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.outcome import Outcome
from toolkit.log import Log
from toolkit.records import Record
from toolkit.settings import Settings, unknown, valid


class Reader(Protocol):
    """Reads a platform's variables and documents.

    Raises:
        ContractError: a variable or document is missing or wrong.
    """

    def __call__(
        self,
        environ: Mapping[str, str],
        settings: Settings,
        machine: Machine,
        log: Log,
        *,
        interpreter: str = ...,
        needs_script: bool = ...,
        places: Mapping[str, str] = ...,
    ) -> Job: ...


class Platform(Record, frozen=True, kw_only=True):
    """The functions of a platform that `train` calls. Only `read` raises."""

    name: str
    folders: Callable[[Mapping[str, str]], Folders]
    """Returns the job's folders, before any document is read."""
    clear_stale: Callable[[Folders, Log], None]
    """Removes the reports of an earlier run."""
    read: Reader
    """Returns the job."""
    report: Callable[[Folders, Outcome, Log], None]
    """Reports to the platform how the job ended."""


def detect(environ: Mapping[str, str]) -> Platform:
    """Return the platform that *environ* comes from: TOOLKIT_PLATFORM, else the first row whose check is true."""
    settings = valid(environ)
    name: str = settings.platform
    if name == "auto":
        name = next(name for name, claims in _TABLE.items() if claims(environ))
    return _sagemaker() if name == "sagemaker" else _generic(name, settings)


def read_job(
    platform: Platform,
    environ: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    log: Log,
    *,
    interpreter: str,
    needs_script: bool = True,
    places: Mapping[str, str] = {},
) -> tuple[Job, str]:
    """Return (the job, a warning), and set *log* to the job's level. The job's script is not yet in place.

    The warning names TOOLKIT_* variables of the job's own environment that are not settings; "" without any.
    *needs_script* False: a program names the script later. *places*: where hyperparameters of hyperparameters.json came
    from, for errors.

    Raises:
        ContractError: a document is missing or wrong.
    """
    job = platform.read(
        environ, settings, machine, log, interpreter=interpreter, needs_script=needs_script, places=places
    )
    log.level = job.spec.log_level
    return job, unknown({name: value for name, value in job.environ.items() if name not in environ})


def _is_sagemaker(environ: Mapping[str, str]) -> bool:
    """True if SageMaker's variables are set, or resourceconfig.json exists (Local Mode; `docker run -v`)."""
    from toolkit.job.documents.sagemaker_variables import are_set

    if are_set(environ):
        return True
    return may_exist("/opt/ml/input/config/resourceconfig.json")  # The reader names a folder that cannot be read.


def _is_kubeflow(environ: Mapping[str, str]) -> bool:
    names = ("PET_NNODES", "K_MPI_JOB_ROLE", "KUBEFLOW_TRAINER_SERVER_URL")
    return _is_kubernetes(environ) and any(environ.get(name) for name in names)


def _is_slurm(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_JOB_ID")) and bool(environ.get("SLURM_PROCID"))


def _is_vertex(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("CLUSTER_SPEC") or environ.get("CLOUD_ML_JOB_ID"))


def _is_azureml(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("AZUREML_RUN_ID"))


def _is_kubernetes(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST"))


def _sagemaker() -> Platform:
    from toolkit.train.platforms import outcome_files
    from toolkit.train.platforms.sagemaker import read_job as read

    return Platform(
        name="sagemaker",
        folders=read.folders,
        clear_stale=outcome_files.clear_stale,
        read=read.read,
        report=outcome_files.report,
    )


def _generic(name: str, settings: Settings) -> Platform:
    """Return a platform other than SageMaker. They differ in how the place is found, and pods also write a termination
    message."""
    from functools import partial

    from toolkit.train.platforms import generic, outcome_files

    find = import_module(f"toolkit.train.platforms.{name}").find
    report_end = outcome_files.report
    if name in ("kubernetes", "kubeflow"):
        from toolkit.train.platforms import kubernetes

        report_end = partial(kubernetes.report, settings.termination_log)
    return Platform(
        name=name,
        folders=partial(generic.folders, find=find, settings=settings),
        clear_stale=generic.clear_stale,
        read=partial(generic.read, name, find),
        report=report_end,
    )


# The more specific come first: a Slurm, Vertex AI or Azure job may also run in a pod. A host without any of their
# variables is "plain".
_TABLE: dict[str, Callable[[Mapping[str, str]], bool]] = {
    "sagemaker": _is_sagemaker,
    "kubeflow": _is_kubeflow,
    "slurm": _is_slurm,
    "vertex": _is_vertex,
    "azureml": _is_azureml,
    "kubernetes": _is_kubernetes,
    "plain": lambda _: True,
}
