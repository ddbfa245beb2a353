"""This machine, examined once at the start."""

from typing import Literal

from toolkit.records import Record


class Mpi(Record, frozen=True, kw_only=True):
    """The mpirun of this machine. openmpi5: PRRTE starts its ranks (Open MPI 5 and later); mpich: Hydra does."""

    kind: Literal["openmpi4", "openmpi5", "mpich"]
    version: str
    path: str


class Machine(Record, frozen=True, kw_only=True):
    """This machine, as it was examined at the start."""

    cpus: int
    """Respects cgroups and affinity."""
    cpus_total: int
    """Ignores them."""
    memory_bytes: int
    """Respects cgroups."""
    accelerator: Literal["none", "nvidia", "neuron"] = "none"
    accelerators: int = 0
    """Fewer than the UUIDs where CUDA_VISIBLE_DEVICES hides some from the job."""
    gpu_uuids: tuple[str, ...] = ()
    """Those of the GPUs that nvidia-smi lists, in its order."""
    mig_uuids: tuple[str, ...] = ()
    """Those of their MIG instances, in its order."""
    gpu_trouble: str = ""
    """Why a GPU that is here cannot be used."""
    interfaces: tuple[str, ...] = ()
    """The names of the network interfaces."""
    route_interface: str | None = None
    """The network interface of the route to other hosts; None: unknown."""
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"
    programs: tuple[str, ...] = ()
    """Those of the launchers' programs that are on PATH."""
    mpi: Mpi | None = None
    """Looked for only if the job starts mpirun."""
    mpi_trouble: str = ""
    """Why no mpirun was found."""
    opal_prefix: str = ""
    """The folder of an Open MPI that needs OPAL_PREFIX to find its own files."""
    other_train: str = ""
    """The program that `train` on PATH is, if it is not this toolkit's."""
    torch_sagemaker: bool = False
    """The image holds release 2 of SageMaker's model parallel library; looked for only if the job has mp_parameters."""
    deaf_init: str = ""
    """A warning if PID 1 passes no stop on."""
    engine: bool = False
    """This is a container of Docker or Podman."""
    notes: tuple[str, ...] = ()
    """Errors of the examination, for the log."""

    @property
    def gpus(self) -> int:
        return self.accelerators if self.accelerator == "nvidia" else 0

    @property
    def neurons(self) -> int:
        return self.accelerators if self.accelerator == "neuron" else 0
