"""Pure: the documents and the environment that the platform makes for each host before it starts the container.

Names and formats as seen in SageMaker's jobs of 2026 and in requests of its Python SDK 2.257.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.job.documents import sagemaker_variables, writing
from toolkit.job.file.job_file import JobFile
from toolkit.records import Record

BASE = Path("/opt/ml")
REGION = "us-east-1"
ACCOUNT = "000000000000"
# Variables of an outer job or launcher: a host of this job must not use them.
FOREIGN_PREFIXES = ("SM_", sagemaker_variables.PREFIX, "TORCHELASTIC_", "OMPI_", "PMIX_", "PET_", "SLURM_")
FOREIGN_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
FOREIGN_JOBS = (
    "TRAINING_JOB_NAME",
    "TRAINING_JOB_ARN",
    "CURRENT_HOST",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "TOOLKIT_JOB",
)
# What a host cannot find out by itself.
PROVENANCE = ("TOOLKIT_IMAGE", "TOOLKIT_SOURCE_COMMIT", "TOOLKIT_TRACKER_RUN")
FOREIGN_OTHERS = ("TF_CONFIG", "SMDATAPARALLEL_LOCAL_RANK")


class HostSetup(Record, frozen=True, kw_only=True):
    """The place of one host of the job on this machine, and values that all hosts share."""

    host: str  # The host's name.
    base: Path  # Its /opt/ml, on this machine.
    submitted: Path  # The source archive's path as the host sees it.
    port: int  # The rendezvous port.
    cpus: int  # The CPUs of this machine.
    contained: bool = False  # The host is a container.

    @property
    def inside(self) -> Path:
        """The base as the host sees it."""
        return BASE if self.contained else self.base


def resources(job_file: JobFile, host: str) -> dict[str, Any]:
    """Return *host*'s resourceconfig.json. Hosts that are processes of this machine use the loopback interface."""
    return writing.resources(
        host, job_file.hosts, job_file.groups, "eth0" if job_file.run.backend == "docker" else "lo"
    )


def documents(job_file: JobFile, setup: HostSetup, region: str) -> dict[str, Any]:
    """Return the documents in *setup*'s input/config, by file name."""
    files: dict[str, Any] = {
        "hyperparameters.json": writing.hyperparameters(job_file, setup.submitted, region),
        "inputdataconfig.json": writing.inputs(job_file),
        "resourceconfig.json": resources(job_file, setup.host),
        "metric-definition-regex.json": [{"Name": name, "Regex": regex} for name, regex in job_file.metric_definitions],
    }
    if job_file.checkpoints:
        local = str(setup.inside / "checkpoints")
        files["checkpointconfig.json"] = {"LocalPath": local, "S3Uri": job_file.checkpoints.as_uri()}
    return files


def environment(job_file: JobFile, setup: HostSetup, user_environ: Mapping[str, str], region: str) -> dict[str, str]:
    """Return the environment of *setup*'s `train`: the person's *user_environ*, then the platform's variables, then the
    job's.

    A container gets none of the person's variables. OMP_NUM_THREADS is set unless the person set it: the hosts share
    this machine's cores, and otherwise each would use all of them.
    """
    inherited = (
        {} if setup.contained else {name: value for name, value in user_environ.items() if not _is_foreign(name)}
    )
    ranks = len(job_file.hosts) * (job_file.processes_per_host or 1)
    if ranks > 1 and "OMP_NUM_THREADS" not in inherited:
        inherited["OMP_NUM_THREADS"] = str(max(1, setup.cpus // ranks))
    if "TOOLKIT_LOG_PROGRESS" in user_environ:  # How the console of `toolkit run` shows progress bars.
        inherited["TOOLKIT_LOG_PROGRESS"] = user_environ["TOOLKIT_LOG_PROGRESS"]
    inherited["TOOLKIT_MONITOR"] = user_environ.get("TOOLKIT_MONITOR") or ("off" if job_file.monitor is False else "on")
    inherited |= {name: user_environ[name] for name in PROVENANCE if user_environ.get(name)}
    inherited.setdefault("TOOLKIT_LOG_FAILURE", "brief")  # The summary names the failure's cause.
    if job_file.processes_per_host:
        inherited["TOOLKIT_PROCESSES_PER_HOST"] = str(job_file.processes_per_host)
    if job_file.rules is not None:
        inherited["TOOLKIT_RULES"] = job_file.rules_in_source
    if job_file.profiler_rules is not None:
        inherited["TOOLKIT_PROFILER_RULES"] = json.dumps(job_file.profiler_rules)
    platform = {
        "TRAINING_JOB_NAME": job_file.name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{job_file.name}",
        "AWS_REGION": region,
        "TOOLKIT_PROGRAM": job_file.entry,  # An image's own variable for it would win over the documents.
    }
    if not setup.contained:
        platform[sagemaker_variables.BASE_DIR] = str(setup.base)
        if len(job_file.hosts) > 1:  # One host's `train` finds a free port itself, just before the start.
            platform["MASTER_PORT"] = str(setup.port)
        platform["TOOLKIT_HOST_ADDRESSES"] = ",".join(f"{host}=127.0.0.1" for host in job_file.hosts)
    return {**inherited, **platform, **job_file.environment}


def region_of(user_environ: Mapping[str, str]) -> str:
    """Return the region that the person has set, else an existing one."""
    return user_environ.get("AWS_REGION") or user_environ.get("AWS_DEFAULT_REGION") or REGION


def _is_foreign(name: str) -> bool:
    return name in (*FOREIGN_RANKS, *FOREIGN_JOBS, *FOREIGN_OTHERS) or name.startswith(FOREIGN_PREFIXES)
