"""The job of one host: the script, its values, its hosts. Platforms make it; launchers make a plan of it."""

from pathlib import Path
from typing import Literal

from toolkit.job.cluster import Cluster
from toolkit.job.compilation import Compiler
from toolkit.job.exports import Exports
from toolkit.job.machine import Machine
from toolkit.job.monitor import Monitor
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import STRATEGIES, Strategy
from toolkit.job.torchrun_line import TorchrunLine
from toolkit.records import Record
from toolkit.series.preparation import Preparation
from toolkit.settings import ArgumentStyle, Settings

# The part of the platform's time kept for SIGKILL, the last output and the report; a third if the time is below 30 s.
MARGIN_S = 10.0
# The same where files must be uploaded after the script.
UPLOAD_MARGIN_S = 40.0


class Script(Record, frozen=True, kw_only=True):
    """The user's program."""

    entry: str
    """Relative to `folder`, or a module's name, or "module:function" for a plug-in."""
    kind: Literal["program", "module", "package", "command", "plugin"]
    """program: a .py file; module: started with -m; package: installed with pip, then started with -m; command: a shell
    script or any executable; plugin: a framework's own entry point."""
    folder: Path
    argument_style: ArgumentStyle = "sagemaker"
    through: tuple[str, ...] = ()
    """The program that starts a command which the kernel cannot execute, as ("/bin/sh",) if it has no "#!"."""
    flaw: str = ""
    """The flaw of a command's text, which may fail for it, and how to mend it; "" for nothing."""


class Folders(Record, frozen=True, kw_only=True):
    """Absolute folders of the job, from one base."""

    base: Path
    config: Path
    """The documents."""
    code: Path
    """The user's code."""
    data: Path
    """A folder for each channel."""
    model: Path
    output: Path
    output_data: Path
    intermediate: Path
    """Uploaded while the script runs."""
    checkpoints: Path
    scratch: Path
    """Private to the runs of one base and user."""

    @property
    def failure(self) -> Path:
        return self.output / "failure"

    @property
    def success(self) -> Path:
        return self.output / "success"

    @property
    def manifest(self) -> Path:
        return self.output / "manifest.json"


class Job(Record, frozen=True, kw_only=True):
    """One host's job: what the user asks for, on this host among the job's hosts."""

    spec: JobSpec
    """The options that the user chose, with the values that the platform adds."""
    settings: Settings
    cluster: Cluster
    machine: Machine
    folders: Folders
    strategy: Strategy
    """The strategy of this host's ranks: as the spec has it, "script" on a host outside the distribution."""
    environ: dict[str, str]
    """The environment of `train`."""
    interpreter: str
    """The Python that runs the script."""
    script: Script | None = None
    """None until the code is in place."""
    packages: Path | None = None
    """The virtual environment for the packages of requirements.txt if the image's own folder cannot take them; None if
    it can, or if there are none."""
    monitor: Monitor | None = None
    """The system monitor that runs beside the script, None: off."""
    exports: Exports = Exports()
    """The targets of metrics besides the files."""
    compiler: Compiler | None = None
    """The models that the ranks compile; None: none."""
    sidecar: str = ""
    """The program of toolkit/rank/hook that runs beside the leader's script and reports to the platform, "": none."""
    stop_within_s: float = 30.0
    """The platform's time from SIGTERM to SIGKILL."""
    stopped_is_success: bool = False
    """A script that ends with 0 after SIGTERM has succeeded."""
    arguments: tuple[str, ...] | None = None
    """The arguments that a framework plug-in gives its script, None: those that the hyperparameters make."""
    variables: dict[str, str] = {}
    """The variables that a framework plug-in gives its script beside the contract's."""
    nested: bool = False
    """Another `train` runs the program that asked for this job."""
    torchrun: TorchrunLine | None = None
    """The command line of torchrun that the job is, None for every other job."""
    preparations: tuple[Preparation, ...] = ()
    """What `train` has done for it until now, with the time that it took."""
    port: int = 0
    """The port that `train` found free for a job of one host, 0: it has not chosen one."""

    @property
    def processes_per_host(self) -> int:
        """The number of ranks on each host: as the job asks, else GPUs, else Neuron cores, else 1."""
        chosen = self.strategy.processes_per_host or self.settings.processes_per_host
        return chosen or self.machine.accelerators or 1

    @property
    def may_use_mpirun(self) -> bool:
        """True if the launcher may ask for this host's mpirun."""
        return STRATEGIES[self.strategy.name].may_use_mpirun and self.cluster.takes_part

    @property
    def argument_style(self) -> ArgumentStyle:
        """The style in which hyperparameters become arguments."""
        return self.settings.argument_style or "sagemaker"

    @property
    def grace_s(self) -> float:
        """The seconds that the script has from SIGTERM to SIGKILL."""
        if self.settings.grace_s is not None:
            return self.settings.grace_s
        margin_s = UPLOAD_MARGIN_S if self.settings.checkpoint_uri or self.spec.intermediate_uri else MARGIN_S
        return round(max(self.stop_within_s - min(self.stop_within_s / 3, margin_s), 1.0), 1)
