"""The names of SageMaker's own hyperparameters on how to start ranks; read.py reads them, write.py writes them."""

from toolkit.job.strategy import STRATEGIES, StrategyName

# The flag of each strategy. If several are on, the first wins.
FLAGS: dict[StrategyName, str] = {name: f"sagemaker_{row.sdk_flag}" for name, row in STRATEGIES.items() if row.sdk_flag}
PROCESSES = "sagemaker_mpi_num_processes"
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
INSTANCE_TYPE = "sagemaker_instance_type"
GROUPS = "sagemaker_distribution_instance_groups"
MODEL_PARALLEL = "mp_parameters"
# TrainingCompilerConfig(enabled=True, debug=False) of sagemaker-python-sdk 2.x.
COMPILER = "sagemaker_training_compiler_enabled"
COMPILER_DEBUG = "sagemaker_training_compiler_debug_mode"
MPIRUN_OPTIONS = "sagemaker_mpi_custom_mpi_options"
SMDDP_MPIRUN_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"


# Every name that this platform reads, beside those that say which script runs.
KNOWN = frozenset(
    (
        *FLAGS.values(),
        PROCESSES,
        PROCESSES_PER_HOST,
        INSTANCE_TYPE,
        GROUPS,
        COMPILER,
        COMPILER_DEBUG,
        MPIRUN_OPTIONS,
        SMDDP_MPIRUN_OPTIONS,
    )
)
# Where a client may have put them for a strategy that AWS's images start as they start smddp.
ANY_MPIRUN_OPTIONS = (MPIRUN_OPTIONS, SMDDP_MPIRUN_OPTIONS)


def mpirun_options(strategy: StrategyName) -> str:
    """Return the name of the hyperparameter that holds the user's options for *strategy*'s mpirun."""
    return SMDDP_MPIRUN_OPTIONS if strategy == "smddp" else MPIRUN_OPTIONS
