"""A program's view of its job: `Environment`, and the paths of the contract as constants."""

import os
import sys
from functools import cached_property
from typing import Any

import msgspec

from sagemaker_training import mapping
from toolkit import settings
from toolkit.job import variables
from toolkit.job.base_folders import BASE
from toolkit.job.documents import input_config, parameters
from toolkit.job.documents.sagemaker_variables import BASE_DIR
from toolkit.job.job import Job
from toolkit.log import Log
from toolkit.train.platforms import table
from toolkit.train.platforms.sagemaker import read_job
from toolkit.train.platforms.sagemaker.read_job import DocumentContents
from toolkit.train.probe import look

SAGEMAKER_BASE_PATH = BASE
BASE_PATH_ENV = BASE_DIR
HYPERPARAMETERS_FILE = "hyperparameters.json"
RESOURCE_CONFIG_FILE = "resourceconfig.json"
INPUT_DATA_CONFIG_FILE = "inputdataconfig.json"

_folders = table.detect(os.environ).folders(os.environ)
base_dir = str(_folders.base)
code_dir = str(_folders.code)
model_dir = str(_folders.model)
input_dir = str(_folders.data.parent)
input_config_dir = str(_folders.config)
output_dir = str(_folders.output)
output_data_dir = str(_folders.output_data)
output_intermediate_dir = str(_folders.intermediate)
hyperparameters_file_dir = os.path.join(input_config_dir, HYPERPARAMETERS_FILE)
resource_config_file_dir = os.path.join(input_config_dir, RESOURCE_CONFIG_FILE)
input_data_config_file_dir = os.path.join(input_config_dir, INPUT_DATA_CONFIG_FILE)


def read_hyperparameters() -> dict[str, Any]:
    """Return the decoded hyperparameters, SageMaker's own (sagemaker_*) included."""
    if table.detect(os.environ).name == "sagemaker":
        return input_config.read_hyperparameters(_folders.config)
    job = _job(DocumentContents())
    return {**job.spec.hyperparameters, **job.spec.platform_values.parameters}


def read_resource_config() -> dict[str, Any]:
    """Return the job's hosts and groups, in the form of resourceconfig.json."""
    return Environment().resource_config


def read_input_data_config() -> dict[str, Any]:
    """Return the job's channels, in the form of inputdataconfig.json."""
    return Environment().input_data_config


def channel_path(channel: str) -> str:
    """Return the folder of *channel*."""
    return str(_folders.data / channel)


def num_gpus() -> int:
    """Return the number of this host's GPUs, as nvidia-smi lists them."""
    return look.probe_machine(os.environ).gpus


def num_neurons(instance_type: str = "") -> int:  # noqa: ARG001 - it is the job's
    """Return the number of this host's Neuron cores."""
    return Environment().num_neurons


def num_cpus() -> int:
    """Return the number of this host's CPUs."""
    return os.cpu_count() or 1


def validate_smddprun() -> bool:
    """Return whether smddprun, of AWS's data parallel library, is on PATH."""
    return "smddprun" in look.probe_machine(os.environ).programs


def validate_smddpmprun() -> bool:
    """Return whether smddpmprun, of AWS's model parallel library, is on PATH."""
    return "smddpmprun" in look.probe_machine(os.environ).programs


def write_env_vars(env_vars: dict[str, str] | None = None) -> None:
    """Set these variables in this process. PYTHONPATH stays: the toolkit gives it to the script."""
    os.environ.update({name: value for name, value in (env_vars or {}).items() if name != "PYTHONPATH"})


class _Value(property):
    """A property that gives the job's value of its own name."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name = name


def _value(doc: str) -> Any:
    """Return such a property; *doc* describes it."""
    value = _Value(lambda environment: environment._values[value.name], doc=doc)
    return value


class Environment(mapping.MappingMixin):
    """The job of this host, read once, when the object is made. It is a dictionary of its properties, too.

    *resource_config*, *input_data_config*, *hyperparameters*: what to take in place of the job's documents; the
    hyperparameters are decoded. Paths, names and values are those that the script gets as SM_* variables.

    Raises:
        ContractError: a document is missing or wrong.
    """

    additional_framework_parameters: dict[str, Any] = _value(
        "The other hyperparameters named sagemaker_*.",
    )
    channel_input_dirs: dict[str, str] = _value("The folder of each channel.")
    current_host: str = _value("This host's name in the job.")
    current_instance_group: str = _value("The instance group of this host.")
    current_instance_group_hosts: list[str] = _value("The hosts of this host's instance group.")
    current_instance_type: str = _value("The instance type of this host.")
    distribution_hosts: list[str] = _value("The hosts of the distribution's instance groups.")
    distribution_instance_groups: list[str] = _value("The instance groups that take part in the distribution.")
    framework_module: str | None = _value("SAGEMAKER_TRAINING_MODULE, the framework's plug-in.")
    hosts: list[str] = _value("The names of all hosts, in the documents' order.")
    hyperparameters: dict[str, Any] = _value("The user's hyperparameters, decoded.")
    input_config_dir: str = _value("The folder of the job's documents.")
    input_data_config: dict[str, Any] = _value("The job's channels, as inputdataconfig.json has them.")
    input_dir: str = _value("The folder of documents and channels.")
    instance_groups: list[str] = _value("The names of the instance groups.")
    instance_groups_dict: dict[str, Any] = _value("The instance groups by name.")
    is_hetero: bool = _value("True if the job has several instance groups.")
    is_master: bool = _value("True on the leader host.")
    is_modelparallel_enabled: bool | None = _value("True if SM_HP_MP_PARAMETERS asks for the model parallel library.")
    is_smddpmprun_installed: bool = _value("True if smddpmprun is on PATH.")
    is_smddprun_installed: bool = _value("True if smddprun is on PATH.")
    job_name: str | None = _value("The name of the training job.")
    log_level: int = _value("The log level that the job asks for.")
    master_hostname: str = _value("The leader host.")
    model_dir: str = _value("The folder for the model.")
    module_dir: str = _value("Where the source was submitted: a folder, archive or URI.")
    module_name: str = _value("The entry point without .py.")
    network_interface_name: str = _value("The network interface between the hosts.")
    num_cpus: int = _value("The number of this host's CPUs.")
    num_gpus: int = _value("The number of this host's GPUs.")
    num_neurons: int = _value("The number of this host's Neuron cores.")
    output_data_dir: str = _value("The folder for output other than the model.")
    output_dir: str = _value("The folder for the failure file.")
    output_intermediate_dir: str = _value("The folder whose files are uploaded while the job runs.")
    resource_config: dict[str, Any] = _value("The job's hosts, as resourceconfig.json has them.")
    topology: Any = _value("The hosts' places in an UltraServer, if the platform says them.")
    user_entry_point: str | None = _value("The script, as the user named it.")

    def __init__(
        self,
        resource_config: dict[str, Any] | None = None,
        input_data_config: dict[str, Any] | None = None,
        hyperparameters: dict[str, Any] | None = None,
    ) -> None:
        self._job = _job(
            DocumentContents(
                resource_config=resource_config or None,
                input_data_config=input_data_config or None,
                hyperparameters=hyperparameters or None,
            )
        )
        self._given = hyperparameters or None
        os.environ.setdefault("CURRENT_HOST", self._job.cluster.current)
        for name, value in self._job.spec.platform_values.variables.items():
            os.environ.setdefault(name, value)

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in variables.properties(self._job).items()
        }

    def to_cmd_args(self) -> list[str]:
        """Return the hyperparameters as the script's arguments."""
        return mapping.to_cmd_args(self.hyperparameters)

    def to_env_vars(self) -> dict[str, str]:
        """Return the SM_* variables that the script gets."""
        all_variables = variables.variables(self._job, tuple(self.to_cmd_args()))
        return {name: value for name, value in all_variables.items() if name.startswith("SM_")}

    def sagemaker_s3_output(self) -> str | None:
        """Return where the job's output goes in S3, None if the job does not say."""
        output_dir = (self._given or read_hyperparameters()).get(parameters.OUTPUT)
        return None if output_dir is None else str(output_dir)


def _job(contents: DocumentContents) -> Job:
    """Return the job of this host; its script need not be named. Warnings of its documents are left to `train`."""
    environ = dict(os.environ)
    platform = table.detect(environ)
    own_settings, machine, log = settings.read(environ), look.probe_machine(environ), Log(level=50)
    asks = any(
        value is not None for value in (contents.resource_config, contents.input_data_config, contents.hyperparameters)
    )
    if asks and (platform.name == "sagemaker" or contents.resource_config is not None):
        return read_job.read(environ, own_settings, machine, log, contents=contents)
    job, _ = table.read_job(
        platform, environ, own_settings, machine, log, interpreter=sys.executable, needs_script=False
    )
    return job if contents.hyperparameters is None else _with(job, contents.hyperparameters)


def _with(job: Job, hyperparameters: dict[str, Any]) -> Job:
    """Return *job*, one outside SageMaker, with *hyperparameters*."""
    user, platform = parameters.split(hyperparameters)
    values = job.spec.platform_values
    values = msgspec.structs.replace(values, parameters={**values.parameters, **platform})
    spec = msgspec.structs.replace(job.spec, hyperparameters=user, platform_values=values)
    return msgspec.structs.replace(job, spec=spec)
