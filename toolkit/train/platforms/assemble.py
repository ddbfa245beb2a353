"""Makes the Job from the job spec, its place, our settings and this machine, in the same way on every platform."""

from collections.abc import Mapping

import msgspec

from toolkit.errors import ContractError
from toolkit.job.cluster import Cluster
from toolkit.job.compilation import Compiler
from toolkit.job.documents import sagemaker_variables, writing
from toolkit.job.documents.input_config import load
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.monitor import Monitor
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import Strategy
from toolkit.job.variables import shared_names
from toolkit.log import Log
from toolkit.metrics.definition import pairs
from toolkit.settings import Settings
from toolkit.settings import read as read_settings
from toolkit.train.platforms import export_targets
from toolkit.train.platforms.place import ENGINE_STOP_WITHIN_S, Place
from toolkit.train.platforms.profiler_rules import profiler_rules

COMPILE_BUDGET_S = 60.0  # With `auto`; `on` compiles whatever it costs.
CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
COMPILE_CACHE = "compile-cache"  # Below the checkpoint folder, which the platform keeps across jobs.
# Neuron cores of instance types, which need no neuron-ls (sagemaker-training 5.1.4).
NEURON_CORES = {"trn2.48xlarge": 64}


def assemble(
    spec: JobSpec,
    place: Place,
    settings: Settings,
    machine: Machine,
    *,
    folders: Folders,
    environ: Mapping[str, str],
    interpreter: str,
    log: Log,
) -> Job:
    """Return the job. *settings*: those in *environ*; they are read again if the job spec has an environment.

    Raises:
        ContractError: the job's own environment, its place or its metric definitions are wrong.
    """
    log.hide(spec.hyperparameters)
    if spec.environment:
        environ = {**environ, **spec.environment}
        settings = read_settings(environ)
    passed = {name: value for name, value in environ.items() if name not in place.dropped}
    machine = _with_visible_gpus(machine, environ, log)
    cluster = _cluster(spec, place.cluster, settings, machine)
    strategy = _strategy(spec, cluster, place)
    folders = msgspec.structs.replace(
        folders, code=spec.code or folders.code, checkpoints=spec.checkpoints or folders.checkpoints
    )
    _warn_of_unknown_hosts(cluster, settings, log)
    _warn_of_shared_names(spec, log)
    _warn_of_several_strategies(spec.strategy, log)
    _warn_of_unknown_groups(spec, cluster, log)
    return Job(
        spec=_completed(spec, place, settings, cluster),
        settings=msgspec.structs.replace(
            settings,
            argument_style=settings.argument_style or spec.argument_style,
            processes_per_host=spec.processes_per_host or settings.processes_per_host or place.processes_per_host,
            rules=settings.rules or spec.rules,
        ),
        cluster=cluster,
        machine=_with_known_neurons(machine, cluster.instance_type),
        folders=folders,
        strategy=strategy,
        environ={**sagemaker_variables.defaults(strategy, cluster), **spec.defaults, **place.environ, **passed},
        interpreter=interpreter,
        monitor=_monitor(spec, settings),
        exports=export_targets.read(settings, folders.output),
        compiler=_compiler(spec, settings, folders),
        sidecar="" if settings.kubeflow_progress == "off" else place.sidecar,
        stop_within_s=_stop_within_s(place, settings, machine),
        stopped_is_success=place.stopped_is_success,
    )


def _completed(spec: JobSpec, place: Place, settings: Settings, cluster: Cluster) -> JobSpec:
    """Return *spec* with what the place and our settings add to it."""
    name = spec.name or place.name
    return msgspec.structs.replace(
        spec,
        name=name,
        metric_definitions=_metric_definitions(spec, settings),
        platform_values=msgspec.structs.replace(
            spec.platform_values,
            resource_config=place.resources
            or writing.resources(cluster.current, cluster.hosts, cluster.groups, cluster.interface),
            variables=sagemaker_variables.for_script(spec.platform_values.job_name or name, spec.region),
        ),
    )


def _cluster(spec: JobSpec, cluster: Cluster, settings: Settings, machine: Machine) -> Cluster:
    """Return *cluster* with the hosts that take part: those of the distribution's groups; without groups, all."""
    distributed = spec.strategy.name != "script"
    names = spec.groups if spec.groups is not None else (cluster.current_group,) if distributed else ()
    grouped = tuple(host for group in cluster.groups if group.name in names for host in group.hosts)
    return msgspec.structs.replace(
        cluster,
        taking_part=() if not distributed else grouped if cluster.groups else cluster.hosts,
        distribution_groups=names,
        interface=cluster.interface or machine.route_interface or "eth0",
        addresses={**cluster.addresses, **settings.addresses()},
    )


def _warn_of_unknown_hosts(cluster: Cluster, settings: Settings, log: Log) -> None:
    """Warn of an address for no host of the job while a host has none: the name is likely misspelt."""
    addressed = settings.addresses().keys()
    unknown = sorted(addressed - set(cluster.hosts))
    if unknown and set(cluster.hosts) - addressed:
        hosts = ", ".join(cluster.hosts[:8])
        log.warning(f"TOOLKIT_HOST_ADDRESSES names {', '.join(unknown[:8])}: expected hosts of the job ({hosts})")


def _warn_of_shared_names(spec: JobSpec, log: Log) -> None:
    """Warn of names that differ only in case or in characters that variables cannot have: one of them gets no
    variable."""
    channels = shared_names("channel", [channel.name for channel in spec.channels])
    sentences = [f"channels {sentence}" for sentence in channels]
    sentences += [f"hyperparameters {sentence}" for sentence in shared_names("hp", spec.hyperparameters)]
    for sentence in sentences:
        log.warning(f"{sentence}. Rename one of them; SM_TRAINING_ENV holds both")


def _warn_of_several_strategies(strategy: Strategy, log: Log) -> None:
    if strategy.ignored:
        log.warning(
            f"the job enables several distributions: {', '.join((strategy.name, *strategy.ignored))}."
            f" {strategy.name} is used. Enable one of them"
        )


def _warn_of_unknown_groups(spec: JobSpec, cluster: Cluster, log: Log) -> None:
    """Warn of groups of the distribution that the job has not: without one that it has, no rank is distributed."""
    names = {group.name for group in cluster.groups} | {cluster.current_group}
    unknown = sorted(set(spec.groups or ()) - names) if spec.strategy.name != "script" else []
    if unknown:
        log.warning(
            f"the distribution is for the instance groups {', '.join(spec.groups or ())}: expected those of the job"
            f" ({', '.join(sorted(names))}). Hosts of other groups run the script alone"
        )


def _strategy(spec: JobSpec, cluster: Cluster, place: Place) -> Strategy:
    """Return how this host's ranks are started: a host outside the distribution's groups runs the script alone."""
    if cluster.current_group not in cluster.distribution_groups:
        return Strategy()
    if spec.strategy.name != "script" and not cluster.takes_part:
        raise ContractError(
            f"$.instance_groups: expected {cluster.current!r} among the hosts of its group {cluster.current_group!r},"
            f" found {', '.join(cluster.taking_part) or 'none'}",
            where=place.source,
        )
    return spec.strategy


def _metric_definitions(spec: JobSpec, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the definitions in TOOLKIT_METRICS's file if it is set, else the job's; and those of presets.

    Raises:
        ContractError: that file is missing or has another shape (it is the user's own), or there is no such preset.
    """
    if settings.metrics is None:
        definitions = spec.metric_definitions
    else:
        definitions = pairs(load(settings.metrics, hint="TOOLKIT_METRICS names it"), str(settings.metrics))
    if not settings.metric_presets:
        return definitions
    from toolkit.metrics import presets

    return *definitions, *presets.definitions(settings.metric_presets, "TOOLKIT_METRIC_PRESETS")


def _compiler(spec: JobSpec, settings: Settings, folders: Folders) -> Compiler | None:
    """Return what the ranks compile: TOOLKIT_COMPILE decides, else the job's flag for the Training Compiler."""
    mode = settings.compile or ("auto" if spec.compiles else "off")
    if mode == "off" and settings.autocast == "off":
        return None
    return Compiler(
        compile=mode,
        autocast=settings.autocast,
        budget_s=COMPILE_BUDGET_S
        if settings.compile_budget_s is None and mode == "auto"
        else settings.compile_budget_s,
        cache=settings.compile_cache or folders.checkpoints / COMPILE_CACHE,
        debug=spec.debugs_compiler,
        dump=folders.output_data / "compiler",
    )


def _monitor(spec: JobSpec, settings: Settings) -> Monitor | None:
    """Return the system monitor: TOOLKIT_MONITOR decides, else the job file, else profilerconfig.json."""
    is_on = spec.monitor if settings.monitor is None else settings.monitor in ("on", "1")
    if not (spec.profiler is not None if is_on is None else is_on):
        return None
    monitor = spec.profiler or Monitor()
    return msgspec.structs.replace(
        monitor,
        interval_s=settings.monitor_interval_s or monitor.interval_s,
        rules=profiler_rules(spec, settings),
    )


def _stop_within_s(place: Place, settings: Settings, machine: Machine) -> float:
    if settings.stop_within_s is not None:
        return settings.stop_within_s
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
    gpus = visible(text, machine.gpu_uuids, machine.mig_uuids)
    message = f"{CUDA_VISIBLE}={text}: the job sees {gpus.count} of this host's {total} GPU{'s' * (total > 1)}"
    if gpus.doubt:
        log.warning(f"{message}: {gpus.doubt}")
    else:
        log.info(message)
    return msgspec.structs.replace(machine, accelerator="nvidia" if gpus.count else "none", accelerators=gpus.count)
