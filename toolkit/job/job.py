"""The job of one host: the script, its values, its hosts. Platforms make it; launchers make a plan of it."""

from pathlib import Path
from typing import Any, Literal

from toolkit.job.cluster import Cluster
from toolkit.job.compilation import Compiler
from toolkit.job.exports import Exports
from toolkit.job.machine import Machine
from toolkit.job.monitor import Monitor
from toolkit.job.strategy import STRATEGIES, Strategy
from toolkit.records import Record
from toolkit.settings import ArgumentStyle, Settings

# The part of the platform's time kept for SIGKILL, the last output and the report; a third if the time is below 30 s.
MARGIN_S = 10.0
# The same where files must be uploaded after the script.
UPLOAD_MARGIN_S = 40.0


FileSystemAccess = Literal["", "ro", "rw"]
ChannelMode = Literal["File", "FastFile", "Pipe"]


class Channel(Record, frozen=True, kw_only=True):
    """An input channel.

    In Pipe mode `folder` does not exist; FIFOs `<folder>_0`, `<folder>_1`, ... do, one for each epoch. In a job file
    `folder` may be a file. `sharded`: each host gets a share of the files. `uri`: where the files are in storage;
    `folder` is then where they will be. `file_system`: in a job file, all hosts have the folder itself, as
    one of EFS or FSx, to read from or to write to as well; "": they do not.
    """

    name: str
    folder: Path
    mode: ChannelMode = "File"
    sharded: bool = False
    uri: str = ""
    file_system: FileSystemAccess = ""


def fetched_mark(folder: Path) -> Path:
    """Return the file that names the URI from which `train` has fetched a channel into *folder*."""
    return folder.with_name(f".{folder.name}.uri")


class Script(Record, frozen=True, kw_only=True):
    """The user's program. `entry` is relative to `folder`, or a module's name, or "module:function" for a plug-in.

    program: a .py file; module: started with -m; package: installed with pip, then started with -m;
    command: a shell script or any executable; plugin: a framework's own entry point.
    `through`: the program that starts a command which the kernel cannot execute, as ("/bin/sh",) if it has no "#!".
    `flaw`: what is wrong with a command's text, which may fail for it, and how to mend it; "" for nothing.
    """

    entry: str
    kind: Literal["program", "module", "package", "command", "plugin"]
    folder: Path
    argument_style: ArgumentStyle = "sagemaker"
    through: tuple[str, ...] = ()
    flaw: str = ""


class Shown(Record, frozen=True, kw_only=True):
    """Values of the platform that scripts get unchanged in SM_* variables.

    `parameters`: SM_FRAMEWORK_PARAMS. `framework_module`: the plug-in's variable as it was set. `job_name`,
    `module_dir`: "" for the job's name and its code folder. `variables`: those under SageMaker's own names.
    """

    parameters: dict[str, Any] = {}
    job_name: str = ""
    module_dir: str = ""
    resource_config: dict[str, Any] = {}
    input_data_config: dict[str, Any] = {}
    framework_module: str | None = None
    variables: dict[str, str] = {}


class Folders(Record, frozen=True, kw_only=True):
    """Absolute folders of the job, from one base."""

    base: Path
    config: Path
    code: Path
    data: Path
    model: Path
    output: Path
    output_data: Path
    intermediate: Path
    checkpoints: Path
    scratch: Path

    @property
    def failure(self) -> Path:
        return self.output / "failure"

    @property
    def success(self) -> Path:
        return self.output / "success"


class Job(Record, frozen=True, kw_only=True):
    """One host's job.

    `hyperparameters` are the user's own, decoded.
    `source`: where the code was submitted (folder, archive or URI), None: already in place.
    `entry_from`, `source_from`: the variable, file or key that names them, for errors.
    `requirements` False: a requirements.txt of the source is not installed.
    `entry`: as the user gave it; `script` is None until the code is in place.
    `environ`: the environment of `train`. `stop_within_s`: the platform's time from SIGTERM to SIGKILL.
    `packages`: the virtual environment for the packages of requirements.txt if the image's own folder cannot take them;
    None if it can, or if there are none.
    `sidecar`: the program of toolkit/rank/hook that runs beside the leader's script and reports to the platform, ""
    for none. `monitor`: the system monitor that runs beside the script, None: off. `exports`: where metrics go besides.
    `compiler`: what the ranks compile, None: nothing. `serves_tensorflow`: the model is meant for TensorFlow Serving.
    `intermediate_uri`: where output/intermediate is uploaded while the script runs, "": it is not.
    `arguments`, `variables`: what a framework plug-in gives its script, None: what the hyperparameters make, and the
    contract's variables alone. `nested`: another `train` runs the program that asked for this job.
    `port`: the port that `train` found free for a job of one host, 0: it has not chosen one.
    """

    name: str
    settings: Settings
    cluster: Cluster
    machine: Machine
    folders: Folders
    hyperparameters: dict[str, Any]
    strategy: Strategy
    channels: tuple[Channel, ...]
    metric_definitions: tuple[tuple[str, str], ...]
    environ: dict[str, str]
    interpreter: str
    shown: Shown = Shown()
    entry: str | None = None
    entry_from: str = ""
    plugin: str | None = None
    source: str | None = None
    source_from: str = ""
    requirements: bool = True
    script: Script | None = None
    log_level: int = 20
    stop_within_s: float = 30.0
    stopped_is_success: bool = False
    sidecar: str = ""
    packages: Path | None = None
    monitor: Monitor | None = None
    exports: Exports = Exports()
    compiler: Compiler | None = None
    serves_tensorflow: bool = False
    intermediate_uri: str = ""
    arguments: tuple[str, ...] | None = None
    variables: dict[str, str] = {}
    nested: bool = False
    port: int = 0

    @property
    def processes_per_host(self) -> int:
        """The number of ranks on each host: as the job asks, else GPUs, else Neuron cores, else 1."""
        asked = self.strategy.processes_per_host or self.settings.processes_per_host
        return asked or self.machine.accelerators or 1

    @property
    def may_use_mpirun(self) -> bool:
        """True if the launcher may ask for this host's mpirun."""
        return STRATEGIES[self.strategy.name].may_use_mpirun and self.cluster.takes_part

    @property
    def argument_style(self) -> ArgumentStyle:
        """How hyperparameters become arguments."""
        return self.settings.argument_style or "sagemaker"

    @property
    def grace_s(self) -> float:
        """The seconds that the script has from SIGTERM to SIGKILL."""
        if self.settings.grace_s is not None:
            return self.settings.grace_s
        margin_s = UPLOAD_MARGIN_S if self.settings.checkpoint_uri or self.intermediate_uri else MARGIN_S
        return round(max(self.stop_within_s - min(self.stop_within_s / 3, margin_s), 1.0), 1)
