"""A pod of Kubeflow Trainer v2's TrainJob (torch), of the Training Operator's PyTorchJob, or of an MPIJob (mpi_job.py).

The first two set torchrun's own variables (PET_*), which name the leader and count the pods. The other pods' names
follow from the leader's: a TrainJob's leader is NAME-node-0-0.NAME (a JobSet whose replicated job is "node"), a
PyTorchJob's is NAME-master-0 and its workers are NAME-worker-0, ... (kubeflow/trainer v2.3 pkg/constants,
training-operator v1.9 pkg/common). KUBEFLOW_TRAINER_SERVER_URL names the server that takes a TrainJob's status
(rank/hook/kubeflow_progress.py).
"""

import re
from collections.abc import Mapping

from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms import mpi_job
from toolkit.train.platforms.place import (
    STOP_WITHIN_S,
    Place,
    cluster_of,
    job_name,
    listed_hosts,
    number_hosts,
    whole_number,
)

TRAIN_JOB = re.compile(r"(?P<head>(?P<name>.+)-node-\d+-)0(?P<tail>\..+)")
PYTORCH_JOB = re.compile(r"(?P<name>.+)-master-0(?P<tail>\..*)?")
# Removed from the environment: torchrun would read them besides our launcher's arguments.
TORCHRUN_VARIABLES = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_MAX_RESTARTS",
)


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the pod's place; its ranks run under torchrun unless the user asks for another distribution.

    Raises:
        ContractError: the job is elastic, an MPIJob that `train` cannot run, or the variables contradict each other.
    """
    if environ.get("K_MPI_JOB_ROLE"):
        return mpi_job.find(environ, settings)
    count = _count(environ.get("PET_NNODES", "1"))
    rank = next((environ[name] for name in ("PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK") if environ.get(name)), "0")
    node_rank = whole_number(rank, "PET_NODE_RANK", below=count)
    leader = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR") or ""
    if count > 1 and not leader:
        raise ContractError("expected the leader's address, found none", where="PET_MASTER_ADDR")
    addresses: dict[str, str] = {}
    hosts, current = listed_hosts(settings, environ, rank) or ((), "")
    if not hosts:
        hosts, addresses = _hosts(leader, count, node_rank, environ.get("HOSTNAME") or "pod")
        current = hosts[node_rank]
    master = {"MASTER_ADDR": leader, "MASTER_PORT": environ.get("PET_MASTER_PORT", "")} if count > 1 else {}
    return Place(
        cluster=cluster_of(hosts, current, addresses),
        name=_name(leader),
        stop_within_s=STOP_WITHIN_S,
        processes_per_host=_processes(environ.get("PET_NPROC_PER_NODE", "")),
        distribution="torch_distributed",
        environ={name: value for name, value in master.items() if value},
        sidecar="kubeflow_progress" if environ.get("KUBEFLOW_TRAINER_SERVER_URL") else "",
        dropped=(*TORCHRUN_VARIABLES, *(name for name in environ if name.startswith("PET_RDZV_"))),
    )


def _count(text: str) -> int:
    least, colon, most = text.partition(":")
    if colon and least != most:
        hint = "Give the job a fixed number of nodes; TOOLKIT_RESTARTS starts the ranks again after a failure."
        raise ContractError(f"expected a number of nodes, found the range {text}", where="PET_NNODES", hint=hint)
    return whole_number(least, "PET_NNODES", least=1)


def _processes(text: str) -> int | None:
    """Return the number of ranks of each pod; None (decided by devices) for torchrun's "auto", "gpu" and "cpu"."""
    return whole_number(text, "PET_NPROC_PER_NODE", least=1) if text and text not in ("auto", "gpu", "cpu") else None


def _hosts(leader: str, count: int, rank: int, pod: str) -> tuple[tuple[str, ...], dict[str, str]]:
    if count == 1:
        return (pod,), {}
    if train_job := TRAIN_JOB.fullmatch(leader):
        return tuple(f"{train_job['head']}{i}{train_job['tail']}" for i in range(count)), {}
    if pytorch_job := PYTORCH_JOB.fullmatch(leader):
        name, tail = pytorch_job["name"], pytorch_job["tail"] or ""
        return (leader, *(f"{name}-worker-{i}{tail}" for i in range(count - 1))), {}
    return number_hosts(count, rank, leader)


def _name(leader: str) -> str:
    match = TRAIN_JOB.fullmatch(leader) or PYTORCH_JOB.fullmatch(leader)
    return job_name(match["name"]) if match else ""
