"""A SageMaker job: its variables and documents, read once, as a Job. The only place that knows sagemaker_* names."""

import json
import os
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.job.cluster import Cluster, Group
from toolkit.job.job import Channel, Folders, Job, Strategy, StrategyName
from toolkit.job.machine import Machine
from toolkit.job.variables import RESERVED
from toolkit.log import Log, level_named
from toolkit.metrics.definition import pairs
from toolkit.platforms.place import ENGINE_STOP_WITHIN_S
from toolkit.platforms.program import chosen
from toolkit.platforms.sagemaker import documents
from toolkit.platforms.sagemaker.documents import Documents, InstanceGroup, typed
from toolkit.settings import MOST, Settings

BASE = "/opt/ml"
# `docker stop -t 120` is how StopTrainingJob, MaxRuntimeInSeconds and Spot end a container.
STOP_WITHIN_S = 120.0
HOMOGENEOUS = "homogeneousCluster"
MODES = ("File", "FastFile", "Pipe")
# Which of several that are on wins: the first (sagemaker-pytorch-training 3.0.0, then the TensorFlow toolkit's two).
FLAGS: tuple[tuple[StrategyName, str], ...] = (
    ("mpi", "sagemaker_mpi_enabled"),
    ("horovod", "sagemaker_horovod_enabled"),
    ("pytorchddp", "sagemaker_pytorch_ddp_enabled"),
    ("torch_distributed", "sagemaker_torch_distributed_enabled"),
    ("smddp", "sagemaker_distributed_dataparallel_enabled"),
    ("pytorchxla", "sagemaker_pytorch_xla_multi_worker_enabled"),
    ("multi_worker_mirrored", "sagemaker_multi_worker_mirrored_strategy_enabled"),
    ("parameter_server", "sagemaker_parameter_server_enabled"),
)
# What launchers are told besides: option -> hyperparameter.
OPTIONS = {
    "instance_type": "sagemaker_instance_type",
    "processes": "sagemaker_mpi_num_processes",
    "mpi_options": "sagemaker_mpi_custom_mpi_options",
    "dataparallel_mpi_options": "sagemaker_distributed_dataparallel_custom_mpi_options",
}
# Framework plug-ins whose whole work is this toolkit's own: with them, the old runner would still run the job.
REPLACED = ("sagemaker_pytorch_container.training:main",)
# What is asked for, by hyperparameter or variable, and not served yet; a job runs without it, so it is said.
NOT_SERVED = {
    "sagemaker_s3_output": "output/intermediate is not uploaded while the job runs",
    "CA_REPOSITORY_ARN": "AWS CodeArtifact is not asked for packages; a job that needs some ends with 78",
}
# Instances whose Neuron cores are known without neuron-ls (sagemaker-training 5.1.4).
NEURON_CORES = {"trn2.48xlarge": 64}


def folders(environ: Mapping[str, str]) -> Folders:
    """Return the folders below SAGEMAKER_BASE_DIR, else /opt/ml. Nothing is looked at: they need not exist.

    `scratch` lies outside, under TMPDIR or /tmp, one for each base and user.
    """
    base = Path(environ.get("SAGEMAKER_BASE_DIR") or BASE).absolute()
    temporary = Path(environ.get("TMPDIR") or "/tmp").absolute()
    return Folders(
        base=base,
        config=base / "input/config",
        code=base / "code",
        data=base / "input/data",
        model=base / "model",
        output=base / "output",
        output_data=base / "output/data",
        intermediate=base / "output/intermediate",
        checkpoints=base / "checkpoints",
        scratch=temporary / f"toolkit-{os.getuid()}-{zlib.crc32(os.fsencode(base)):08x}",
    )


def read(
    environ: Mapping[str, str], settings: Settings, machine: Machine, log: Log, *, interpreter: str = sys.executable
) -> Job:
    """Return the job that *environ* and the documents describe; the script runs under *interpreter*.

    Raises:
        ContractError: a document or a value in it is missing or wrong.
    """
    places = folders(environ)
    papers = documents.read(places.config, log)
    if settings.job is not None:
        log.warning(f"TOOLKIT_JOB={settings.job} is not read: SageMaker's documents say what the job is")
    if not _named(papers, environ, settings):
        papers, environ, settings = _by_drivers(papers, places, environ, settings)
    named = [
        (place, script if isinstance(script, str) else None) for place, script in _named(papers, environ, settings)
    ]
    _, entry = chosen(named, places.code, log)
    return assemble(papers, places, environ, settings, machine, log, entry=entry, interpreter=interpreter)


def _named(papers: Documents, environ: Mapping[str, str], settings: Settings) -> list[tuple[str, Any]]:
    """Return what names the script, the first place before others."""
    asked = decoded(papers.hyperparameters).get("sagemaker_program")
    named = [("TOOLKIT_PROGRAM", settings.program), ("SAGEMAKER_PROGRAM", environ.get("SAGEMAKER_PROGRAM"))]
    return [(place, script) for place, script in (*named, ("sagemaker_program", asked)) if script]


def _by_drivers(
    papers: Documents, places: Folders, environ: Mapping[str, str], settings: Settings
) -> tuple[Documents, Mapping[str, str], Settings]:
    """Return all three as the SDK's ModelTrainer asks for them, where its channel is there."""
    if not (places.data / "sm_drivers/sourcecode.json").is_file():
        return papers, environ, settings
    from toolkit.platforms.sagemaker import drivers

    if drivers.starts_train(places.data):
        return papers, environ, settings
    papers = drivers.asked(papers, places.data)
    environ = {**drivers.variables(papers, places.data), **environ}
    if not environ.get("TOOLKIT_ARGUMENT_STYLE"):
        settings = msgspec.structs.replace(settings, argument_style="json")  # As that SDK's own drivers do.
    return papers, environ, settings


def assemble(
    papers: Documents,
    places: Folders,
    environ: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    log: Log,
    *,
    entry: str,
    interpreter: str,
) -> Job:
    """Return the job that *papers* describe, whoever wrote them; its script is *entry*, "" if none is named.

    Raises:
        ContractError: a value in them is wrong.
    """
    asked = decoded(papers.hyperparameters)
    framework = {name: value for name, value in asked.items() if _is_framework(name)}
    own = {name: value for name, value in asked.items() if not _is_framework(name)}
    log.hide(papers.hyperparameters)
    log.hide(asked)
    source = _Source(framework, places.config / "hyperparameters.json")
    _check_passable(own, source.file)
    cluster = _cluster(papers, source, settings)
    _warn_of_strangers(cluster, log)
    for name, consequence in NOT_SERVED.items():
        if framework.get(name) or environ.get(name):
            log.warning(f"{name} is not served yet: {consequence}")
    return Job(
        name=environ.get("TRAINING_JOB_NAME") or source.text("sagemaker_job_name") or "",
        platform="sagemaker",
        settings=settings,
        cluster=cluster,
        machine=_with_known_neurons(machine, cluster.instance_type),
        folders=msgspec.structs.replace(places, checkpoints=_checkpoints(places, papers, log)),
        hyperparameters=own,
        framework_parameters=framework,
        strategy=_strategy(source, cluster, places.config / "resourceconfig.json"),
        channels=_channels(papers, places),
        metric_definitions=_metric_definitions(settings, papers),
        documents={"resource_config": papers.raw_resources, "input_data_config": papers.raw_channels},
        environ={**_torch_version(environ), **environ},
        interpreter=interpreter,
        entry=entry or source.text("sagemaker_program"),
        plugin=_plugin(environ, log),
        requirements=papers.requirements,
        source=source.text("sagemaker_submit_directory") or environ.get("SAGEMAKER_SUBMIT_DIRECTORY") or None,
        region=source.text("sagemaker_region") or _region(environ),
        log_level=_log_level(framework, environ, log),
        stop_within_s=_stop_within_s(environ, settings, machine),
        stopped_is_success=True,
    )


def _plugin(environ: Mapping[str, str], log: Log) -> str | None:
    plugin = environ.get("SAGEMAKER_TRAINING_MODULE") or None
    if plugin in REPLACED:
        log.info(f"SAGEMAKER_TRAINING_MODULE={plugin}, which AWS's PyTorch images set: train does its work by itself")
        return None
    return plugin


def _torch_version(environ: Mapping[str, str]) -> dict[str, str]:
    """Return SM_DLC_TORCH_VERSION, torch.__version__, which AWS's PyTorch plug-in sets. Read, since torch's import
    takes seconds."""
    if environ.get("SAGEMAKER_TRAINING_MODULE") not in REPLACED:
        return {}
    import importlib.util

    spec = importlib.util.find_spec("torch")
    try:
        text = Path(spec.origin or "").with_name("version.py").read_text("utf-8") if spec else ""
    except OSError:
        text = ""
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.M)
    return {"SM_DLC_TORCH_VERSION": found[1]} if found else {}


def decoded(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return *hyperparameters* with each string read as JSON once; one that is none, and other values, stay as is.

    SageMaker's SDK writes every value as JSON in a string; other clients write plain text. NaN and Infinity are JSON
    here, as for Python's json.
    """
    return {name: _decoded(value) if isinstance(value, str) else value for name, value in hyperparameters.items()}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Source:
    """The platform's own hyperparameters, and how to ask them for a value of one type."""

    def __init__(self, values: dict[str, Any], file: Path) -> None:
        self.values = values
        self.file = file

    def text(self, name: str) -> str | None:
        return typed(self.values.get(name), str | None, self.file, f"$.{name}")  # type: ignore[arg-type]

    def names(self, name: str) -> tuple[str, ...]:
        return typed(self.values[name], tuple[str, ...], self.file, f"$.{name}")

    def count(self, name: str) -> int | None:
        value = self.values.get(name)
        if not value:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise ContractError(
                f"$.{name}: expected a whole number, 1 to {MOST:,}, found {json.dumps(value)[:40]}",
                where=str(self.file),
            )
        return value

    def is_on(self, name: str) -> bool:
        """Return whether the flag is set; "False" and "True" of clients that wrote Python mean what they say."""
        value = self.values.get(name, False)
        return value.strip().lower() not in ("", "false") if isinstance(value, str) else bool(value)


def _is_framework(name: str) -> bool:
    return name in RESERVED or name.startswith("sagemaker_")


def _check_passable(hyperparameters: Mapping[str, Any], file: Path) -> None:
    """Raise ContractError for text that neither an argument nor a variable can hold."""
    for name, value in hyperparameters.items():
        text = f"{name}{value}"
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ContractError(
                f"$.{json.dumps(name)[1:-1]}: expected text that a process can be given,"
                " found a NUL or half a surrogate pair in it",
                where=str(file),
            )


def _cluster(papers: Documents, source: _Source, settings: Settings) -> Cluster:
    resources = papers.resources
    groups = resources.instance_groups or ()
    current_group = resources.current_group_name or _group_of(resources.current_host, groups)
    distributed = any(source.is_on(flag) for _, flag in FLAGS)
    if "sagemaker_distribution_instance_groups" in source.values:
        named = source.names("sagemaker_distribution_instance_groups")
    else:
        named = (current_group,) if distributed else ()
    return Cluster(
        current=resources.current_host,
        hosts=resources.hosts,
        taking_part=_taking_part(resources.hosts, groups, named) if distributed else (),
        groups=tuple(
            Group(name=group.instance_group_name, instance_type=group.instance_type or "", hosts=group.hosts)
            for group in groups
        ),
        current_group=current_group,
        distribution_groups=named,
        instance_type=resources.current_instance_type or "local",
        interface=resources.network_interface_name or "eth0",
        topology=resources.topology,
        addresses=settings.addresses(),
    )


def _warn_of_strangers(cluster: Cluster, log: Log) -> None:
    """Tell of an address that is given to no host of the job, where a host has none: its name is likely misspelt."""
    strangers = sorted(cluster.addresses.keys() - set(cluster.hosts))
    if strangers and set(cluster.hosts) - cluster.addresses.keys():
        hosts = ", ".join(cluster.hosts[:8])
        log.warning(f"TOOLKIT_HOST_ADDRESSES names {', '.join(strangers[:8])}: expected hosts of the job ({hosts})")


def _group_of(host: str, groups: tuple[InstanceGroup, ...]) -> str:
    """Return the group that lists *host*, for documents without current_group_name."""
    return next((group.instance_group_name for group in groups if host in group.hosts), HOMOGENEOUS)


def _taking_part(hosts: tuple[str, ...], groups: tuple[InstanceGroup, ...], named: tuple[str, ...]) -> tuple[str, ...]:
    """Return the hosts of the distribution's groups in the documents' order; without groups (Local Mode), all."""
    if not groups:
        return hosts
    return tuple(host for group in groups if group.instance_group_name in named for host in group.hosts)


def _strategy(source: _Source, cluster: Cluster, file: Path) -> Strategy:
    """Return how this host's ranks are started: a host outside the distribution's groups runs the script alone."""
    if cluster.current_group not in cluster.distribution_groups:
        return Strategy(options=_options(source))
    name: StrategyName = next((name for name, flag in FLAGS if source.is_on(flag)), "script")
    if name != "script" and not cluster.takes_part:
        raise ContractError(
            f"$.instance_groups: expected {cluster.current!r} among the hosts of its group {cluster.current_group!r},"
            f" found {', '.join(cluster.taking_part) or 'none'}",
            where=str(file),
        )
    return Strategy(
        name=name,
        processes_per_host=source.count("sagemaker_mpi_num_of_processes_per_host"),
        options=_options(source),
    )


def _options(source: _Source) -> dict[str, Any]:
    values = {option: source.values.get(name) for option, name in OPTIONS.items()}
    return {option: value for option, value in values.items() if value not in (None, "")}


def _channels(papers: Documents, places: Folders) -> tuple[Channel, ...]:
    channels = []
    for name, config in papers.channels.items():
        mode = config.training_input_mode or "File"
        if mode not in MODES:
            raise ContractError(
                f"$.{name}.TrainingInputMode: expected one of 'File', 'FastFile', 'Pipe', found {mode!r}",
                where=str(places.config / "inputdataconfig.json"),
                hint="Set it in the job's InputDataConfig",
            )
        channels.append(msgspec.convert({"name": name, "folder": places.data / name, "mode": mode}, Channel))
    return tuple(channels)


def _metric_definitions(settings: Settings, papers: Documents) -> tuple[tuple[str, str], ...]:
    """Return the definitions of TOOLKIT_METRICS's file where it is set, else the platform's.

    Raises:
        ContractError: that file is missing or has another shape; it is the user's own.
    """
    if settings.metrics is None:
        return papers.metric_definitions
    return pairs(documents.load(settings.metrics, hint="TOOLKIT_METRICS names it"), str(settings.metrics))


def _checkpoints(places: Folders, papers: Documents, log: Log) -> Path:
    """Return the checkpoint folder: LocalPath, moved along with a base other than /opt/ml; if out of reach, the usual.

    Out of reach is a path that neither exists nor could be made.
    """
    asked = Path(papers.checkpoints.local_path or "")
    if not asked.is_absolute():
        return places.checkpoints
    if asked.is_relative_to(BASE):
        return places.base / asked.relative_to(BASE)
    nearest = next(folder for folder in (asked, *asked.parents) if folder.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return asked
    log.warning(f"checkpointconfig.json: LocalPath {asked} cannot be written to; using {places.checkpoints}")
    return places.checkpoints


def _stop_within_s(environ: Mapping[str, str], settings: Settings, machine: Machine) -> float:
    """Return the platform's time from SIGTERM to SIGKILL; the engine's where a person mounted the documents."""
    if settings.stop_within_s is not None:
        return settings.stop_within_s
    is_job = any(environ.get(name) for name in ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN"))
    return STOP_WITHIN_S if is_job or not machine.engine else ENGINE_STOP_WITHIN_S


def _with_known_neurons(machine: Machine, instance_type: str) -> Machine:
    """Return *machine* with the Neuron cores of an instance whose number is known, whatever neuron-ls said."""
    for instance, cores in NEURON_CORES.items():
        if instance in instance_type:
            return msgspec.structs.replace(machine, accelerator="neuron", accelerators=cores)
    return machine


def _region(environ: Mapping[str, str]) -> str:
    names = ("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_REGION")
    return next((environ[name] for name in names if environ.get(name)), "")


def _log_level(framework: Mapping[str, Any], environ: Mapping[str, str], log: Log) -> int:
    """Return the level the job asks for, as a number of Python's logging; of the two places the hyperparameter wins."""
    asked = framework.get("sagemaker_container_log_level", environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL", ""))
    if asked == "":
        return 20
    level = level_named(str(asked))
    if level is None:
        log.warning(
            f"sagemaker_container_log_level: expected a number or a name such as INFO, found {asked!r}; using 20"
        )
        return 20
    return level
