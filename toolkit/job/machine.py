"""This machine, as seen once at the start."""

from typing import Literal

from toolkit.records import Record


class Mpi(Record, frozen=True, kw_only=True):
    """The mpirun of this machine. openmpi5: PRRTE starts its ranks (Open MPI 5 and later); mpich: Hydra does."""

    kind: Literal["openmpi4", "openmpi5", "mpich"]
    version: str
    path: str


class Machine(Record, frozen=True, kw_only=True):
    """What was found here. `cpus` and `memory_bytes` respect cgroups and affinity, `cpus_total` ignores them.

    `route_interface`: the interface that leads to other hosts (None: not to be told).
    `programs`: which of the launchers' helpers are on PATH. `mpi`: asked only for jobs that start mpirun, `mpi_trouble`
    is why there is none. `opal_prefix`: the folder of an Open MPI that cannot find its own files without OPAL_PREFIX.
    `other_train`: what `train` on PATH is where it is not this toolkit's.
    `engine`: this is a container of Docker or Podman. `notes`: what looking went wrong at, for the log.
    """

    cpus: int
    cpus_total: int
    memory_bytes: int
    accelerator: Literal["none", "nvidia", "neuron"] = "none"
    accelerators: int = 0
    interfaces: tuple[str, ...] = ()
    route_interface: str | None = None
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"
    programs: tuple[str, ...] = ()
    mpi: Mpi | None = None
    mpi_trouble: str = ""
    opal_prefix: str = ""
    other_train: str = ""
    engine: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return self.accelerators if self.accelerator == "nvidia" else 0

    @property
    def neurons(self) -> int:
        return self.accelerators if self.accelerator == "neuron" else 0
