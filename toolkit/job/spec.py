"""The job spec: what the user asks for. SageMaker's documents, the channel sm_drivers, a job file, mounted documents
and TOOLKIT_* variables each become a JobSpec. train/platforms/assemble.py makes a Job of it and of the place where it
runs."""

from pathlib import Path
from typing import Any

from toolkit.job.job import Channel, Shown
from toolkit.job.monitor import Monitor
from toolkit.job.strategy import Strategy
from toolkit.records import Record
from toolkit.settings import ArgumentStyle


class JobSpec(Record, frozen=True, kw_only=True):
    """A job as the user asks for it, its values decoded and checked. None or empty: not asked for.

    `entry_from`, `source_from`: the variable, file or key that names the script and the source, for errors.
    `code`: the folder that contains the code already; None: the base's code folder.
    `source`: the folder, archive or URI to put into the code folder first.
    `groups`: the instance groups whose hosts take part in the distribution; None: this host's own.
    `environment`: variables that override the container's. `defaults`: variables for names that nothing else sets.
    `profiler_rules`: a table or list of rules as diagnosis/configuration.py reads it.
    `profiler`: the monitor of profilerconfig.json. `monitor`: whether the job file wants one, None: it does not say.
    `serves_tensorflow`: the model is meant for TensorFlow Serving.
    `compiles`, `debugs_compiler`: the flags of the SageMaker Training Compiler.
    `intermediate_uri`: where output/intermediate is uploaded while the script runs.
    `argument_style`: used if TOOLKIT_ARGUMENT_STYLE is not set.
    """

    name: str = ""
    entry: str | None = None
    entry_from: str = ""
    plugin: str | None = None
    code: Path | None = None
    source: str | None = None
    source_from: str = ""
    requirements: bool = True
    strategy: Strategy = Strategy()
    groups: tuple[str, ...] | None = None
    processes_per_host: int | None = None
    hyperparameters: dict[str, Any] = {}
    argument_style: ArgumentStyle = "sagemaker"
    channels: tuple[Channel, ...] = ()
    metric_definitions: tuple[tuple[str, str], ...] = ()
    checkpoints: Path | None = None
    rules: Path | None = None
    profiler_rules: Any = None
    profiler: Monitor | None = None
    monitor: bool | None = None
    serves_tensorflow: bool = False
    compiles: bool = False
    debugs_compiler: bool = False
    environment: dict[str, str] = {}
    defaults: dict[str, str] = {}
    region: str = ""
    log_level: int = 20
    intermediate_uri: str = ""
    shown: Shown = Shown()
