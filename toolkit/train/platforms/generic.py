"""Reads a job outside SageMaker: what the user asks for, as a JobSpec, in the place that an orchestrator gave it.

A TOOLKIT_* variable wins over the job file, and the job file over documents in input/config (hyperparameters.json,
inputdataconfig.json, metric-definition-regex.json, checkpointconfig.json, in SageMaker's formats, all optional). The
code is not moved: it stays in the job file's `source` folder. Scripts get the same SM_* variables and folders on every
platform; job/documents/writing.py makes those variables that show SageMaker's documents.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.folders import exists, make, may_exist
from toolkit.job.base_folders import absolute, below, current
from toolkit.job.cluster import Group
from toolkit.job.documents import folder_names, input_config, job_spec, sagemaker_variables
from toolkit.job.documents.parameters import decode_values
from toolkit.job.file.job_file import JobFile, check_job_file
from toolkit.job.file.options import Origin, check_options, entry_places, from_arguments, joined
from toolkit.job.file.reading import read as read_job_file
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.scripts import only_script
from toolkit.log import Log
from toolkit.records import Record
from toolkit.settings import PREFIX, Settings
from toolkit.train.platforms import outcome_files
from toolkit.train.platforms.assemble import assemble
from toolkit.train.platforms.mounted import mounted_channels
from toolkit.train.platforms.place import Place, cluster_of, job_name, json_object
from toolkit.train.platforms.program import choose_script

HINT = (
    f"Set TOOLKIT_PROGRAM or {sagemaker_variables.PROGRAM} to the script, or TOOLKIT_JOB to a job file"
    " (docs/orchestrators.md); or let `toolkit run SCRIPT` simulate the platform."
    f" {sagemaker_variables.BASE_DIR} names the folder of SageMaker's documents"
)
JOB_FILES = ("job.json", "job.toml", "job.yaml", "job.yml")
# The setting that holds each option.
OPTION_SETTINGS = {"channel": "channels", "distribution": "distribution", "hyperparameter": "hyperparameters"}
Find = Callable[[Mapping[str, str], Settings], Place]


class UserOptions(Record, frozen=True, kw_only=True):
    """The options of a job file and of TOOLKIT_* variables, merged."""

    file: JobFile
    entry_from: str
    """The source that names the script."""
    names_distribution: bool
    """They name a distribution, "script" included."""


def folders(environ: Mapping[str, str], find: Find, settings: Settings) -> Folders:
    """Return the folders below TOOLKIT_BASE, else /opt/ml; {job} and {host} become "unknown" if *find* fails."""
    try:
        place = _find_checked(environ, find, settings)
    except ContractError:
        place = Place(cluster=cluster_of(("unknown",), "unknown"), name="unknown")
    job = place.name if folder_names.is_folder_name(place.name) else job_name(place.name)
    base = settings.base.replace("{host}", place.cluster.current).replace("{job}", job or "job")
    usual = below(base, environ)
    return msgspec.structs.replace(
        usual,
        model=absolute(place.model or usual.model, "the folder of the model"),
        checkpoints=absolute(place.checkpoints or usual.checkpoints, "the folder of checkpoints"),
    )


def clear_stale(folders: Folders, log: Log) -> None:
    """Create the output folder, and remove an earlier run's reports. The folder is missing if TOOLKIT_BASE contains
    {job}."""
    try:
        make(folders.output)
    except OSError:
        pass  # The report at the job's end warns of it.
    outcome_files.clear_stale(folders, log)


def read(
    name: str,
    find: Find,
    environ: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    log: Log,
    *,
    interpreter: str = sys.executable,
    needs_script: bool = True,
    places: Mapping[str, str] = {},
) -> Job:
    """Return the job that the user asks for, in the place that *find* finds; *name* is the platform's.

    *needs_script* False: the job may be without one. *places*: where hyperparameters of hyperparameters.json came from,
    for errors.

    Raises:
        ContractError: the variables do not determine the place, a document is wrong, or nothing names a script.
    """
    place = _find_checked(environ, find, settings)
    job_folders = folders(environ, find, settings)
    config = input_config.read(job_folders.config, log, required=False)
    hyperparameters = decode_values(config.hyperparameters)
    sources = job_spec.program_sources(hyperparameters, environ)
    options = _user_options(environ, settings, job_folders, place, sources, log, needs_script=needs_script)
    for note in place.notes:
        log.info(note)
    if options is None:
        raise ContractError(
            f"expected a script to run, found none named and not just one in {job_folders.code}",
            where=f"{name} job",
            hint=HINT,
        )
    file = options.file
    if file.checkpoints is not None:
        config = msgspec.structs.replace(config, checkpoints=input_config.CheckpointConfig())
    spec = job_spec.job_spec(
        config,
        {**hyperparameters, **file.hyperparameters},
        job_folders,
        {**environ, **file.environment},
        log,
        places={**places, **file.hyperparameter_places},
        entry=file.entry,
        entry_from=options.entry_from,
        strategy=job_spec.strategy_of(file) if options.names_distribution else None,
    )
    spec = job_spec.with_job_file(
        spec,
        file,
        job_folders,
        default_distribution=None if options.names_distribution else place.distribution,
    )
    return assemble(
        msgspec.structs.replace(spec, channels=mounted_channels(spec.channels, job_folders.data, log)),
        _with_groups(place, file.groups),
        settings,
        machine,
        folders=job_folders,
        environ=environ,
        interpreter=interpreter,
        log=log,
    )


def _find_checked(environ: Mapping[str, str], find: Find, settings: Settings) -> Place:
    """Return the place that *find* finds, with its hosts' names checked: they become file names and arguments.

    Raises:
        ContractError: the variables do not determine the place, or a host's name is invalid.
    """
    place = find(environ, settings)
    folder_names.check_hosts(place.cluster.hosts, "the job's hosts")
    return place


def _user_options(
    environ: Mapping[str, str],
    settings: Settings,
    folders: Folders,
    place: Place,
    sources: list[tuple[str, str | None]],
    log: Log,
    *,
    needs_script: bool,
) -> UserOptions | None:
    """Return the options of the job file and of TOOLKIT_* variables; None if nothing names the script that the job
    needs: it needs none if a plug-in runs it, or if *needs_script* is False.

    Without a name, the only script of the code folder is the job's. *sources*: the other sources that may name a
    script.
    """
    working = current()
    needs_script = needs_script and job_spec.plugin_of(environ) is None
    path = _job_file(settings, folders)
    by_variables = _variable_options(settings, working)
    origin = Origin(
        where="TOOLKIT_PROGRAM" if path is None else str(path),
        names=_variable_names(settings),
        entries={
            **entry_places({"channel": by_variables.get("channel", ())}, "TOOLKIT_CHANNELS: {name}"),
            **entry_places(
                {"hyperparameter": by_variables.get("hyperparameter", ())}, "TOOLKIT_HYPERPARAMETERS: $.{name}"
            ),
        },
    )
    options = joined({} if path is None else read_job_file(path, HINT), by_variables)
    code = Path(options.get("source", folders.code))
    program = _program_options(settings.program, code, working) if settings.program else {}
    entry_from, script = choose_script(
        [("TOOLKIT_PROGRAM", program.get("script")), (origin.where, options.get("script")), *sources], code, log
    )
    if not script and path is None and needs_script:
        script = only_script(folders.code) or ""
        if script:
            log.info(f"nothing names a script: {script} is the only one in {folders.code}")
    if program:
        options |= program
    elif script and "script" not in options:
        options |= {"script": str(code / script), "source": str(code)}
    if "script" not in options:
        if path is not None:
            check_options(options, Origin(where=origin.where))
        if path is not None and needs_script:
            raise ContractError("$.script: expected the path of a script, found nothing", where=origin.where)
        if needs_script:
            return None
        options.setdefault("source", str(code))
    options.setdefault("name", place.name or job_name(Path(options.get("script", "")).stem) or "job")
    file = check_job_file(options, origin, folder=working, stamp="", needs_script="script" in options)
    _check_supported(file, place, origin.where)
    folder_names.check_passable(file.hyperparameters, file.hyperparameter_places.__getitem__)
    return UserOptions(file=file, entry_from=entry_from, names_distribution="distribution" in options)


def _job_file(settings: Settings, folders: Folders) -> Path | None:
    if settings.job is not None:
        return absolute(settings.job, "TOOLKIT_JOB")
    return next((file for file in map(folders.config.joinpath, JOB_FILES) if may_exist(file, follow_links=False)), None)


def _variable_options(settings: Settings, working: Path) -> dict[str, Any]:
    """Return the options that TOOLKIT_* variables hold; relative paths start from *working*."""
    pairs = [pair.strip() for pair in settings.channels.split(",") if pair.strip()]
    arguments = {"channel": pairs, "distribution": settings.distribution or None}
    options = from_arguments(arguments, working, Origin(where="environment", names=_variable_names(settings)))
    if settings.hyperparameters:
        expected = 'a JSON object, as {"epochs": 5}'
        options["hyperparameter"] = json_object(settings.hyperparameters, "TOOLKIT_HYPERPARAMETERS", expected)
    return options


def _variable_names(settings: Settings) -> dict[str, str]:
    """Return the variable's name for each option that a variable sets."""
    return {option: PREFIX + field.upper() for option, field in OPTION_SETTINGS.items() if getattr(settings, field)}


def _program_options(program: str, code: Path, working: Path) -> dict[str, str]:
    """Return the options for a script in the code folder, else in the current folder, else anywhere."""
    source = working if exists(working / program) and not exists(code / program) else code
    script = source / program
    return {"script": str(script), "source": str(source if script.is_relative_to(source) else script.parent)}


def _check_supported(file: JobFile, place: Place, source: str) -> None:
    """Raise ContractError for options that only `toolkit run` and SageMaker support."""
    count = len(place.cluster.hosts)
    for channel in file.channels:
        if channel.mode == "Pipe":
            message = "expected File or FastFile, found Pipe, which nothing feeds here"
            raise ContractError(f"$.channel.{channel.name}: {message}", where=source)
        if channel.sharded and count > 1:
            message = "expected FullyReplicated, found ShardedByS3Key: every host sees the whole folder here"
            raise ContractError(f"$.channel.{channel.name}: {message}", where=source)
    if file.requirements is not None and file.requirements != file.source / "requirements.txt":
        message = f"expected {file.source / 'requirements.txt'}, which is installed before the script starts"
        raise ContractError(f"$.requirements: {message}, found {file.requirements}", where=source)
    if len(file.groups) > 1 and len(file.hosts) != count:
        message = f"expected {count} hosts in all, as the orchestrator gave, found {len(file.hosts)}"
        raise ContractError(f"$.instance-groups: {message}", where=source)


def _with_groups(place: Place, groups: tuple[Group, ...]) -> Place:
    """Return *place* with its hosts divided among the job file's instance *groups*; a single group gets all of them."""
    hosts = iter(place.cluster.hosts)
    groups = tuple(
        msgspec.structs.replace(group, hosts=tuple(islice(hosts, len(group.hosts) if len(groups) > 1 else None)))
        for group in groups
    )
    group = next(group for group in groups if place.cluster.current in group.hosts)
    cluster = msgspec.structs.replace(
        place.cluster, groups=groups, current_group=group.name, instance_type=group.instance_type
    )
    return msgspec.structs.replace(place, cluster=cluster)
