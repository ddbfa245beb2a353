"""Makes the Job from the job spec, its place, our settings and this machine, in the same way on every platform."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit import settings
from toolkit.errors import ContractError
from toolkit.job.cluster import Cluster
from toolkit.job.compilation import Compiler
from toolkit.job.documents import sagemaker_variables, writing
from toolkit.job.documents.input_config import load
from toolkit.job.exports import Exports
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.monitor import Monitor
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import Strategy
from toolkit.job.variables import shared_names
from toolkit.log import Log
from toolkit.metrics.definition import pairs
from toolkit.settings import Settings
from toolkit.train.platforms.place import ENGINE_STOP_WITHIN_S, Place
from toolkit.train.platforms.profiler_rules import profiler_rules

COMPILE_BUDGET_S = 60.0  # Of `auto`: who asks for `on` wants to have compiled code, whatever it costs.
CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
COMPILE_CACHE = "compile-cache"  # Below the checkpoint folder, which the platform keeps across jobs.
# Neuron cores of instance types, which need no neuron-ls (sagemaker-training 5.1.4).
NEURON_CORES = {"trn2.48xlarge": 64}


def assemble(
    spec: JobSpec,
    place: Place,
    ours: Settings,
    machine: Machine,
    *,
    folders: Folders,
    environ: Mapping[str, str],
    interpreter: str,
    log: Log,
) -> Job:
    """Return the job. *ours*: the settings in *environ*; they are read again if the job spec has an environment.

    Raises:
        ContractError: the job's own environment, its place or its metric definitions are wrong.
    """
    log.hide(spec.hyperparameters)
    if spec.environment:
        environ = {**environ, **spec.environment}
        ours = settings.read(environ)
    kept = {name: value for name, value in environ.items() if name not in place.dropped}
    machine = _with_visible_gpus(machine, environ, log)
    cluster = _cluster(spec, place, ours, machine)
    strategy = _strategy(spec, cluster, place)
    folders = msgspec.structs.replace(
        folders, code=spec.code or folders.code, checkpoints=spec.checkpoints or folders.checkpoints
    )
    _warn_of_strangers(cluster, ours, log)
    _warn_of_shared_names(spec, log)
    _warn_of_several_strategies(spec.strategy, log)
    _warn_of_unknown_groups(spec, place, log)
    return Job(
        name=spec.name or place.name,
        settings=msgspec.structs.replace(
            ours,
            argument_style=ours.argument_style or spec.argument_style,
            processes_per_host=spec.processes_per_host or ours.processes_per_host or place.processes_per_host,
            rules=ours.rules or spec.rules,
        ),
        cluster=cluster,
        machine=_with_known_neurons(machine, cluster.instance_type),
        folders=folders,
        hyperparameters=spec.hyperparameters,
        strategy=strategy,
        channels=spec.channels,
        metric_definitions=_metric_definitions(spec, ours),
        shown=msgspec.structs.replace(
            spec.shown,
            resource_config=place.resources
            or writing.resources(cluster.current, cluster.hosts, cluster.groups, cluster.interface),
            variables=sagemaker_variables.for_script(spec.shown.job_name or spec.name or place.name, spec.region),
        ),
        environ={**sagemaker_variables.defaults(strategy, cluster), **spec.defaults, **place.environ, **kept},
        interpreter=interpreter,
        entry=spec.entry,
        entry_from=spec.entry_from,
        plugin=spec.plugin,
        source=spec.source,
        source_from=spec.source_from,
        requirements=spec.requirements,
        log_level=spec.log_level,
        stop_within_s=_stop_within_s(place, ours, machine),
        stopped_is_success=place.stopped_is_success,
        monitor=_monitor(spec, ours),
        exports=_exports(ours, folders.output),
        compiler=_compiler(spec, ours, folders),
        serves_tensorflow=spec.serves_tensorflow,
        intermediate_uri=spec.intermediate_uri,
        sidecar="" if ours.kubeflow_progress == "off" else place.sidecar,
    )


def _cluster(spec: JobSpec, place: Place, ours: Settings, machine: Machine) -> Cluster:
    """Return the cluster: the hosts of the distribution's groups take part, in the place's order; without groups,
    all."""
    distributed = spec.strategy.name != "script"
    named = spec.groups if spec.groups is not None else (place.group,) if distributed else ()
    grouped = tuple(host for group in place.groups if group.name in named for host in group.hosts)
    return Cluster(
        current=place.current,
        hosts=place.hosts,
        taking_part=() if not distributed else grouped if place.groups else place.hosts,
        groups=place.groups,
        current_group=place.group,
        distribution_groups=named,
        instance_type=place.instance_type,
        interface=place.interface or machine.route_interface or "eth0",
        topology=place.topology,
        addresses={**place.addresses, **ours.addresses()},
    )


def _warn_of_strangers(cluster: Cluster, ours: Settings, log: Log) -> None:
    """Warn of an address for no host of the job while a host has none: the name is likely misspelt."""
    given = ours.addresses().keys()
    strangers = sorted(given - set(cluster.hosts))
    if strangers and set(cluster.hosts) - given:
        hosts = ", ".join(cluster.hosts[:8])
        log.warning(f"TOOLKIT_HOST_ADDRESSES names {', '.join(strangers[:8])}: expected hosts of the job ({hosts})")


def _warn_of_shared_names(spec: JobSpec, log: Log) -> None:
    """Warn of names that differ only in case or in characters that variables cannot have: one of them gets no
    variable."""
    channels = shared_names("channel", [channel.name for channel in spec.channels])
    told = [f"channels {sentence}" for sentence in channels]
    told += [f"hyperparameters {sentence}" for sentence in shared_names("hp", spec.hyperparameters)]
    for sentence in told:
        log.warning(f"{sentence}. Rename one of them; SM_TRAINING_ENV holds both")


def _warn_of_several_strategies(asked: Strategy, log: Log) -> None:
    if asked.ignored:
        log.warning(
            f"the job enables several distributions: {', '.join((asked.name, *asked.ignored))}. {asked.name} is used."
            " Enable one of them"
        )


def _warn_of_unknown_groups(spec: JobSpec, place: Place, log: Log) -> None:
    """Warn of groups of the distribution that the job has not: without one that it has, no rank is distributed."""
    known = {group.name for group in place.groups} | {place.group}
    unknown = sorted(set(spec.groups or ()) - known) if spec.strategy.name != "script" else []
    if unknown:
        log.warning(
            f"the distribution is for the instance groups {', '.join(spec.groups or ())}: expected those of the job"
            f" ({', '.join(sorted(known))}). Hosts of other groups run the script alone"
        )


def _strategy(spec: JobSpec, cluster: Cluster, place: Place) -> Strategy:
    """Return how this host's ranks are started: a host outside the distribution's groups runs the script alone."""
    if cluster.current_group not in cluster.distribution_groups:
        return Strategy()
    if spec.strategy.name != "script" and not cluster.takes_part:
        raise ContractError(
            f"$.instance_groups: expected {cluster.current!r} among the hosts of its group {cluster.current_group!r},"
            f" found {', '.join(cluster.taking_part) or 'none'}",
            where=place.where,
        )
    return spec.strategy


def _metric_definitions(spec: JobSpec, ours: Settings) -> tuple[tuple[str, str], ...]:
    """Return the definitions in TOOLKIT_METRICS's file if it is set, else the job's; and those of presets.

    Raises:
        ContractError: that file is missing or has another shape (it is the user's own), or there is no such preset.
    """
    if ours.metrics is None:
        own = spec.metric_definitions
    else:
        own = pairs(load(ours.metrics, hint="TOOLKIT_METRICS names it"), str(ours.metrics))
    if not ours.metric_presets:
        return own
    from toolkit.metrics import presets

    return *own, *presets.definitions(ours.metric_presets, "TOOLKIT_METRIC_PRESETS")


def _exports(ours: Settings, output: Path) -> Exports:
    """Return where metrics go; a relative folder of event files is below the output folder."""
    return Exports(
        prometheus_port=ours.prometheus_port,
        prometheus_address=ours.prometheus_address,
        tensorboard=None if ours.tensorboard is None else output / ours.tensorboard,
        mlflow_uri=ours.mlflow_tracking_uri or None,
        mlflow_experiment=ours.mlflow_experiment,
    )


def _compiler(spec: JobSpec, ours: Settings, folders: Folders) -> Compiler | None:
    """Return what the ranks compile: TOOLKIT_COMPILE decides, else the job's flag for the Training Compiler."""
    mode = ours.compile or ("auto" if spec.compiles else "off")
    if mode == "off" and ours.autocast == "off":
        return None
    return Compiler(
        compile=mode,
        autocast=ours.autocast,
        budget_s=COMPILE_BUDGET_S if ours.compile_budget_s is None and mode == "auto" else ours.compile_budget_s,
        cache=ours.compile_cache or folders.checkpoints / COMPILE_CACHE,
        debug=spec.debugs_compiler,
        dump=folders.output_data / "compiler",
    )


def _monitor(spec: JobSpec, ours: Settings) -> Monitor | None:
    """Return the system monitor: TOOLKIT_MONITOR decides, else the job file, else profilerconfig.json."""
    asked = spec.monitor if ours.monitor is None else ours.monitor in ("on", "1")
    if not (spec.profiler is not None if asked is None else asked):
        return None
    monitor = spec.profiler or Monitor()
    return msgspec.structs.replace(
        monitor,
        interval_s=ours.monitor_interval_s or monitor.interval_s,
        rules=profiler_rules(spec, ours),
    )


def _stop_within_s(place: Place, ours: Settings, machine: Machine) -> float:
    if ours.stop_within_s is not None:
        return ours.stop_within_s
    return ENGINE_STOP_WITHIN_S if place.stopped_by_engine and machine.engine else place.stop_within_s


def _with_known_neurons(machine: Machine, instance_type: str) -> Machine:
    """Return *machine* with the Neuron cores of its instance type, if the type is in the table."""
    for instance, cores in NEURON_CORES.items():
        if instance in instance_type:
            return msgspec.structs.replace(machine, accelerator="neuron", accelerators=cores)
    return machine


def _with_visible_gpus(machine: Machine, environ: Mapping[str, str], log: Log) -> Machine:
    """Return *machine* with the GPUs that CUDA shows to the job's processes, and say what the variable does."""
    text = environ.get(CUDA_VISIBLE)
    if text is None or machine.accelerator == "neuron":
        return machine
    from toolkit.job.visible import hides_all, visible

    if machine.gpu_trouble and hides_all(text):  # The job asks for no GPU.
        log.warning(f"{machine.gpu_trouble}; {CUDA_VISIBLE}={text} asks for no GPU")
        return msgspec.structs.replace(machine, gpu_trouble="")
    total = machine.accelerators
    if not total:
        return machine
    seen = visible(text, machine.gpu_uuids, machine.mig_uuids)
    told = f"{CUDA_VISIBLE}={text}: the job sees {seen.count} of this host's {total} GPU{'s' * (total > 1)}"
    if seen.doubt:
        log.warning(f"{told}: {seen.doubt}")
    else:
        log.info(told)
    return msgspec.structs.replace(machine, accelerator="nvidia" if seen.count else "none", accelerators=seen.count)


def check_passable(hyperparameters: Mapping[str, object], where: str) -> None:
    """Raise ContractError for text that neither an argument nor a variable can hold; *where* names its document."""
    for name, value in hyperparameters.items():
        text = f"{name}{value}"
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ContractError(
                f"$.{json.dumps(name)[1:-1]}: expected text that arguments and variables can hold,"
                " found a NUL or half a surrogate pair in it",
                where=where,
            )
