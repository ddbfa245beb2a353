"""Reads the variables and documents of a SageMaker job, once, into a JobSpec and a Place."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ContractError, may_pass
from toolkit.folders import is_dir, is_mount, may_exist, nearest
from toolkit.job.base_folders import BASE, below
from toolkit.job.cluster import Group
from toolkit.job.documents import input_config, model_dir, parameters, sagemaker_variables
from toolkit.job.documents.input_config import Documents, InstanceGroup, ResourceConfig, typed
from toolkit.job.job import Channel, Folders, Job, Shown
from toolkit.job.machine import Machine
from toolkit.job.monitor import Monitor
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import STRATEGIES, Strategy
from toolkit.log import Log, level_named
from toolkit.paths import can_be_a_path
from toolkit.records import Record
from toolkit.settings import MOST, Settings
from toolkit.train.platforms.assemble import assemble, check_passable
from toolkit.train.platforms.place import HOMOGENEOUS, Place
from toolkit.train.platforms.program import chosen

PROGRAM = "sagemaker_program"
SUBMITTED = "sagemaker_submit_directory"
OUTPUT = "sagemaker_s3_output"
# StopTrainingJob, MaxRuntimeInSeconds and Spot interruptions end a container by `docker stop -t 120`.
STOP_WITHIN_S = 120.0
MODES = ("File", "FastFile", "Pipe")
# Hyperparameters of the platform that SM_FRAMEWORK_PARAMS leaves out (sagemaker-training 5.1.4, params.py).
RESERVED = frozenset(
    (
        PROGRAM,
        SUBMITTED,
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "default_user_module_name",
        model_dir.TUNING,
        OUTPUT,
    )
)
# Framework plug-ins that this toolkit replaces; if started, they would run the job with sagemaker-training.
PYTORCH = "sagemaker_pytorch_container.training:main"
REPLACED = (PYTORCH, model_dir.PLUGIN)


# What a flag may be written as, beside JSON's true and false.
WORDS = {
    **dict.fromkeys(("", "false", "none", "null", "no", "off", "n", "f", "0"), False),
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
}
ALIKE = 0.88  # How much a misspelt name is alike the right one (difflib): "_enable" and "_enabled" 0.98.


class Given(Record, frozen=True, kw_only=True):
    """The content of documents, in place of the files: that of hyperparameters.json decoded. None: the file's."""

    hyperparameters: dict[str, Any] | None = None
    input_data_config: dict[str, Any] | None = None
    resource_config: dict[str, Any] | None = None


def folders(environ: Mapping[str, str]) -> Folders:
    """Return the folders below SAGEMAKER_BASE_DIR, else /opt/ml."""
    return below(environ.get(sagemaker_variables.BASE_DIR, ""), environ, name=sagemaker_variables.BASE_DIR)


def read(
    environ: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    log: Log,
    *,
    interpreter: str = sys.executable,
    needs_script: bool = True,  # noqa: ARG001 - this platform never refuses a job here for want of a script
    given: Given | None = None,
) -> Job:
    """Return the job that *environ* and the documents describe; the script runs under *interpreter*.

    *given*: what to read in place of documents.

    Raises:
        ContractError: a document or a value in it is missing or wrong.
    """
    places = folders(environ)
    given = given or Given()
    written = input_config.read(
        places.config, log, hyperparameters=given.hyperparameters, channels=given.input_data_config
    )
    file = places.config / "resourceconfig.json"
    place = place_of(*input_config.resources(file, given.resource_config), environ, str(file))
    if settings.job is not None:
        log.warning(f"TOOLKIT_JOB={settings.job} is not read: SageMaker's documents say what the job is")
    asked = decoded(written.hyperparameters) if given.hyperparameters is None else given.hyperparameters
    named = [("TOOLKIT_PROGRAM", settings.program), *programs(asked, environ)]
    by, entry = chosen(named, places.code, log)
    spec = asked_for(written, asked, places, environ, log, entry=entry, entry_from=by)
    if spec.entry is None and may_exist(places.data / "sm_drivers/sourcecode.json", follow_links=False):
        from toolkit.train.platforms.sagemaker import drivers

        spec = drivers.asked_for(spec, place, places.data, environ)
    return assemble(
        spec,
        place,
        settings,
        machine,
        folders=places,
        environ=environ,
        interpreter=interpreter,
        log=log,
    )


def programs(asked: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return (source, script) of SageMaker's sources: the image's variable, then the client's hyperparameter."""
    program = asked.get(PROGRAM)
    given = program if isinstance(program, str) else None
    return [(sagemaker_variables.PROGRAM, environ.get(sagemaker_variables.PROGRAM)), (PROGRAM, given)]


def place_of(resources: ResourceConfig, raw: dict[str, Any], environ: Mapping[str, str], where: str) -> Place:
    """Return the place that resourceconfig.json describes. *raw*: its content; *where*: its path for errors.

    Without a job name and ARN this is no job of SageMaker's: a person mounted the documents, and the container's engine
    stops the job.
    """
    groups = resources.instance_groups or ()
    return Place(
        hosts=resources.hosts,
        current=resources.current_host,
        groups=tuple(
            Group(name=group.instance_group_name, instance_type=group.instance_type or "", hosts=group.hosts)
            for group in groups
        ),
        group=resources.current_group_name or _group_of(resources.current_host, groups),
        instance_type=resources.current_instance_type or "local",
        interface=resources.network_interface_name or "eth0",
        topology=resources.topology,
        resources=raw,
        where=where,
        stop_within_s=STOP_WITHIN_S,
        stopped_by_engine=not any(
            environ.get(name) for name in (sagemaker_variables.JOB_NAME, sagemaker_variables.JOB_ARN)
        ),
        stopped_is_success=True,
    )


def _group_of(host: str, groups: tuple[InstanceGroup, ...]) -> str:
    """Return the group that lists *host*, for documents without current_group_name."""
    return next((group.instance_group_name for group in groups if host in group.hosts), HOMOGENEOUS)


def asked_for(
    written: Documents,
    asked: Mapping[str, Any],
    places: Folders,
    environ: Mapping[str, str],
    log: Log,
    *,
    entry: str = "",
    entry_from: str = "",
    strategy: Strategy | None = None,
) -> JobSpec:
    """Return the job spec of documents and variables. *asked*: the decoded hyperparameters.

    *entry*: the script, "" for the hyperparameters' one; *entry_from*: the source that names it. *strategy*: how to
    start ranks, None for the hyperparameters' flags; the hyperparameters fill in the values that it leaves out.

    Raises:
        ContractError: a value is wrong.
    """
    framework = {name: value for name, value in asked.items() if _is_framework(name)}
    own = {name: value for name, value in asked.items() if not _is_framework(name)}
    log.hide(written.hyperparameters)
    log.hide(asked)
    source = _Source(framework, places.config / "hyperparameters.json", log)
    _warn_of_misspelt(framework, log)
    check_passable(own, str(source.file))
    named, submitted = source.text("sagemaker_job_name"), source.text(SUBMITTED)
    name = environ.get(sagemaker_variables.JOB_NAME) or named or ""
    for_tensorflow = model_dir.is_tensorflows(own, environ)
    if for_tensorflow and model_dir.TUNING in framework:
        own = model_dir.of_tuning(own, name, log)
    started = _strategy(source, strategy)
    region = source.text("sagemaker_region") or _region(environ)
    return JobSpec(
        name=name,
        entry=entry or source.text(PROGRAM),
        entry_from=entry_from or PROGRAM,
        plugin=_told_plugin(environ, log),
        source=submitted or environ.get(sagemaker_variables.SUBMIT_DIRECTORY) or None,
        source_from=SUBMITTED if submitted else sagemaker_variables.SUBMIT_DIRECTORY,
        strategy=started,
        groups=source.names(parameters.GROUPS) if parameters.GROUPS in framework else None,
        hyperparameters=own,
        channels=_channels(written, places),
        metric_definitions=written.metric_definitions,
        checkpoints=_checkpoints(places, written, log),
        profiler=_profiler(places, written, log),
        compiles=source.is_on(parameters.COMPILER),
        debugs_compiler=source.is_on(parameters.COMPILER_DEBUG),
        defaults=_torch_version(environ) | (model_dir.defaults(own, region) if for_tensorflow else {}),
        serves_tensorflow=for_tensorflow,
        region=region,
        log_level=_log_level(framework, environ, log),
        intermediate_uri=_intermediate_uri(source, name, places),
        shown=Shown(
            parameters=_shown(framework, own, started),
            job_name=named or "",
            framework_module=environ.get(sagemaker_variables.TRAINING_MODULE),
            module_dir=submitted or "",
            input_data_config=written.raw_channels,
        ),
    )


def _warn_of_misspelt(framework: Mapping[str, Any], log: Log) -> None:
    """Warn of parameters of SageMaker's own that are none, but nearly one that says how to start ranks."""
    strangers = framework.keys() - RESERVED - parameters.KNOWN
    if not strangers:
        return
    from difflib import get_close_matches  # 3 ms

    for name in sorted(strangers):
        near = get_close_matches(name, parameters.KNOWN, n=1, cutoff=ALIKE)
        if near:
            log.warning(f"hyperparameters.json: $.{name} is ignored: nothing reads it. Did you mean {near[0]}?")


def _shown(framework: Mapping[str, Any], own: Mapping[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Return SM_FRAMEWORK_PARAMS. transformers (5.23, utils/import_utils.py) takes a job for one of the model parallel
    library only if MPI's flag is there, so such a job has the flag under torchrun, too."""
    found = {name: value for name, value in framework.items() if name not in RESERVED}
    if own.get(parameters.MODEL_PARALLEL) and STRATEGIES[strategy.name].launcher == "torchrun":
        found[parameters.FLAGS["mpi"]] = True
    return found


def plugin(environ: Mapping[str, str]) -> str | None:
    """Return the framework plug-in that runs the job; None without one, or if `train` replaces it.

    Raises:
        ContractError: its name does not have the form "module:function".
    """
    named = sagemaker_variables.plugin(environ)
    return None if named in REPLACED else named


def _told_plugin(environ: Mapping[str, str], log: Log) -> str | None:
    named = sagemaker_variables.plugin(environ)
    if named in REPLACED:
        log.info(
            f"{sagemaker_variables.TRAINING_MODULE}={named}, which AWS's images set, is ignored:"
            " train does the same work"
        )
    return plugin(environ)


def _intermediate_uri(source: "_Source", name: str, places: Folders) -> str:
    """Return where output/intermediate is uploaded: below sagemaker_s3_output, as sagemaker-training does; "" without
    one, for file://, and where the platform has mounted the folder, since it keeps the files then."""
    output = source.text(OUTPUT) or ""
    if not output or output.startswith("file://") or is_mount(places.intermediate):
        return ""
    return "/".join(filter(None, (output.rstrip("/"), name, "output/intermediate")))


def _torch_version(environ: Mapping[str, str]) -> dict[str, str]:
    """Return SM_DLC_TORCH_VERSION (torch.__version__), which AWS's PyTorch plug-in sets. It is read from torch's
    version.py: importing torch takes seconds."""
    if environ.get(sagemaker_variables.TRAINING_MODULE) != PYTORCH:
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
    """Return *hyperparameters* with each string decoded as JSON once. Strings that are not JSON and other values stay.

    SageMaker's SDK writes every value as JSON in a string; other clients write plain text. NaN and Infinity count as
    JSON, as in Python's json.
    """
    return {name: _decoded(value) if isinstance(value, str) else value for name, value in hyperparameters.items()}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def hyperparameters(places: Folders) -> dict[str, Any]:
    """Return the content of hyperparameters.json, decoded, SageMaker's own included.

    Raises:
        ContractError: it is missing or wrong.
    """
    file = places.config / "hyperparameters.json"
    return decoded(typed(input_config.load(file), dict[str, Any], file))


def split(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the user's, SM_FRAMEWORK_PARAMS) of decoded hyperparameters."""
    own = {name: value for name, value in asked.items() if not _is_framework(name)}
    return own, {name: value for name, value in asked.items() if _is_framework(name) and name not in RESERVED}


class _Source:
    """The platform's own hyperparameters, with typed access."""

    def __init__(self, values: dict[str, Any], file: Path, log: Log) -> None:
        self.values = values
        self.file = file
        self.log = log

    def text(self, name: str) -> str | None:
        return typed(self.values.get(name), str | None, self.file, f"$.{name}")  # type: ignore[arg-type]

    def shown(self, name: str) -> str:
        """Return the value as text, whatever its type; "" without it."""
        value = self.values.get(name)
        return "" if value is None else str(value)

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
        """Return whether the flag is set. Clients also write it as Python ("False", "None") or in words ("no").

        A value that says neither counts as set, as in sagemaker-training, and is warned of.
        """
        value = self.values.get(name, False)
        if isinstance(value, str):
            value = WORDS.get(value.strip().lower(), value)
        if isinstance(value, dict) and isinstance(value.get("enabled"), bool):
            value = value["enabled"]  # An entry of the SDK's `distribution`, as it stands there.
        if not (value is None or isinstance(value, bool) or value in (0, 1)):
            self.log.warning(
                f"{self.file.name}: $.{name}: expected true or false, found {json.dumps(value)[:60]}, which counts as "
                f"{'true' if value else 'false'}"
            )
        return bool(value)


def _is_framework(name: str) -> bool:
    return name in RESERVED or name.startswith("sagemaker_")


def _strategy(source: _Source, over: Strategy | None) -> Strategy:
    """Return how the hyperparameters start ranks; *over*'s values win."""
    flagged = tuple(name for name, flag in parameters.FLAGS.items() if source.is_on(flag))
    over = over or (Strategy(name=flagged[0], ignored=flagged[1:]) if flagged else Strategy())
    if over.name == "script":
        return Strategy()
    processes = parameters.PROCESSES
    return Strategy(
        name=over.name,
        ignored=over.ignored,
        processes_per_host=over.processes_per_host or source.count(parameters.PROCESSES_PER_HOST),
        processes=source.count(processes),
        processes_from=f"{source.file.name}: $.{processes}",
        mpirun_options=over.mpirun_options or _mpirun_options(source, over),
        instance_type=over.instance_type or source.shown(parameters.INSTANCE_TYPE),
    )


def _mpirun_options(source: _Source, strategy: Strategy) -> str:
    is_torchruns = STRATEGIES[strategy.name].launcher == "torchrun"
    names = parameters.ANY_MPIRUN_OPTIONS if is_torchruns else (parameters.mpirun_options(strategy.name),)
    return next(filter(None, map(source.shown, names)), "")


def _channels(written: Documents, places: Folders) -> tuple[Channel, ...]:
    channels = []
    for name, config in written.channels.items():
        mode = config.training_input_mode or "File"
        if mode not in MODES:
            raise ContractError(
                f"$.{name}.TrainingInputMode: expected one of 'File', 'FastFile', 'Pipe', found {mode!r}",
                where=str(places.config / "inputdataconfig.json"),
                hint="Set it in the job's InputDataConfig",
            )
        channels.append(msgspec.convert({"name": name, "folder": places.data / name, "mode": mode}, Channel))
    return tuple(channels)


def _checkpoints(places: Folders, written: Documents, log: Log) -> Path | None:
    """Return the folder for checkpoints, LocalPath; None for the usual one.

    If the base is not /opt/ml, a LocalPath below /opt/ml is moved below the base. A LocalPath that cannot be written or
    created gives a warning and None.
    """
    asked = Path(written.checkpoints.local_path or "")
    if not asked.is_absolute():
        return None
    if not can_be_a_path(str(asked)):
        log.warning(
            f"checkpointconfig.json: LocalPath: expected a path, found {str(asked)[:60]!r}; using {places.checkpoints}"
        )
        return None
    if asked.is_relative_to(BASE):
        return places.base / asked.relative_to(BASE)
    reason = ""
    try:
        existing = nearest(asked)
        if is_dir(existing) and os.access(existing, os.W_OK):
            return asked
    except OSError as error:
        if may_pass(error):
            raise  # In another folder the script would find no checkpoint, and begin again.
        reason = f" ({error.strerror})"
    instead = "" if asked == places.checkpoints else f"; using {places.checkpoints}"
    log.warning(f"checkpointconfig.json: LocalPath {asked} cannot be written to{reason}{instead}")
    return None


def _profiler(places: Folders, written: Documents, log: Log) -> Monitor | None:
    if written.profiler is None:
        return None
    from toolkit.job.documents import profiler_config

    return profiler_config.monitor(written.profiler, places, log.warning)


def _region(environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in sagemaker_variables.REGIONS if environ.get(name)), "")


def _log_level(framework: Mapping[str, Any], environ: Mapping[str, str], log: Log) -> int:
    """Return the log level that the job asks for, as a number of Python's logging; the hyperparameter wins over the
    variable."""
    asked = framework.get("sagemaker_container_log_level", environ.get(sagemaker_variables.LOG_LEVEL, ""))
    if asked == "":
        return 20
    level = level_named(str(asked))
    if level is None:
        log.warning(
            f"sagemaker_container_log_level: expected a number or a name such as INFO, found {asked!r}; using 20"
        )
        return 20
    return level
