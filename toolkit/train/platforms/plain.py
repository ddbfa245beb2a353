"""A host without an orchestrator: TOOLKIT_HOSTS, or MASTER_ADDR, NODE_RANK and WORLD_SIZE, describe the job's hosts."""

from collections.abc import Mapping

from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms.place import Place, asked_hosts, number, numbered

# What says how many hosts a job has: torchrun's name, Azure ML's, and Slurm's in a shell of salloc.
COUNTS = ("NNODES", "AZUREML_NODE_COUNT", "SLURM_JOB_NUM_NODES")


def find(environ: Mapping[str, str], ours: Settings) -> Place:
    """Return the host's place: by TOOLKIT_HOSTS; else by MASTER_ADDR, NODE_RANK and the number of hosts; else alone.

    The number of hosts is NNODES, else WORLD_SIZE / LOCAL_WORLD_SIZE. If LOCAL_WORLD_SIZE is missing it is WORLD_SIZE:
    systems that set only that start one process on each host.

    Raises:
        ContractError: the variables contradict each other.
    """
    rank = environ.get("NODE_RANK", "")
    asked = asked_hosts(ours, environ, rank)
    if asked is not None:
        return Place(hosts=asked[0], current=asked[1], stopped_by_engine=True)
    count = _count(environ) if rank and environ.get("MASTER_ADDR") else 1
    if count == 1:
        own = environ.get("HOSTNAME") or "localhost"
        return Place(hosts=(own,), current=own, stopped_by_engine=True, notes=_notes(environ))
    at = number(rank, "NODE_RANK", below=count)
    hosts, addresses = numbered(count, at, environ["MASTER_ADDR"])
    return Place(hosts=hosts, current=hosts[at], addresses=addresses, stopped_by_engine=True)


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
        return number(environ["NNODES"], "NNODES", least=1)
    ranks = number(environ.get("WORLD_SIZE", "1"), "WORLD_SIZE", least=1)
    each = number(environ.get("LOCAL_WORLD_SIZE", "1"), "LOCAL_WORLD_SIZE", least=1)
    if ranks % each:
        raise ContractError(f"expected a multiple of LOCAL_WORLD_SIZE, {each}, found {ranks}", where="WORLD_SIZE")
    return ranks // each
