"""A rank's position in the job, read from torchrun's or mpirun's variables."""

from collections.abc import Mapping
from typing import NamedTuple

# Each family: (rank, size, local rank, local size). torchrun's wins, because the job may set those variables itself.
FAMILIES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class RankPosition(NamedTuple):
    """A rank's numbers; a single process is rank 0 of 1."""

    rank: int = 0
    """The number among all ranks."""
    size: int = 1
    """The number of ranks."""
    local_rank: int = 0
    """The number among the ranks of this host."""
    local_size: int = 1
    """The number of ranks on this host."""
    launcher: str = ""
    """"torchrun", "mpirun" or "" (none)."""


def rank_position(environ: Mapping[str, str]) -> RankPosition:
    """Return the position that *environ* describes; missing local numbers mean one rank per host."""
    for family in FAMILIES:
        texts = [environ.get(name, "") for name in family]
        if texts[0].isdigit() and texts[1].isdigit():
            rank, size, local_rank, local_size = (int(value) if value.isdigit() else None for value in texts)
            launcher = "torchrun" if family is FAMILIES[0] else "mpirun"
            return RankPosition(rank or 0, size or 1, local_rank or 0, local_size or 1, launcher)
    return RankPosition()


def missing_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch's env:// reads and mpirun does not set: RANK, WORLD_SIZE and the local two.

    `train` sets MASTER_ADDR and MASTER_PORT; they are added only for ranks that it did not start.
    """
    position = rank_position(environ)
    if position.launcher != "mpirun":
        return {}
    values = {name: str(value) for name, value in zip(FAMILIES[0], position[:4], strict=True)}
    if "MASTER_ADDR" not in environ:
        values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": environ.get("MASTER_PORT", "7777")}
    return {name: value for name, value in values.items() if name not in environ}


def ignored_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of AWS's library in *environ* without effect here, except those that every job gets."""
    ordinary_names = ("USE_HOMOGENEOUS", "USE_SINGLENODE", "SERVER_ADDR", "SERVER_PORT", "OPTIMIZE_SDP", "LOCAL_RANK")
    ordinary = {f"SMDATAPARALLEL_{name}" for name in ordinary_names}
    return tuple(sorted(name for name in environ.keys() - ordinary if name.startswith(("SMDATAPARALLEL_", "SMDDP_"))))
