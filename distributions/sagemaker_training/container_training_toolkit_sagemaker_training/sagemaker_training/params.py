"""The names of SageMaker's own hyperparameters and of the variables of a job."""

from toolkit.job.documents import parameters, sagemaker_variables
from toolkit.job.documents.parameters import RESERVED

SAGEMAKER_PREFIX = "sagemaker_"
CURRENT_HOST_ENV = "CURRENT_HOST"
USER_PROGRAM_PARAM = "sagemaker_program"
USER_PROGRAM_ENV = sagemaker_variables.PROGRAM
S3_OUTPUT_LOCATION_PARAM = "sagemaker_s3_output"
S3_OUTPUT_LOCATION_ENV = "SAGEMAKER_S3_OUTPUT"
S3_ENDPOINT_URL = "S3_ENDPOINT_URL"
TRAINING_JOB_ENV = sagemaker_variables.JOB_NAME
SUBMIT_DIR_PARAM = "sagemaker_submit_directory"
SUBMIT_DIR_ENV = sagemaker_variables.SUBMIT_DIRECTORY
ENABLE_METRICS_PARAM = "sagemaker_enable_cloudwatch_metrics"
ENABLE_METRICS_ENV = "SAGEMAKER_ENABLE_CLOUDWATCH_METRICS"
LOG_LEVEL_PARAM = "sagemaker_container_log_level"
LOG_LEVEL_ENV = sagemaker_variables.LOG_LEVEL
JOB_NAME_PARAM = "sagemaker_job_name"
JOB_NAME_ENV = "SAGEMAKER_JOB_NAME"
TUNING_METRIC_PARAM = "_tuning_objective_metric"
DEFAULT_MODULE_NAME_PARAM = "default_user_module_name"
REGION_NAME_PARAM = "sagemaker_region"
REGION_NAME_ENV = "SAGEMAKER_REGION"
DEFAULT_INVOCATIONS_ACCEPT_ENV = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
SAGEMAKER_BIND_TO_PORT_ENV = "SAGEMAKER_BIND_TO_PORT"
SAGEMAKER_SAFE_PORT_RANGE_ENV = "SAGEMAKER_SAFE_PORT_RANGE"
FRAMEWORK_TRAINING_MODULE_ENV = sagemaker_variables.TRAINING_MODULE
SAGEMAKER_NETWORK_INTERFACE_NAME = "sagemaker_network_interface_name"
SM_HP_MP_PARAMETERS = "SM_HP_MP_PARAMETERS"

MPI_ENABLED = parameters.FLAGS["mpi"]
PARAMETER_SERVER_ENABLED = parameters.FLAGS["parameter_server"]
MULTI_WORKER_MIRRORED_STRATEGY_ENABLED = parameters.FLAGS["multi_worker_mirrored"]
PYTORCH_XLA_MULTI_WORKER_ENABLED = parameters.FLAGS["pytorchxla"]
MPI_PROCESSES_PER_HOST = parameters.PROCESSES_PER_HOST
MPI_NUM_PROCESSES = parameters.PROCESSES
MPI_CUSTOM_OPTIONS = parameters.MPIRUN_OPTIONS
SMDATAPARALLEL_CUSTOM_MPI_OPTIONS = parameters.SMDDP_MPIRUN_OPTIONS
DISTRIBUTION_INSTANCE_GROUPS = parameters.GROUPS

# The hyperparameters that neither the script nor additional_framework_parameters gets.
SAGEMAKER_HYPERPARAMETERS = tuple(sorted(RESERVED))
