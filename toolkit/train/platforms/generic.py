"""Reads a job outside SageMaker: what the user asks for, as a JobSpec, in the place that an orchestrator gave it.

A TOOLKIT_* variable wins over the job file, and the job file over documents in input/config (hyperparameters.json,
inputdataconfig.json, metric-definition-regex.json, checkpointconfig.json, in SageMaker's formats, all optional). The
code is not moved: it stays in the job file's `source` folder. Scripts get the same SM_* variables and folders on every
platform; sagemaker/write.py makes those variables that show SageMaker's documents.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from toolkit import settings
from toolkit.errors import ContractError, of_document
from toolkit.folders import entries as listed
from toolkit.folders import exists, is_dir, make, may_exist
from toolkit.job.base_folders import absolute, below, current
from toolkit.job.cluster import Group
from toolkit.job.documents import folder_names, input_config, sagemaker_variables, writing
from toolkit.job.documents.parameters import MODEL_PARALLEL
from toolkit.job.file.job_file import JobFile, complete
from toolkit.job.file.options import Origin, check_options, from_arguments, joined
from toolkit.job.file.reading import read as read_job_file
from toolkit.job.job import Channel, Folders, Job, fetched_mark
from toolkit.job.machine import Machine
from toolkit.job.scripts import only_script
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import Strategy
from toolkit.log import Log
from toolkit.records import Record
from toolkit.settings import Settings
from toolkit.train.platforms import report
from toolkit.train.platforms.assemble import assemble, check_passable
from toolkit.train.platforms.place import Place, job_name, object_in
from toolkit.train.platforms.program import chosen
from toolkit.train.platforms.sagemaker import read_job as sagemaker

HINT = (
    f"Set TOOLKIT_PROGRAM or {sagemaker_variables.PROGRAM} to the script, or TOOLKIT_JOB to a job file"
    " (docs/orchestrators.md); or let `toolkit run SCRIPT` simulate the platform."
    f" {sagemaker_variables.BASE_DIR} names the folder of SageMaker's documents"
)
JOB_FILES = ("job.json", "job.toml", "job.yaml", "job.yml")
Find = Callable[[Mapping[str, str], Settings], Place]


def folders(environ: Mapping[str, str], find: Find, ours: Settings) -> Folders:
    """Return the folders below TOOLKIT_BASE, else /opt/ml; {job} and {host} become "unknown" if *find* fails."""
    try:
        place = _found(environ, find, ours)
    except ContractError:
        place = Place(hosts=("unknown",), current="unknown", name="unknown")
    job = place.name if folder_names.is_folder_name(place.name) else job_name(place.name)
    usual = below(ours.base.replace("{host}", place.current).replace("{job}", job or "job"), environ)
    return msgspec.structs.replace(
        usual,
        model=absolute(place.model or usual.model, "the folder of the model"),
        checkpoints=absolute(place.checkpoints or usual.checkpoints, "the folder of checkpoints"),
    )


def _found(environ: Mapping[str, str], find: Find, ours: Settings) -> Place:
    """Return the place that *find* finds, with its hosts' names checked: they become file names and arguments.

    Raises:
        ContractError: the variables do not determine the place, or a host's name is invalid.
    """
    place = find(environ, ours)
    folder_names.check_hosts(place.hosts, "the job's hosts")
    return place


def clear_stale(folders: Folders, log: Log) -> None:
    """Create the output folder, and remove an earlier run's reports. The folder is missing if TOOLKIT_BASE contains
    {job}."""
    try:
        make(folders.output)
    except OSError:
        pass  # The report at the job's end warns of it.
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
    needs_script: bool = True,
) -> Job:
    """Return the job that the user asks for, in the place that *find* finds; *name* is the platform's.

    *needs_script* False: the job may be without one.

    Raises:
        ContractError: the variables do not determine the place, a document is wrong, or nothing names a script.
    """
    place = _found(environ, find, ours)
    places = folders(environ, find, ours)
    mounted = input_config.read(places.config, log, required=False)
    asked = sagemaker.decoded(mounted.hyperparameters)
    programs = sagemaker.programs(asked, environ)
    given = _given(environ, ours, places, place, programs, log, needs_script=needs_script)
    for note in place.notes:
        log.info(note)
    if given is None:
        raise ContractError(
            f"expected a script to run, found none named and not just one in {places.code}",
            where=f"{name} job",
            hint=HINT,
        )
    own = given.file.spec
    if own.checkpoints is not None:
        mounted = msgspec.structs.replace(mounted, checkpoints=input_config.CheckpointConfig())
    spec = sagemaker.asked_for(
        mounted,
        {**asked, **own.hyperparameters},
        places,
        {**environ, **own.environment},
        log,
        entry=own.entry or "",
        entry_from=given.entry_from,
        strategy=_strategy(given.file) if given.distributes else None,
    )
    spec = _joined(spec, given, place, places)
    channels = _channels(spec.channels, places)
    for channel in channels:
        if not channel.uri and channel.mode != "Pipe" and not may_exist(channel.folder):
            log.warning(f"channel {channel.name}: expected a folder or file, found nothing at {channel.folder}")
    return assemble(
        msgspec.structs.replace(spec, channels=channels),
        _grouped(place, given.file.groups),
        ours,
        machine,
        folders=places,
        environ=environ,
        interpreter=interpreter,
        log=log,
    )


class _Given(Record, frozen=True, kw_only=True):
    """What a job file and TOOLKIT_* variables ask for.

    `entry_from`: the source that names the script. `distributes`: they name a distribution, "script" included.
    """

    file: JobFile
    entry_from: str
    distributes: bool


def _given(
    environ: Mapping[str, str],
    ours: Settings,
    places: Folders,
    place: Place,
    programs: list[tuple[str, str | None]],
    log: Log,
    *,
    needs_script: bool,
) -> _Given | None:
    """Return what the job file and TOOLKIT_* variables ask for; None if nothing names the script that the job needs: it
    needs none if a plug-in runs it, or if *needs_script* is False.

    Without a name, the only script of the code folder is the job's. *programs*: the other sources that may name a
    script.
    """
    here = current()
    plugin = sagemaker.plugin(environ) is not None or not needs_script
    file = _job_file(ours, places)
    where = "TOOLKIT_PROGRAM" if file is None else str(file)
    options = joined({} if file is None else read_job_file(file, HINT), _variables(ours, here))
    code = Path(options.get("source", places.code))
    own = _program(ours.program, code, here) if ours.program else {}
    by, script = chosen([("TOOLKIT_PROGRAM", own.get("script")), (where, options.get("script")), *programs], code, log)
    if not script and file is None and not plugin:
        script = only_script(places.code) or ""
        if script:
            log.info(f"nothing names a script: {script} is the only one in {places.code}")
    if own:
        options |= own
    elif script and "script" not in options:
        options |= {"script": str(code / script), "source": str(code)}
    if "script" not in options:
        if file is not None:
            check_options(options, Origin(where=where))
        if file is not None and not plugin:
            raise ContractError("$.script: expected the path of a script, found nothing", where=where)
        if not plugin:
            return None
        options.setdefault("source", str(code))
    options.setdefault("name", place.name or job_name(Path(options.get("script", "")).stem) or "job")
    made = complete(
        options, Origin(where=where, names=_named(ours)), folder=here, stamp="", needs_script="script" in options
    )
    _check(made, place, where)
    check_passable(made.spec.hyperparameters, _named(ours).get("hyperparameter", where))
    return _Given(file=made, entry_from=by, distributes="distribution" in options)


def _job_file(ours: Settings, places: Folders) -> Path | None:
    if ours.job is not None:
        return absolute(ours.job, "TOOLKIT_JOB")
    return next((file for file in map(places.config.joinpath, JOB_FILES) if may_exist(file, follow_links=False)), None)


def _variables(ours: Settings, here: Path) -> dict[str, Any]:
    """Return the options that TOOLKIT_* variables hold; relative paths start from *here*."""
    pairs = [pair.strip() for pair in ours.channels.split(",") if pair.strip()]
    given = {"channel": pairs, "distribution": ours.distribution or None}
    options = from_arguments(given, here, Origin(where="environment", names=_named(ours)))
    if ours.hyperparameters:
        expected = 'a JSON object, as {"epochs": 5}'
        options["hyperparameter"] = object_in(ours.hyperparameters, "TOOLKIT_HYPERPARAMETERS", expected)
    return options


def _named(ours: Settings) -> dict[str, str]:
    """Return the variable's name for each option that a variable sets."""
    held = {"channel": "channels", "distribution": "distribution", "hyperparameter": "hyperparameters"}
    return {option: settings.PREFIX + field.upper() for option, field in held.items() if getattr(ours, field)}


def _program(program: str, code: Path, here: Path) -> dict[str, str]:
    """Return the options for a script in the code folder, else in the current folder, else anywhere."""
    source = here if exists(here / program) and not exists(code / program) else code
    script = source / program
    return {"script": str(script), "source": str(source if script.is_relative_to(source) else script.parent)}


def _check(file: JobFile, place: Place, where: str) -> None:
    """Raise ContractError for options that only `toolkit run` and SageMaker support."""
    for channel in file.spec.channels:
        if channel.mode == "Pipe":
            message = "expected File or FastFile, found Pipe, which nothing feeds here"
            raise ContractError(f"$.channel.{channel.name}: {message}", where=where)
        if channel.sharded and len(place.hosts) > 1:
            message = "expected FullyReplicated, found ShardedByS3Key: every host sees the whole folder here"
            raise ContractError(f"$.channel.{channel.name}: {message}", where=where)
    if file.requirements is not None and file.requirements != file.source / "requirements.txt":
        message = f"expected {file.source / 'requirements.txt'}, which is installed before the script starts"
        raise ContractError(f"$.requirements: {message}, found {file.requirements}", where=where)
    if len(file.groups) > 1 and len(file.hosts) != len(place.hosts):
        message = f"expected {len(place.hosts)} hosts in all, as the orchestrator gave, found {len(file.hosts)}"
        raise ContractError(f"$.instance-groups: {message}", where=where)


def _joined(spec: JobSpec, given: _Given, place: Place, places: Folders) -> JobSpec:
    """Return *spec*, made of mounted documents, with *given*'s values in place of the documents' ones.

    A submitted source is only ever put into the base's code folder, so it is dropped if the code is elsewhere.
    """
    file, own = given.file, given.file.spec
    if place.distribution and not given.distributes and spec.strategy.name == "script":
        own = msgspec.structs.replace(own, strategy=Strategy(name=place.distribution))
        file = msgspec.structs.replace(file, spec=own)
        spec = msgspec.structs.replace(spec, strategy=_strategy(file))
    in_base = file.source == places.code
    flags = {k: v for k, v in writing.distribution_flags(file).items() if k not in own.hyperparameters}
    parallel = {name: flags.pop(name) for name in (MODEL_PARALLEL,) if name in flags}
    channels = {channel.name: channel for channel in (*spec.channels, *own.channels)}
    # A plug-in's job without a script has no name of its own.
    name = (own.entry is None and spec.name) or own.name
    return msgspec.structs.replace(
        spec,
        name=name,
        code=file.source,
        source=spec.source if in_base else None,
        groups=own.groups or spec.groups,
        processes_per_host=own.processes_per_host,
        hyperparameters={**parallel, **spec.hyperparameters, **parallel},
        channels=tuple(channels.values()),
        metric_definitions=own.metric_definitions or spec.metric_definitions,
        checkpoints=own.checkpoints or spec.checkpoints,
        rules=own.rules,
        profiler_rules=own.profiler_rules,
        monitor=own.monitor,
        environment=own.environment,
        shown=msgspec.structs.replace(
            spec.shown,
            parameters={**spec.shown.parameters, **flags},
            job_name=name,
            module_dir=spec.shown.module_dir if in_base else "",
            input_data_config={**spec.shown.input_data_config, **writing.inputs(file)},
        ),
    )


def _strategy(file: JobFile) -> Strategy:
    """Return how *file* starts ranks; its processes-per-host wins over the number in its distribution."""
    strategy = file.spec.strategy
    return msgspec.structs.replace(
        strategy,
        processes_per_host=file.spec.processes_per_host or strategy.processes_per_host,
        instance_type=file.first_type if strategy.name == "smddp" else "",
    )


def _grouped(place: Place, asked: tuple[Group, ...]) -> Place:
    """Return *place* with its hosts divided among the job file's instance groups; a single group gets all of them."""
    hosts = iter(place.hosts)
    groups = [
        msgspec.structs.replace(group, hosts=tuple(islice(hosts, len(group.hosts) if len(asked) > 1 else None)))
        for group in asked
    ]
    own = next(group for group in groups if place.current in group.hosts)
    return msgspec.structs.replace(place, groups=tuple(groups), group=own.name, instance_type=own.instance_type)


def _channels(named: tuple[Channel, ...], places: Folders) -> tuple[Channel, ...]:
    """Return the channels. Each folder mounted below input/data is a channel and wins over another path of its name."""
    found = {channel.name: _channel(channel, places.data / channel.name) for channel in named}
    for name in _mounted(places.data):
        found.setdefault(name, Channel(name=name, folder=places.data / name))
    return tuple(found.values())


def _channel(channel: Channel, folder: Path) -> Channel:
    """Return *channel* in *folder* if that is mounted, or if `train` is to fetch its files there."""
    if channel.uri and (not is_dir(folder) or exists(fetched_mark(folder))):
        return msgspec.structs.replace(channel, folder=folder)
    return msgspec.structs.replace(channel, folder=folder, uri="") if is_dir(folder) else channel


def _mounted(data: Path) -> list[str]:
    try:
        return [entry.name for entry in listed(data) if not entry.name.startswith(".") and is_dir(entry.path)]
    except OSError as error:
        found = f"one that cannot be read ({error.strerror})"
        hint = f"Each folder in {data} is a channel. Correct its owner and permissions."
        where = str(error.filename or data)
        raise of_document(error)(f"expected a folder, found {found}", where=where, hint=hint) from None
