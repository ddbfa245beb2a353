"""This machine, examined once at the start."""

from typing import Literal

from toolkit.records import Record


class Mpi(Record, frozen=True, kw_only=True):
    """The mpirun of this machine. openmpi5: PRRTE starts its ranks (Open MPI 5 and later); mpich: Hydra does."""

    kind: Literal["openmpi4", "openmpi5", "mpich"]
    version: str
    path: str


class Machine(Record, frozen=True, kw_only=True):
    """What was found here. `cpus` and `memory_bytes` respect cgroups and affinity, `cpus_total` ignores them.

    `route_interface`: the network interface of the route to other hosts (None: unknown).
    `programs`: which of the launchers' programs are on PATH. `mpi`: looked for only if the job starts mpirun;
    `mpi_trouble`: why it was not found. `opal_prefix`: the folder of an Open MPI that needs OPAL_PREFIX to find its own
    files. `other_train`: the program that `train` on PATH is, if it is not this toolkit's.
    `gpu_uuids`, `mig_uuids`: of the GPUs that nvidia-smi lists and of their MIG instances, in its order; `accelerators`
    is less where CUDA_VISIBLE_DEVICES hides some from the job. `gpu_trouble`: why a GPU that is here cannot be used.
    `torch_sagemaker`: the image holds release 2 of SageMaker's model parallel library; looked for only if the job has
    mp_parameters. `deaf_init`: a warning if PID 1 passes no stop on.
    `engine`: this is a container of Docker or Podman. `notes`: errors of the examination, for the log.
    """

    cpus: int
    cpus_total: int
    memory_bytes: int
    accelerator: Literal["none", "nvidia", "neuron"] = "none"
    accelerators: int = 0
    gpu_uuids: tuple[str, ...] = ()
    mig_uuids: tuple[str, ...] = ()
    gpu_trouble: str = ""
    interfaces: tuple[str, ...] = ()
    route_interface: str | None = None
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"
    programs: tuple[str, ...] = ()
    mpi: Mpi | None = None
    mpi_trouble: str = ""
    opal_prefix: str = ""
    other_train: str = ""
    torch_sagemaker: bool = False
    deaf_init: str = ""
    engine: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return self.accelerators if self.accelerator == "nvidia" else 0

    @property
    def neurons(self) -> int:
        return self.accelerators if self.accelerator == "neuron" else 0
