"""Pure: the job that a framework plug-in asks for by `sagemaker_training.entry_point.run` (docs/sagemaker-training.md).

The plug-in's own process is the script of an outer `train`. What belongs to the whole job stays there: metrics,
monitor, log rules, hangs, restarts, checkpoints, uploads. The inner run adds the launcher, the link between the hosts'
launchers, and the report of the first rank that failed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolkit.errors import UserError
from toolkit.job.cluster import Cluster
from toolkit.job.documents import parameters
from toolkit.job.exports import Exports
from toolkit.job.job import Job
from toolkit.job.outcome import Outcome
from toolkit.job.strategy import Strategy, StrategyName
from toolkit.log import Log
from toolkit.records import Record
from toolkit.settings import MOST, Settings
from toolkit.train import within
from toolkit.train.fit_environment import MARKER
from toolkit.train.launchers.environment import HOOK
from toolkit.train.platforms import outcome_files

Runner = Literal["Process", "MPI", "SMDataParallel", "PyTorchXLA", "TorchDistributed"]
# The strategies for which AWS's plug-ins ask for each runner. The first is used unless the job enables another one.
STRATEGIES: dict[Runner, tuple[StrategyName, ...]] = {
    "Process": (),
    "MPI": ("mpi", "horovod"),
    "SMDataParallel": ("smddp", "pytorchddp"),
    "PyTorchXLA": ("pytorchxla",),
    "TorchDistributed": ("torch_distributed",),
}
# What an outer `train` sets for its own script alone.
OUTER = (
    MARKER,
    "SM_TRAINING_ENV_FILE",
    "TOOLKIT_COLLECTIVES",
    "TOOLKIT_COMPAT_PATH",
    "TOOLKIT_PROFILE_WINDOW",
    "TOOLKIT_SHIM_SOCKET",
    "TOOLKIT_STACKS",
    "TOOLKIT_STATUS_FOLDER",
    "TOOLKIT_STEP_TIMES",
)


class ScriptRequest(Record, frozen=True, kw_only=True):
    """The arguments of `entry_point.run`."""

    uri: str
    """"" if the code is in place."""
    entry: str
    arguments: tuple[str, ...]
    variables: dict[str, str]
    runner: Runner
    options: dict[str, Any] = {}
    """Its `extra_opts`."""
    environ: dict[str, str] = {}
    """The plug-in's environment, which may be too large for a process that starts."""


class ScriptAnswer(Record, frozen=True, kw_only=True):
    """The end of the script, for the plug-in's exception."""

    exit_code: int
    kind: str = ""
    """The kind of the failure."""
    cause: str = ""
    place: str = ""
    """The process that failed, as "host algo-2, rank 3, pid 71: killed by SIGKILL"."""
    command: str = ""
    report: str = ""
    """The content of output/failure."""


def environ_of(environ: Mapping[str, str], code: Path) -> dict[str, str]:
    """Return *environ*, a plug-in's, without what its outer `train` set for the plug-in alone."""
    inner = {name: value for name, value in environ.items() if name not in OUTER}
    path = [part for part in inner.pop("PYTHONPATH", "").split(":") if part and part not in (str(HOOK), str(code))]
    return inner | ({"PYTHONPATH": ":".join(path)} if path else {})


def job_of_request(job: Job, request: ScriptRequest) -> Job:
    """Return *job*, as documents and variables describe it, with what *request* asks for.

    Raises:
        UserError: an option has a wrong value.
    """
    strategy = _strategy(job, request)
    requested = msgspec.structs.replace(
        job,
        spec=msgspec.structs.replace(
            job.spec,
            entry=request.entry,
            entry_from="user_entry_point",
            plugin=None,
            source=request.uri or None,
            source_from="uri",
        ),
        arguments=request.arguments,
        variables=environ_of(request.variables, job.folders.code),
        strategy=strategy,
        cluster=_cluster(job.cluster, strategy),
    )
    return _inner(requested) if within.is_inside(request.environ) else requested


def answer(outcome: Outcome, log: Log) -> ScriptAnswer:
    """Return what to tell the plug-in of *outcome*."""
    if outcome.exit_code == 0:
        return ScriptAnswer(exit_code=0)
    masked = outcome_files.masked(outcome, log)
    return ScriptAnswer(
        exit_code=outcome.exit_code,
        kind=masked.cause.kind,
        cause=_text(masked.cause.message),
        place=_text(outcome_files.place_of(masked)),
        command=_text(" ".join(masked.command)),
        report=_text(outcome_files.whole_text(masked)),
    )


def _text(text: str) -> str:
    """Return *text* with "?" for each byte that is not UTF-8: the readers of JSON refuse what stands for one."""
    return text.encode("utf-8", "replace").decode()


def _strategy(job: Job, request: ScriptRequest) -> Strategy:
    """Return how the runner starts ranks: as the job enables it, else as *request*'s options say."""
    strategies = STRATEGIES[request.runner]
    if not strategies:
        return Strategy()
    enabled = (job.strategy.name, *job.strategy.ignored)
    name = next((candidate for candidate in enabled if candidate in strategies), strategies[0])
    options = {**job.spec.platform_values.parameters, **{key: value for key, value in request.options.items() if value}}
    return Strategy(
        name=name,
        processes_per_host=_count(options, parameters.PROCESSES_PER_HOST) or job.strategy.processes_per_host,
        processes=_count(options, parameters.PROCESSES),
        processes_from=f"extra_opts: {parameters.PROCESSES}",
        mpirun_options=str(options.get(parameters.mpirun_options(name)) or ""),
        instance_type=job.strategy.instance_type,
        model_parallel=job.strategy.model_parallel,
    )


def _count(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(name)
    if not value:
        return None
    if isinstance(value, bool) or not str(value).isdigit() or not 1 <= int(value) <= MOST:
        raise UserError(f"expected a whole number, 1 to {MOST:,}, found {value!r}", where=f"extra_opts: {name}")
    return int(value)


def _cluster(cluster: Cluster, strategy: Strategy) -> Cluster:
    """Return *cluster* with the hosts that take part: none for the script alone, else the distribution's; if the job
    enables no distribution, those of this host's group."""
    if strategy.name == "script":
        return msgspec.structs.replace(cluster, taking_part=())
    if cluster.taking_part:
        return cluster
    taking_part = next((group.hosts for group in cluster.groups if group.name == cluster.current_group), cluster.hosts)
    return msgspec.structs.replace(cluster, taking_part=taking_part)


def _inner(job: Job) -> Job:
    """Return *job* without what its outer `train` does already."""
    return msgspec.structs.replace(
        job,
        nested=True,
        settings=msgspec.structs.replace(
            job.settings,
            restarts=Settings().restarts,
            stall_s=Settings().stall_s,
            checkpoint_uri="",
            rules=None,
            metric_presets="",
        ),
        spec=msgspec.structs.replace(job.spec, metric_definitions=(), intermediate_uri="", serves_tensorflow=False),
        monitor=None,
        exports=Exports(),
        sidecar="",
    )
