"""The job spec: what the user asks for in SageMaker's documents, the channel sm_drivers, a job file, mounted documents
and TOOLKIT_* variables, merged into one. train/platforms/assemble.py makes a Job of it and of the place where it
runs."""

from pathlib import Path
from typing import Any

from toolkit.job.channel import Channel
from toolkit.job.monitor import Monitor
from toolkit.job.strategy import Strategy
from toolkit.records import Record
from toolkit.settings import ArgumentStyle


class PlatformValues(Record, frozen=True, kw_only=True):
    """Values of the platform that scripts get unchanged in SM_* variables."""

    parameters: dict[str, Any] = {}
    """SM_FRAMEWORK_PARAMS."""
    job_name: str = ""
    """The name in the documents; "": that of the job."""
    module_dir: str = ""
    """"": the job's code folder."""
    resource_config: dict[str, Any] = {}
    """The content of resourceconfig.json."""
    input_data_config: dict[str, Any] = {}
    """The content of inputdataconfig.json."""
    framework_module: str | None = None
    """The variable that names the framework plug-in, as it was set."""
    variables: dict[str, str] = {}
    """Variables under SageMaker's own names."""


class JobSpec(Record, frozen=True, kw_only=True):
    """A job as the user asks for it, its values decoded and checked. None or empty: not asked for."""

    name: str = ""
    entry: str | None = None
    """The script, as the user gave it."""
    entry_from: str = ""
    """The variable, file or key that names the script, for errors."""
    plugin: str | None = None
    """The framework plug-in that runs the job, "module:function"."""
    code: Path | None = None
    """The folder that contains the code already; None: the base's code folder."""
    source: str | None = None
    """The folder, archive or URI to put into the code folder first; None: the code is in place."""
    source_from: str = ""
    """The variable, file or key that names the source, for errors."""
    requirements: bool = True
    """False: a requirements.txt of the source is not installed."""
    strategy: Strategy = Strategy()
    groups: tuple[str, ...] | None = None
    """The instance groups whose hosts take part in the distribution; None: this host's own."""
    processes_per_host: int | None = None
    """The number of ranks on each host; the number in the strategy wins over it."""
    hyperparameters: dict[str, Any] = {}
    """The user's own."""
    argument_style: ArgumentStyle = "sagemaker"
    """Used if TOOLKIT_ARGUMENT_STYLE is not set."""
    arguments: tuple[str, ...] = ()
    """Words behind those of the hyperparameters."""
    channels: tuple[Channel, ...] = ()
    metric_definitions: tuple[tuple[str, str], ...] = ()
    """(name, regular expression) of each."""
    checkpoints: Path | None = None
    """The folder of checkpoints; None: the base's."""
    rules: Path | None = None
    """The document of log rules."""
    profiler_rules: Any = None
    """A table or list of rules as diagnosis/configuration.py reads it."""
    profiler: Monitor | None = None
    """The monitor of profilerconfig.json."""
    monitor: bool | None = None
    """True if the job file wants a monitor; None: it does not say."""
    serves_tensorflow: bool = False
    """The model is meant for TensorFlow Serving."""
    compiles: bool = False
    """The flag of the SageMaker Training Compiler."""
    debugs_compiler: bool = False
    """The flag of its debug mode."""
    environment: dict[str, str] = {}
    """Variables that override the container's."""
    defaults: dict[str, str] = {}
    """Variables for names that nothing else sets."""
    region: str = ""
    log_level: int = 20
    """A number of Python's logging."""
    intermediate_uri: str = ""
    """The storage to which output/intermediate is uploaded while the script runs; "": it is not."""
    platform_values: PlatformValues = PlatformValues()
