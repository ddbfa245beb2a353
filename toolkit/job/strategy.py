"""The strategies for starting a job's ranks: a table with one row for each.

All their names derive from the rows: the module in toolkit/train/launchers (train/launchers/table.py), the values of
`--distribution` and job files (job/file/distribution.py), SageMaker's hyperparameters
(job/documents/parameters.py).
"""

from typing import Any, Literal

from toolkit.records import Record

StrategyName = Literal[
    "script",
    "mpi",
    "horovod",
    "pytorchddp",
    "torch_distributed",
    "smddp",
    "pytorchxla",
    "multi_worker_mirrored",
    "parameter_server",
    "jax",
]


class StrategyRow(Record, frozen=True, kw_only=True):
    """A row of the table."""

    launcher: str
    """The module of train/launchers."""
    names: tuple[str, ...]
    """Its values for `--distribution`; messages show the first."""
    sdk_keys: tuple[str, ...] = ()
    """Its path in the `distribution` dictionary of SageMaker's SDK."""
    sdk_options: tuple[str, ...] = ()
    """The keys below that path, beside "enabled"."""
    sdk_flag: str = ""
    """The hyperparameter that the SDK makes of it, without its prefix."""
    one_per_host: bool = False
    """It starts one process on each host, whatever processes-per-host says."""
    may_use_mpirun: bool = False
    """Its launcher may use this host's mpirun."""
    needs_rendezvous_port: bool = False
    """Its ranks cannot start while another program holds the rendezvous port."""


PROCESSES = "processes_per_host"
MPIRUN_OPTIONS = "custom_mpi_options"

# If a job asks for several, the first wins (sagemaker-pytorch-training 3.0.0's order, then the TensorFlow toolkit's).
STRATEGIES: dict[StrategyName, StrategyRow] = {
    "script": StrategyRow(launcher="script", names=("none",), one_per_host=True),
    "mpi": StrategyRow(
        launcher="mpi",
        names=("mpi",),
        sdk_keys=("mpi",),
        sdk_options=(PROCESSES, MPIRUN_OPTIONS),
        sdk_flag="mpi_enabled",
        may_use_mpirun=True,
    ),
    "horovod": StrategyRow(
        launcher="mpi",
        names=("horovod",),
        sdk_keys=("horovod",),
        sdk_options=(PROCESSES, MPIRUN_OPTIONS),
        sdk_flag="horovod_enabled",
        may_use_mpirun=True,
    ),
    "pytorchddp": StrategyRow(
        launcher="torchrun",
        names=("pytorchddp", "ddp"),
        sdk_keys=("pytorchddp",),
        sdk_options=(MPIRUN_OPTIONS,),
        sdk_flag="pytorch_ddp_enabled",
        needs_rendezvous_port=True,
    ),
    "torch_distributed": StrategyRow(
        launcher="torchrun",
        names=("torch_distributed", "torchrun"),
        sdk_keys=("torch_distributed",),
        sdk_flag="torch_distributed_enabled",
        needs_rendezvous_port=True,
    ),
    "smddp": StrategyRow(
        launcher="smddp",
        names=("smddp",),
        sdk_keys=("smdistributed", "dataparallel"),
        sdk_options=(MPIRUN_OPTIONS,),
        sdk_flag="distributed_dataparallel_enabled",
        may_use_mpirun=True,
        needs_rendezvous_port=True,
    ),
    "pytorchxla": StrategyRow(
        launcher="pytorchxla",
        names=("pytorchxla",),
        sdk_keys=("pytorchxla",),
        sdk_flag="pytorch_xla_multi_worker_enabled",
        needs_rendezvous_port=True,
    ),
    "multi_worker_mirrored": StrategyRow(
        launcher="multi_worker_mirrored",
        names=("multi_worker_mirrored_strategy", "multi_worker_mirrored"),
        sdk_keys=("multi_worker_mirrored_strategy",),
        sdk_flag="multi_worker_mirrored_strategy_enabled",
        one_per_host=True,
    ),
    "parameter_server": StrategyRow(
        launcher="parameter_server",
        names=("parameter_server",),
        sdk_keys=("parameter_server",),
        sdk_flag="parameter_server_enabled",
        one_per_host=True,
    ),
    # The toolkit's own: SageMaker's SDK has no JAX.
    "jax": StrategyRow(
        launcher="jax",
        names=("jax",),
        sdk_keys=("jax",),
        sdk_options=(PROCESSES,),
        sdk_flag="jax_enabled",
        needs_rendezvous_port=True,
    ),
}


class Strategy(Record, frozen=True, kw_only=True):
    """The way in which a job's ranks are started."""

    name: StrategyName = "script"
    ignored: tuple[StrategyName, ...] = ()
    """Other strategies that the job enables, too."""
    processes_per_host: int | None = None
    """None: one for each device."""
    processes: int | None = None
    """The total; None: the sum over all hosts."""
    processes_from: str = ""
    """The document and key of the total."""
    mpirun_options: str = ""
    """The user's options, as one text, as SageMaker's SDK sends them."""
    instance_type: str = ""
    """As the SDK sends it, "" if it does not."""
    model_parallel: dict[str, Any] | None = None
    """The parameters of SageMaker's model parallel library; None: the job does not use it."""
