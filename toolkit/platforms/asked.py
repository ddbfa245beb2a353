"""A job outside SageMaker: what the user asks for (a job file, mounted documents, TOOLKIT_* variables) as a JobSpec, in
the place that an orchestrator gave it.

What wins: a TOOLKIT_* variable, then the job file, then documents in input/config (hyperparameters.json,
inputdataconfig.json, metric-definition-regex.json, checkpointconfig.json; each as SageMaker writes it, none needed).
The code stays where it is: its folder is the job file's `source`. A script is shown the same SM_* variables and folders
everywhere: those that say more of SageMaker's own documents are made for it (sagemaker/write.py).
"""

import json
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from toolkit import settings
from toolkit.errors import ContractError
from toolkit.job.cluster import Group
from toolkit.job.job import STRATEGIES, Channel, Folders, Job, Shown, Strategy, StrategyName
from toolkit.job.machine import Machine
from toolkit.job.scripts import only_script
from toolkit.job.spec import JobSpec
from toolkit.jobfile.file import read as read_job_file
from toolkit.jobfile.spec import DISTRIBUTIONS, Spec, complete
from toolkit.jobfile.words import Place as Written
from toolkit.jobfile.words import check_words, from_arguments, joined
from toolkit.log import Log
from toolkit.platforms import names, report
from toolkit.platforms.assemble import assemble, check_passable
from toolkit.platforms.folders import below
from toolkit.platforms.place import Place, job_name
from toolkit.platforms.program import chosen
from toolkit.platforms.sagemaker import documents, write
from toolkit.platforms.sagemaker import read as sagemaker
from toolkit.records import Record
from toolkit.settings import Settings

HINT = (
    "Set TOOLKIT_PROGRAM or SAGEMAKER_PROGRAM to the script, or TOOLKIT_JOB to a job file (docs/orchestrators.md);"
    " or let `toolkit run SCRIPT` play the platform. SAGEMAKER_BASE_DIR names the folder of SageMaker's documents"
)
SHOWN = 60  # Characters of a wrong value.
JOB_FILES = ("job.json", "job.toml", "job.yaml", "job.yml")
Find = Callable[[Mapping[str, str], Settings], Place]


def folders(environ: Mapping[str, str], find: Find, ours: Settings) -> Folders:
    """Return the folders below TOOLKIT_BASE, else /opt/ml; {job} and {host} are "unknown" where the place is."""
    try:
        place = _found(environ, find, ours)
    except ContractError:
        place = Place(hosts=("unknown",), current="unknown", name="unknown")
    job = place.name if names.is_folder_name(place.name) else job_name(place.name)
    usual = below(ours.base.replace("{host}", place.current).replace("{job}", job or "job"), environ)
    return msgspec.structs.replace(
        usual,
        model=Path(place.model or usual.model).absolute(),
        checkpoints=Path(place.checkpoints or usual.checkpoints).absolute(),
    )


def _found(environ: Mapping[str, str], find: Find, ours: Settings) -> Place:
    """Return the place that *find* finds, whose hosts' names become files and arguments.

    Raises:
        ContractError: the place cannot be told, or a host's name is none.
    """
    place = find(environ, ours)
    names.check_hosts(place.hosts, "the job's hosts")
    return place


def clear_stale(folders: Folders, log: Log) -> None:
    """Make the output folder, new with each job where TOOLKIT_BASE names the job; remove an earlier run's reports."""
    try:
        folders.output.mkdir(parents=True, exist_ok=True)
    except OSError:
        pass  # Said when the end is told.
    report.clear_stale(folders, log)


def read(
    name: str,
    find: Find,
    environ: Mapping[str, str],
    ours: Settings,
    machine: Machine,
    log: Log,
    *,
    interpreter: str = sys.executable,
) -> Job:
    """Return the job that was asked for, in the place that *find* finds; *name* is the platform's.

    Raises:
        ContractError: the place cannot be told, a document is wrong, or no script is named.
    """
    place = _found(environ, find, ours)
    places = folders(environ, find, ours)
    mounted = documents.read(places.config, log, required=False)
    asked = sagemaker.decoded(mounted.hyperparameters)
    file = _file(environ, ours, places, place, sagemaker.programs(asked, environ), log)
    for note in place.notes:
        log.info(note)
    if file is None and not environ.get("SAGEMAKER_TRAINING_MODULE"):
        raise ContractError(
            f"expected a script to run, found none named and not just one in {places.code}",
            where=f"{name} job",
            hint=HINT,
        )
    if file is None:
        spec = sagemaker.asked_for(mounted, asked, places, environ, log)
    else:
        given = file.spec
        if given.checkpoints is not None:
            mounted = msgspec.structs.replace(mounted, checkpoints=documents.CheckpointConfig())
        spec = sagemaker.asked_for(
            mounted,
            {**asked, **given.hyperparameters},
            places,
            {**environ, **given.environment},
            log,
            entry=given.entry,
            entry_from=file.entry_from,
            strategy=_strategy(given) if file.distributes else None,
        )
        spec = _joined(spec, file, place, places)
    return assemble(
        msgspec.structs.replace(spec, channels=_channels(spec.channels, places)),
        _grouped(place, file),
        ours,
        machine,
        folders=places,
        environ=environ,
        interpreter=interpreter,
        log=log,
    )


class _File(Record, frozen=True, kw_only=True):
    """What a job file and TOOLKIT_* variables ask for. `entry_from`: what names the script; `distributes`: they say how
    ranks are started, if only that there is one a host."""

    spec: Spec
    entry_from: str
    distributes: bool


def _file(
    environ: Mapping[str, str],
    ours: Settings,
    places: Folders,
    place: Place,
    programs: list[tuple[str, str | None]],
    log: Log,
) -> _File | None:
    """Return what the job file and TOOLKIT_* variables ask for, None if nothing names a script and there is not just
    one. *programs*: what else names one."""
    here = Path.cwd()
    file = _job_file(ours, places)
    where = "TOOLKIT_PROGRAM" if file is None else str(file)
    words = joined({} if file is None else read_job_file(file, HINT), _variables(ours, here))
    code = Path(words.get("source", places.code))
    own = _program(ours.program, code, here) if ours.program else {}
    by, script = chosen([("TOOLKIT_PROGRAM", own.get("script")), (where, words.get("script")), *programs], code, log)
    if not script and file is None and not environ.get("SAGEMAKER_TRAINING_MODULE"):
        script = only_script(places.code) or ""
        if script:
            log.info(f"nothing names a script: {script} is the only one in {places.code}")
    if own:
        words |= own
    elif script and "script" not in words:
        words |= {"script": str(code / script), "source": str(code)}
    if "script" not in words:
        if file is not None:
            check_words(words, Written(where=where))
            raise ContractError("$.script: expected the path of a script, found nothing", where=where)
        return None
    words.setdefault("name", place.name or job_name(Path(words["script"]).stem) or "job")
    spec = complete(words, Written(where=where, names=_named(ours)), folder=here, stamp="")
    _check(spec, place, where)
    check_passable(spec.hyperparameters, _named(ours).get("hyperparameter", where))
    return _File(spec=spec, entry_from=by, distributes="distribution" in words)


def _job_file(ours: Settings, places: Folders) -> Path | None:
    if ours.job is not None:
        return ours.job.absolute()
    return next((places.config / name for name in JOB_FILES if (places.config / name).is_file()), None)


def _variables(ours: Settings, here: Path) -> dict[str, Any]:
    """Return the words that TOOLKIT_* variables hold; paths start from *here*."""
    pairs = [pair.strip() for pair in ours.channels.split(",") if pair.strip()]
    given = {"channel": pairs, "distribution": ours.distribution or None}
    words = from_arguments(given, here, Written(where="environment", names=_named(ours)))
    if ours.hyperparameters:
        words["hyperparameter"] = _object(ours.hyperparameters)
    return words


def _named(ours: Settings) -> dict[str, str]:
    """Return the words that variables hold, each with its variable's name."""
    held = {"channel": "channels", "distribution": "distribution", "hyperparameter": "hyperparameters"}
    return {word: settings.PREFIX + field.upper() for word, field in held.items() if getattr(ours, field)}


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        found = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        message = f'expected a JSON object, as {{"epochs": 5}}, found {found!r}'
        raise ContractError(message, where="TOOLKIT_HYPERPARAMETERS")
    return values


def _program(program: str, code: Path, here: Path) -> dict[str, str]:
    """Return the words for a script in the code folder, else in the current one, else anywhere."""
    source = here if (here / program).exists() and not (code / program).exists() else code
    script = source / program
    return {"script": str(script), "source": str(source if script.is_relative_to(source) else script.parent)}


def _check(spec: Spec, place: Place, where: str) -> None:
    """Raise ContractError for what only `toolkit run` and SageMaker can give."""
    for channel in spec.channels:
        if channel.mode == "Pipe":
            message = "expected File or FastFile, found Pipe, which nothing feeds here"
            raise ContractError(f"$.channel.{channel.name}: {message}", where=where)
        if channel.sharded and len(place.hosts) > 1:
            message = "expected FullyReplicated, found ShardedByS3Key: every host sees the whole folder here"
            raise ContractError(f"$.channel.{channel.name}: {message}", where=where)
    if spec.requirements is not None and spec.requirements != spec.source / "requirements.txt":
        message = f"expected {spec.source / 'requirements.txt'}, which is installed before the script starts"
        raise ContractError(f"$.requirements: {message}, found {spec.requirements}", where=where)
    counts = sum(len(group.hosts) for group in spec.groups)
    if len(spec.groups) > 1 and counts != len(place.hosts):
        message = f"expected {len(place.hosts)} hosts in all, as the orchestrator gave, found {counts}"
        raise ContractError(f"$.instance-groups: {message}", where=where)


def _joined(spec: JobSpec, file: _File, place: Place, places: Folders) -> JobSpec:
    """Return *spec*, what mounted documents ask for, less what *file* asks for in their place.

    What is to be put into the base's code folder does not belong into another one.
    """
    given = file.spec
    if place.distribution and not file.distributes and spec.strategy.name == "script":
        given = msgspec.structs.replace(given, distribution=DISTRIBUTIONS[place.distribution])
    in_base = given.source == places.code
    flags = {k: v for k, v in write.distribution_flags(given).items() if k not in given.hyperparameters}
    parallel = {name: flags.pop(name) for name in ("mp_parameters",) if name in flags}
    channels = {channel.name: channel for channel in spec.channels}
    for channel in given.channels:
        channels[channel.name] = Channel(name=channel.name, folder=channel.path, mode=channel.mode)
    return msgspec.structs.replace(
        spec,
        name=given.name,
        code=given.source,
        source=spec.source if in_base else None,
        strategy=spec.strategy if given is file.spec else _strategy(given),
        groups=tuple(given.distribution.get("instance_groups", ())) or spec.groups,
        processes_per_host=given.processes_per_host,
        hyperparameters={**parallel, **spec.hyperparameters, **parallel},
        channels=tuple(channels.values()),
        metric_definitions=given.metrics or spec.metric_definitions,
        checkpoints=given.checkpoints or spec.checkpoints,
        rules=given.rules,
        environment=given.environment,
        shown=Shown(
            parameters={**spec.shown.parameters, **flags},
            job_name=given.name,
            module_dir=spec.shown.module_dir if in_base else "",
            input_data_config={**spec.shown.input_data_config, **write.inputs(given)},
        ),
    )


def _strategy(given: Spec) -> Strategy:
    """Return how *given*, a job file, has its ranks started: of several distributions the first of STRATEGIES."""
    asked = given.distribution
    parallel = asked.get("smdistributed", {}).get("dataparallel", {})
    asked = {**asked, "smddp": parallel, "multi_worker_mirrored": asked.get("multi_worker_mirrored_strategy", {})}
    name: StrategyName = next((name for name in STRATEGIES if asked.get(name, {}).get("enabled")), "script")
    if name == "script":
        return Strategy()
    words = asked[name]
    options = {"mpi_options": words.get("custom_mpi_options")}
    if name == "smddp":
        kind = write.first_type(given)
        options = {"dataparallel_mpi_options": words.get("custom_mpi_options"), "instance_type": kind}
    return Strategy(
        name=name,
        processes_per_host=given.processes_per_host or words.get("processes_per_host"),
        options={option: value for option, value in options.items() if value},
    )


def _grouped(place: Place, file: _File | None) -> Place:
    """Return *place* with the job file's instance groups dealt out over its hosts; without any all are one group."""
    asked = () if file is None else file.spec.groups
    if len(asked) < 2:
        name, kind = (asked[0].name, asked[0].instance_type) if asked else (place.group, place.instance_type)
        groups = [Group(name=name, hosts=place.hosts, instance_type=kind)]
    else:
        hosts = iter(place.hosts)
        groups = [
            Group(name=group.name, hosts=tuple(islice(hosts, len(group.hosts))), instance_type=group.instance_type)
            for group in asked
        ]
    own = next(group for group in groups if place.current in group.hosts)
    return msgspec.structs.replace(place, groups=tuple(groups), group=own.name, instance_type=own.instance_type)


def _channels(named: tuple[Channel, ...], places: Folders) -> tuple[Channel, ...]:
    """Return the channels: a folder that is mounted below input/data is one, whether or not it is named, and wins over
    one elsewhere."""
    found = {
        channel.name: msgspec.structs.replace(channel, folder=places.data / channel.name)
        if (places.data / channel.name).is_dir()
        else channel
        for channel in named
    }
    for name in _mounted(places.data):
        found.setdefault(name, Channel(name=name, folder=places.data / name))
    return tuple(found.values())


def _mounted(data: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in data.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
