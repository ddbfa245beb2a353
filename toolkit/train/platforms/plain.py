"""A host without an orchestrator: TOOLKIT_HOSTS, or MASTER_ADDR, NODE_RANK and WORLD_SIZE, describe the job's hosts."""

from collections.abc import Mapping

from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms.place import Place, cluster_of, listed_hosts, number_hosts, whole_number

# The variables that hold a job's number of hosts: torchrun's name, Azure ML's, and Slurm's in a shell of salloc.
COUNTS = ("NNODES", "AZUREML_NODE_COUNT", "SLURM_JOB_NUM_NODES")


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the host's place: by TOOLKIT_HOSTS; else by MASTER_ADDR, NODE_RANK and the number of hosts; else alone.

    The number of hosts is NNODES, else WORLD_SIZE / LOCAL_WORLD_SIZE. If LOCAL_WORLD_SIZE is missing it is WORLD_SIZE:
    systems that set only that start one process on each host.

    Raises:
        ContractError: the variables contradict each other.
    """
    rank = environ.get("NODE_RANK", "")
    listed = listed_hosts(settings, environ, rank)
    if listed is not None:
        return Place(cluster=cluster_of(*listed), stopped_by_engine=True)
    count = _count(environ) if rank and environ.get("MASTER_ADDR") else 1
    if count == 1:
        host = environ.get("HOSTNAME") or "localhost"
        return Place(cluster=cluster_of((host,), host), stopped_by_engine=True, notes=_notes(environ))
    node_rank = whole_number(rank, "NODE_RANK", below=count)
    hosts, addresses = number_hosts(count, node_rank, environ["MASTER_ADDR"])
    return Place(cluster=cluster_of(hosts, hosts[node_rank], addresses), stopped_by_engine=True)


def _notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note for the log if the job has more hosts, and nothing says which of them this is."""
    for name in COUNTS:
        count = environ.get(name, "")
        if count.isascii() and count.isdigit() and count.lstrip("0") not in ("", "1"):
            missing = " and ".join(name for name in ("MASTER_ADDR", "NODE_RANK") if not environ.get(name))
            how = "srun --ntasks-per-node=1 train" if name.startswith("SLURM_") else f"set {missing}, or TOOLKIT_HOSTS"
            return (f"{name}={count[:20]}, but nothing says which of these hosts this is: it trains by itself ({how})",)
    return ()


def _count(environ: Mapping[str, str]) -> int:
    if environ.get("NNODES"):
        return whole_number(environ["NNODES"], "NNODES", least=1)
    ranks = whole_number(environ.get("WORLD_SIZE", "1"), "WORLD_SIZE", least=1)
    per_host = whole_number(environ.get("LOCAL_WORLD_SIZE", "1"), "LOCAL_WORLD_SIZE", least=1)
    if ranks % per_host:
        raise ContractError(f"expected a multiple of LOCAL_WORLD_SIZE, {per_host}, found {ranks}", where="WORLD_SIZE")
    return ranks // per_host
