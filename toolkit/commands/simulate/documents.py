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
FOREIGN_OTHERS = ("TF_CONFIG", "SMDATAPARALLEL_LOCAL_RANK")


class HostSetup(Record, frozen=True, kw_only=True):
    """Where one host of the job lives on this machine, and values that all hosts share.

    `submitted`: the source archive's path as the host sees it. `port`: the rendezvous port. `cpus`: this machine's.
    """

    host: str
    base: Path
    submitted: Path
    port: int
    cpus: int
    contained: bool = False

    @property
    def inside(self) -> Path:
        """The base as the host sees it."""
        return BASE if self.contained else self.base


def resources(asked: JobFile, host: str) -> dict[str, Any]:
    """Return *host*'s resourceconfig.json. Hosts that are processes of this machine use the loopback interface."""
    return writing.resources(host, asked.hosts, asked.groups, "eth0" if asked.run.backend == "docker" else "lo")


def documents(asked: JobFile, setup: HostSetup, region: str) -> dict[str, Any]:
    """Return the documents in *setup*'s input/config, by file name."""
    files: dict[str, Any] = {
        "hyperparameters.json": writing.hyperparameters(asked, setup.submitted, region),
        "inputdataconfig.json": writing.inputs(asked),
        "resourceconfig.json": resources(asked, setup.host),
        "metric-definition-regex.json": [
            {"Name": name, "Regex": regex} for name, regex in asked.spec.metric_definitions
        ],
    }
    if asked.spec.checkpoints:
        local = str(setup.inside / "checkpoints")
        files["checkpointconfig.json"] = {"LocalPath": local, "S3Uri": asked.spec.checkpoints.as_uri()}
    return files


def environment(asked: JobFile, setup: HostSetup, own: Mapping[str, str], region: str) -> dict[str, str]:
    """Return the environment of *setup*'s `train`: the person's *own*, then the platform's variables, then the job's.

    A container gets none of the person's variables. OMP_NUM_THREADS is set unless the person set it: the hosts share
    this machine's cores, and otherwise each would use all of them.
    """
    kept = {} if setup.contained else {name: value for name, value in own.items() if not _is_foreign(name)}
    ranks = len(asked.hosts) * (asked.spec.processes_per_host or 1)
    if ranks > 1 and "OMP_NUM_THREADS" not in kept:
        kept["OMP_NUM_THREADS"] = str(max(1, setup.cpus // ranks))
    if "TOOLKIT_LOG_PROGRESS" in own:  # How the console of `toolkit run` shows progress bars.
        kept["TOOLKIT_LOG_PROGRESS"] = own["TOOLKIT_LOG_PROGRESS"]
    kept["TOOLKIT_MONITOR"] = own.get("TOOLKIT_MONITOR") or ("off" if asked.spec.monitor is False else "on")
    kept.setdefault("TOOLKIT_LOG_FAILURE", "brief")  # The summary names the failure's cause.
    if asked.spec.processes_per_host:
        kept["TOOLKIT_PROCESSES_PER_HOST"] = str(asked.spec.processes_per_host)
    if asked.spec.rules is not None:
        kept["TOOLKIT_RULES"] = asked.rules_in_source
    if asked.spec.profiler_rules is not None:
        kept["TOOLKIT_PROFILER_RULES"] = json.dumps(asked.spec.profiler_rules)
    platform = {
        "TRAINING_JOB_NAME": asked.spec.name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{region}:{ACCOUNT}:training-job/{asked.spec.name}",
        "AWS_REGION": region,
        "TOOLKIT_PROGRAM": asked.entry,  # An image's own variable for it would win over the documents.
    }
    if not setup.contained:
        platform[sagemaker_variables.BASE_DIR] = str(setup.base)
        if len(asked.hosts) > 1:  # One host's `train` finds a free port itself, just before the start.
            platform["MASTER_PORT"] = str(setup.port)
        platform["TOOLKIT_HOST_ADDRESSES"] = ",".join(f"{host}=127.0.0.1" for host in asked.hosts)
    return {**kept, **platform, **asked.spec.environment}


def region_of(own: Mapping[str, str]) -> str:
    """Return the region that the person has set, else an existing one."""
    return own.get("AWS_REGION") or own.get("AWS_DEFAULT_REGION") or REGION


def _is_foreign(name: str) -> bool:
    return name in (*FOREIGN_RANKS, *FOREIGN_JOBS, *FOREIGN_OTHERS) or name.startswith(FOREIGN_PREFIXES)
