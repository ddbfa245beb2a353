"""Makes the job spec of a job's documents and variables, and lays the options of a job file over it.

The documents have SageMaker's formats on every platform. Hyperparameters are merged before: those of the job file are
among the hyperparameters from which a spec is made, and its environment is among the variables.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit.errors import ContractError, may_pass
from toolkit.folders import is_dir, is_mount, nearest
from toolkit.job.base_folders import BASE
from toolkit.job.channel import Channel
from toolkit.job.documents import model_dir, parameters, sagemaker_variables, writing
from toolkit.job.documents.folder_names import check_passable
from toolkit.job.documents.input_config import Documents
from toolkit.job.documents.typed_parameters import TypedParameters
from toolkit.job.job import Folders
from toolkit.job.monitor import Monitor
from toolkit.job.spec import JobSpec, PlatformValues
from toolkit.job.strategy import STRATEGIES, Strategy, StrategyName
from toolkit.log import Log, level_named
from toolkit.paths import can_be_a_path

if TYPE_CHECKING:  # Most jobs have no job file.
    from toolkit.job.file.job_file import JobFile

MODES = ("File", "FastFile", "Pipe")
# Framework plug-ins that this toolkit replaces; if started, they would run the job with sagemaker-training.
PYTORCH = "sagemaker_pytorch_container.training:main"
REPLACED = (PYTORCH, model_dir.PLUGIN)
SIMILARITY = 0.88  # How similar a misspelt name is to the right one (difflib): "_enable" and "_enabled" 0.98.


def program_sources(hyperparameters: Mapping[str, Any], environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return (source, script) of SageMaker's sources: the image's variable, then the client's hyperparameter."""
    program = hyperparameters.get(parameters.PROGRAM)
    return [
        (sagemaker_variables.PROGRAM, environ.get(sagemaker_variables.PROGRAM)),
        (parameters.PROGRAM, program if isinstance(program, str) else None),
    ]


def job_spec(
    documents: Documents,
    hyperparameters: Mapping[str, Any],
    folders: Folders,
    environ: Mapping[str, str],
    log: Log,
    *,
    places: Mapping[str, str],
    entry: str = "",
    entry_from: str = "",
    strategy: Strategy | None = None,
) -> JobSpec:
    """Return the job spec of documents and variables. *hyperparameters*: decoded, the platform's own among them.

    *places*: where hyperparameters stand that are not in hyperparameters.json, for errors. *entry*: the script, "" for
    the hyperparameters' one; *entry_from*: the source that names it. *strategy*: how to start ranks, None for the
    hyperparameters' flags; the hyperparameters fill in the values that it leaves out.

    Raises:
        ContractError: a value is wrong.
    """
    user = {name: value for name, value in hyperparameters.items() if not parameters.is_platforms(name)}
    platform = {name: value for name, value in hyperparameters.items() if parameters.is_platforms(name)}
    log.hide(documents.hyperparameters)
    log.hide(hyperparameters)
    typed = TypedParameters(platform, folders.config / "hyperparameters.json", places, log)
    _warn_of_misspelt(platform, typed, log)
    check_passable(user, typed.place)
    documented_name, submitted = typed.text(parameters.JOB_NAME), typed.text(parameters.SUBMITTED)
    name = environ.get(sagemaker_variables.JOB_NAME) or documented_name or ""
    for_tensorflow = model_dir.is_tensorflow_job(user, environ)
    if for_tensorflow and model_dir.TUNING in platform:
        user = model_dir.with_own_folder(user, name, log)
    strategy = _strategy(typed, strategy)
    region = typed.text(parameters.REGION) or _region(environ)
    return JobSpec(
        name=name,
        entry=entry or typed.text(parameters.PROGRAM),
        entry_from=entry_from or parameters.PROGRAM,
        plugin=_log_plugin(environ, log),
        source=submitted or environ.get(sagemaker_variables.SUBMIT_DIRECTORY) or None,
        source_from=parameters.SUBMITTED if submitted else sagemaker_variables.SUBMIT_DIRECTORY,
        strategy=strategy,
        groups=typed.names(parameters.GROUPS) if parameters.GROUPS in platform else None,
        hyperparameters=user,
        channels=_channels(documents, folders),
        metric_definitions=documents.metric_definitions,
        checkpoints=_checkpoints(folders, documents, log),
        profiler=_profiler(folders, documents, log),
        compiles=typed.is_on(parameters.COMPILER),
        debugs_compiler=typed.is_on(parameters.COMPILER_DEBUG),
        defaults=_torch_version(environ) | (model_dir.defaults(user, region) if for_tensorflow else {}),
        serves_tensorflow=for_tensorflow,
        region=region,
        log_level=_log_level(platform, environ, log),
        intermediate_uri=_intermediate_uri(typed, name, folders),
        platform_values=PlatformValues(
            parameters=_framework_params(platform, user, strategy),
            job_name=documented_name or "",
            framework_module=environ.get(sagemaker_variables.TRAINING_MODULE),
            module_dir=submitted or "",
            input_data_config=documents.raw_channels,
        ),
    )


def with_job_file(
    spec: JobSpec, file: "JobFile", folders: Folders, *, default_distribution: StrategyName | None
) -> JobSpec:
    """Return *spec* with the options of *file* laid over those of documents.

    *default_distribution*: the orchestrator's, used if neither *file* nor a hyperparameter names one. A submitted
    source is only ever put into the base's code folder, so it is dropped if the code is elsewhere.
    """
    if default_distribution and spec.strategy.name == "script":
        file = msgspec.structs.replace(file, strategy=Strategy(name=default_distribution))
        spec = msgspec.structs.replace(spec, strategy=strategy_of(file))
    in_base = file.source == folders.code
    flags = {
        name: value for name, value in writing.distribution_flags(file).items() if name not in file.hyperparameters
    }
    partition = {name: flags.pop(name) for name in (parameters.MODEL_PARALLEL,) if name in flags}
    channels = {channel.name: channel for channel in (*spec.channels, *file.channels)}
    # A plug-in's job without a script has no name of its own.
    name = (not file.entry and spec.name) or file.name
    values = spec.platform_values
    return msgspec.structs.replace(
        spec,
        name=name,
        code=file.source,
        source=spec.source if in_base else None,
        groups=file.distribution_groups or spec.groups,
        processes_per_host=file.processes_per_host,
        # The library's parameters come first and win over a hyperparameter of the documents.
        hyperparameters={**partition, **{k: v for k, v in spec.hyperparameters.items() if k not in partition}},
        channels=tuple(channels.values()),
        metric_definitions=file.metric_definitions or spec.metric_definitions,
        checkpoints=file.checkpoints or spec.checkpoints,
        rules=file.rules,
        profiler_rules=file.profiler_rules,
        monitor=file.monitor,
        environment=file.environment,
        platform_values=msgspec.structs.replace(
            values,
            parameters={**values.parameters, **flags},
            job_name=name,
            module_dir=values.module_dir if in_base else "",
            input_data_config={**values.input_data_config, **writing.inputs(file)},
        ),
    )


def strategy_of(file: "JobFile") -> Strategy:
    """Return how *file* starts ranks; its processes-per-host wins over the number in its distribution."""
    return msgspec.structs.replace(
        file.strategy,
        processes_per_host=file.processes_per_host or file.strategy.processes_per_host,
        instance_type=file.first_type if file.strategy.name == "smddp" else "",
    )


def plugin_of(environ: Mapping[str, str]) -> str | None:
    """Return the framework plug-in that runs the job; None without one, or if `train` replaces it.

    Raises:
        ContractError: its name does not have the form "module:function".
    """
    plugin = sagemaker_variables.plugin(environ)
    return None if plugin in REPLACED else plugin


def _warn_of_misspelt(platform: Mapping[str, Any], typed: TypedParameters, log: Log) -> None:
    """Warn of parameters of SageMaker's own that are none, but nearly one that says how to start ranks."""
    unknown = platform.keys() - parameters.RESERVED - parameters.KNOWN
    if not unknown:
        return
    from difflib import get_close_matches  # 3 ms

    for name in sorted(unknown):
        near = get_close_matches(name, parameters.KNOWN, n=1, cutoff=SIMILARITY)
        if near:
            log.warning(f"{typed.short_place(name)} is ignored: nothing reads it. Did you mean {near[0]}?")


def _framework_params(platform: Mapping[str, Any], user: Mapping[str, Any], strategy: Strategy) -> dict[str, Any]:
    """Return SM_FRAMEWORK_PARAMS. transformers (5.23, utils/import_utils.py) takes a job for one of the model parallel
    library only if MPI's flag is there, so such a job has the flag under torchrun, too."""
    params = {name: value for name, value in platform.items() if name not in parameters.RESERVED}
    if user.get(parameters.MODEL_PARALLEL) and STRATEGIES[strategy.name].launcher == "torchrun":
        params[parameters.FLAGS["mpi"]] = True
    return params


def _log_plugin(environ: Mapping[str, str], log: Log) -> str | None:
    plugin = sagemaker_variables.plugin(environ)
    if plugin in REPLACED:
        variable = sagemaker_variables.TRAINING_MODULE
        log.info(f"{variable}={plugin}, which AWS's images set, is ignored: train does the same work")
    return plugin_of(environ)


def _intermediate_uri(typed: TypedParameters, name: str, folders: Folders) -> str:
    """Return where output/intermediate is uploaded: below sagemaker_s3_output, as sagemaker-training does; "" without
    one, for file://, and where the platform has mounted the folder, since it keeps the files then."""
    output = typed.text(parameters.OUTPUT) or ""
    if not output or output.startswith("file://") or is_mount(folders.intermediate):
        return ""
    return "/".join(filter(None, (output.rstrip("/"), name, "output/intermediate")))


def _torch_version(environ: Mapping[str, str]) -> dict[str, str]:
    """Return SM_DLC_TORCH_VERSION (torch.__version__), which AWS's PyTorch plug-in sets. It is read from torch's
    version.py: importing torch takes seconds."""
    if environ.get(sagemaker_variables.TRAINING_MODULE) != PYTORCH:
        return {}
    import importlib.util

    module = importlib.util.find_spec("torch")
    try:
        text = Path(module.origin or "").with_name("version.py").read_text("utf-8") if module else ""
    except OSError:
        text = ""
    version = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.M)
    return {"SM_DLC_TORCH_VERSION": version[1]} if version else {}


def _strategy(typed: TypedParameters, chosen: Strategy | None) -> Strategy:
    """Return how the hyperparameters start ranks; *chosen*'s values win."""
    flagged = tuple(name for name, flag in parameters.FLAGS.items() if typed.is_on(flag))
    chosen = chosen or (Strategy(name=flagged[0], ignored=flagged[1:]) if flagged else Strategy())
    if chosen.name == "script":
        return Strategy()
    processes = parameters.PROCESSES
    return Strategy(
        name=chosen.name,
        ignored=chosen.ignored,
        processes_per_host=chosen.processes_per_host or typed.count(parameters.PROCESSES_PER_HOST),
        processes=typed.count(processes),
        processes_from=typed.short_place(processes),
        mpirun_options=chosen.mpirun_options or _mpirun_options(typed, chosen),
        instance_type=chosen.instance_type or typed.as_text(parameters.INSTANCE_TYPE),
    )


def _mpirun_options(typed: TypedParameters, strategy: Strategy) -> str:
    uses_torchrun = STRATEGIES[strategy.name].launcher == "torchrun"
    names = parameters.ANY_MPIRUN_OPTIONS if uses_torchrun else (parameters.mpirun_options(strategy.name),)
    return next(filter(None, map(typed.as_text, names)), "")


def _channels(documents: Documents, folders: Folders) -> tuple[Channel, ...]:
    channels = []
    for name, config in documents.channels.items():
        mode = config.training_input_mode or "File"
        if mode not in MODES:
            raise ContractError(
                f"$.{name}.TrainingInputMode: expected one of 'File', 'FastFile', 'Pipe', found {mode!r}",
                where=str(folders.config / "inputdataconfig.json"),
                hint="Set it in the job's InputDataConfig",
            )
        channels.append(msgspec.convert({"name": name, "folder": folders.data / name, "mode": mode}, Channel))
    return tuple(channels)


def _checkpoints(folders: Folders, documents: Documents, log: Log) -> Path | None:
    """Return the folder for checkpoints, LocalPath; None for the usual one.

    If the base is not /opt/ml, a LocalPath below /opt/ml is moved below the base. A LocalPath that cannot be written or
    created gives a warning and None.
    """
    path = Path(documents.checkpoints.local_path or "")
    if not path.is_absolute():
        return None
    if not can_be_a_path(str(path)):
        log.warning(
            f"checkpointconfig.json: LocalPath: expected a path, found {str(path)[:60]!r}; using {folders.checkpoints}"
        )
        return None
    if path.is_relative_to(BASE):
        return folders.base / path.relative_to(BASE)
    reason = ""
    try:
        existing = nearest(path)
        if is_dir(existing) and os.access(existing, os.W_OK):
            return path
    except OSError as error:
        if may_pass(error):
            raise  # In another folder the script would find no checkpoint, and begin again.
        reason = f" ({error.strerror})"
    instead = "" if path == folders.checkpoints else f"; using {folders.checkpoints}"
    log.warning(f"checkpointconfig.json: LocalPath {path} cannot be written to{reason}{instead}")
    return None


def _profiler(folders: Folders, documents: Documents, log: Log) -> Monitor | None:
    if documents.profiler is None:
        return None
    from toolkit.job.documents import profiler_config

    return profiler_config.monitor(documents.profiler, folders, log.warning)


def _region(environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in sagemaker_variables.REGIONS if environ.get(name)), "")


def _log_level(platform: Mapping[str, Any], environ: Mapping[str, str], log: Log) -> int:
    """Return the log level that the job asks for, as a number of Python's logging; the hyperparameter wins over the
    variable."""
    text = platform.get(parameters.LOG_LEVEL, environ.get(sagemaker_variables.LOG_LEVEL, ""))
    if text == "":
        return 20
    level = level_named(str(text))
    if level is None:
        log.warning(f"{parameters.LOG_LEVEL}: expected a number or a name such as INFO, found {text!r}; using 20")
        return 20
    return level
