"""Pure: the job file for a container, with the code in /opt/ml/code and channels in /opt/ml/input/data.

A manifest contains it as input/config/job.json. It describes the same job as the user's job file. Where a manifest
has no place for a file, the command that starts `train` writes it (`start_script`).
"""

import json
import re
from pathlib import Path
from typing import Any

from toolkit.errors import ContractError
from toolkit.exit_codes import STOPPED, TEMPORARY_FAILURE
from toolkit.job.file.distribution import dictionary
from toolkit.job.file.job_file import JobFile
from toolkit.records import Record

BASE = "/opt/ml"
CODE = f"{BASE}/code"
CONFIG = f"{BASE}/input/config"
DATA = f"{BASE}/input/data"
FILE = "job.json"
# What a claim may hold besides channels, and where.
PLACES = {
    "code": CODE,
    "model": f"{BASE}/model",
    "output": f"{BASE}/output",
    "checkpoints": f"{BASE}/checkpoints",
}
# A name of Kubernetes' objects: a DNS subdomain (https://kubernetes.io/docs/concepts/overview/working-with-objects/names).
OBJECT = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
# 120 s from SIGTERM to SIGKILL as on SageMaker, and 10 s in which `train` writes its reports.
STOP_WITHIN_S = 130
# The line that ends the job file in a shell script; JSON has no such line.
END_OF_FILE = "END_OF_JOB_FILE"
# How often a job is retried after an exit code in RETRIED.
RETRIES = 3
# A host vanished or was not reached, or the job was asked to stop, as pods are before they are moved. Any other failure
# would recur (docs/exit-codes.md).
RETRIED = (TEMPORARY_FAILURE, STOPPED)


class Toleration(Record, frozen=True, kw_only=True):
    """A taint of nodes that pods tolerate. `value`, `effect` "": any."""

    key: str
    value: str = ""
    effect: str = ""


class Choices(Record, frozen=True, kw_only=True):
    """The options of `toolkit render` that a manifest needs besides the job file."""

    image: str = ""
    """The image of the containers."""
    cpus: int = 0
    """CPUs of each host; 0: the image's or the cluster's choice."""
    gpus: int = 0
    """GPUs of each host."""
    gpu_type: str = ""
    """The GPUs' type as SkyPilot and dstack know it, as "A100"; empty: any that dstack has."""
    memory: str = ""
    """Memory of each host, as "64Gi"; empty: the cluster's choice."""
    shm: str = "1Gi"
    """The size of each container's /dev/shm."""
    notice_s: int | None = None
    """Slurm sends the script SIGUSR1 so many seconds before the time limit."""
    user: str = ""
    """The containers' user as UID or UID:GID; empty: the image's own."""
    claims: dict[str, str] = {}
    """Kubernetes: CLAIM or CLAIM/FOLDER by channel (`channel_keys`), or by a name of PLACES."""
    suffix: str = ""
    """Kubernetes: ends the names, so that each run has its own."""
    node_labels: dict[str, str] = {}
    """Kubernetes: labels of the nodes to run on."""
    tolerations: tuple[Toleration, ...] = ()
    """Kubernetes: taints of nodes that the pods tolerate."""
    secrets: tuple[str, ...] = ()
    """Kubernetes: Secrets whose keys are variables of the pods."""
    pull_secrets: tuple[str, ...] = ()
    """Kubernetes: Secrets for the image's registry."""
    service_account: str = ""
    """Kubernetes: the pods' service account."""


def document(job_file: JobFile) -> dict[str, Any]:
    """Return the options of *job_file* with the paths inside a container.

    Raises:
        ContractError: it asks for what only `toolkit run` and SageMaker support, or for a number that JSON has not.
    """
    check(job_file)
    for name, value in job_file.hyperparameters.items():
        _check_finite(name, value)
    options: dict[str, Any] = {
        "name": job_file.name,
        "script": f"{CODE}/{job_file.entry}",
        "source": CODE,
        "processes-per-host": job_file.processes_per_host,
        "distribution": dictionary(job_file.strategy, job_file.distribution_groups),
        "hyperparameter": job_file.hyperparameters,
        "channel": {channel.name: channel.uri or f"{DATA}/{channel.name}" for channel in job_file.channels},
        "metric": dict(job_file.metric_definitions),
        "env": job_file.environment,
        "rules": f"{CODE}/{job_file.rules_in_source}" if job_file.rules else None,
        "monitor": job_file.monitor,
        "profiler-rules": job_file.profiler_rules,
    }
    if len(job_file.groups) > 1:
        options["instance-groups"] = [
            {"name": group.name, "hosts": len(group.hosts), "instance-type": group.instance_type}
            for group in job_file.groups
        ]
    return {option: value for option, value in options.items() if value not in (None, {}, [])}


def _check_finite(name: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        message = f"hyperparameter {name}: expected a finite number, as JSON has, found {value}"
        raise ContractError(message, where="job file", hint=f'Write it as text: {name} = "{value}".') from None


def check(job_file: JobFile) -> None:
    """Raise ContractError if *job_file* needs what no orchestrator supports: Pipe mode, sharded channels, requirements
    or rules outside of the source."""
    for channel in job_file.channels:
        if channel.mode == "Pipe" or channel.sharded:
            unsupported = "Pipe" if channel.mode == "Pipe" else "ShardedByS3Key"
            message = f"expected a folder that every host sees whole, found {unsupported}, which only SageMaker gives"
            raise ContractError(f"channel {channel.name}: {message}", where="job file")
    installed: Path = job_file.source / "requirements.txt"
    if job_file.requirements is not None and job_file.requirements != installed:
        message = f"requirements: expected {installed}, which is installed before the script starts"
        raise ContractError(f"{message}, found {job_file.requirements}", where="job file")
    if job_file.rules is not None and not job_file.rules.is_relative_to(job_file.source):
        message = f"rules: expected a file in the source folder {job_file.source}, found {job_file.rules}"
        raise ContractError(message, where="job file")


def start_script(job_file: JobFile, *, first_host: str, host_index: str, host_count: str) -> str:
    """Return the shell script that writes the job file in a container and becomes `train`.

    The three are the shell's expressions for the leader's address, this host's number from 0 and the number of hosts;
    they are left out for a job of one host. What else the machine runs on (a pod, a node of Slurm) says nothing about
    the job's hosts, so the platform is plain.
    """
    lines = ["export TOOLKIT_PLATFORM=plain"]
    if len(job_file.hosts) > 1:
        lines.append(f"export MASTER_ADDR={first_host} NODE_RANK={host_index} NNODES={host_count}")
    text = json.dumps(document(job_file), indent=2, ensure_ascii=False)
    lines += [f"mkdir -p {CONFIG}", f"cat >{CONFIG}/{FILE} <<'{END_OF_FILE}'", text, END_OF_FILE, "exec train"]
    return "\n".join(lines) + "\n"


def check_image(choices: Choices) -> None:
    """Raise ContractError without an image."""
    if not choices.image:
        raise ContractError("expected the image that has the toolkit, found none", where="--image")


def check_hosts_have(job_file: JobFile, *, uploads_channels: bool = False) -> None:
    """Raise ContractError if the job needs what hosts without shared folders lack: hosts of several kinds, a folder of
    checkpoints, or (unless the tool uploads them) channels that are folders of this machine."""
    if len(job_file.groups) > 1:
        message = f"expected one instance group, found {len(job_file.groups)}"
        raise ContractError(
            message, where="job file", hint="Of the manifests, jobset alone has hosts of several kinds."
        )
    if job_file.checkpoints is not None:
        hint = "Set TOOLKIT_CHECKPOINT_URI in the job file's env to keep checkpoints in storage (docs/storage.md)."
        message = f"checkpoints: expected none, found {job_file.checkpoints}, which the job's hosts do not have"
        raise ContractError(message, where="job file", hint=hint)
    for channel in job_file.channels:
        if not channel.uri and not uploads_channels:
            message = f"channel {channel.name}: expected an address in storage, found {channel.folder}"
            hint = "Copy it to storage and name it as s3://BUCKET/KEY: `train` fetches it."
            raise ContractError(message, where="job file", hint=hint)


def mebibytes(size: str) -> int:
    """Return *size*, as 64Gi, in MiB, at least 1."""
    kibibytes: int = int(size[:-2]) * 1024 ** "KMGT".index(size[-2])
    return max(1, kibibytes // 1024)


def lower_name(job_file: JobFile, most: int) -> str:
    """Return the job's name in lower case, with - for all else than letters and digits, at most *most* characters."""
    name = re.sub("[^a-z0-9]+", "-", job_file.name.lower())[:most].strip("-")
    return name if name[:1].isalpha() else f"job-{name}"[:most].strip("-")


def channel_keys(job_file: JobFile) -> dict[str, str]:
    """Return how `claims` names each channel of *job_file*."""
    return {
        channel.name: f"channel.{channel.name}" * (channel.name in PLACES) or channel.name
        for channel in job_file.channels
    }


def checked_claims(job_file: JobFile, choices: Choices) -> dict[str, tuple[str, str]]:
    """Return (claim, folder in the claim) for each name that has a claim.

    Raises:
        ContractError: a channel has no claim, a claim's name is not one of the job's, or it is no claim's name.
    """
    keys = channel_keys(job_file)
    claimable = (*PLACES, *keys.values())
    for name in choices.claims:
        if name not in claimable:
            raise ContractError(f"expected one of {', '.join(claimable)}, found {name!r}", where="--claim")
    # `train` fetches a channel that is in storage, unless a claim holds it.
    needed = [keys[channel.name] for channel in job_file.channels if not channel.uri] + ["checkpoints"] * (
        job_file.checkpoints is not None
    )
    for name in needed:
        if name not in choices.claims:
            hint = f"Name the persistent volume claim that holds it: --claim {name}=CLAIM or {name}=CLAIM/FOLDER."
            raise ContractError(f"expected a claim for {name}, found none", where="--claim", hint=hint)
    return {name: _parse_claim(name, text) for name, text in choices.claims.items()}


def _parse_claim(name: str, text: str) -> tuple[str, str]:
    claim, _, folder = text.partition("/")
    folder = folder.strip("/")
    if not OBJECT.fullmatch(claim) or ".." in folder.split("/"):
        message = f"expected {name}=CLAIM or {name}=CLAIM/FOLDER, the claim of a-z 0-9 . and -, the folder without .."
        raise ContractError(f"{message}, found {text!r}", where="--claim")
    return claim, folder
