"""A job outside SageMaker: what the user asks for (a job file, mounted documents, TOOLKIT_* variables) in the place
that an orchestrator gave it. It becomes the same documents that SageMaker writes, and is read from them as theirs is:
a script finds the same SM_* variables, folders and arguments everywhere.

What wins: a TOOLKIT_* variable, then the job file, then documents in input/config (hyperparameters.json,
inputdataconfig.json, metric-definition-regex.json, checkpointconfig.json; each as SageMaker writes it, none needed).
The code stays where it is: its folder is the job file's `source`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolkit import settings
from toolkit.errors import ContractError
from toolkit.job.job import Channel, Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.scripts import only_script
from toolkit.jobfile import documents as jobfile
from toolkit.jobfile.spec import Spec, complete
from toolkit.jobfile.words import Place as Written
from toolkit.jobfile.words import check_words, from_arguments, from_file, joined
from toolkit.log import Log
from toolkit.platforms.place import ENGINE_STOP_WITHIN_S, Place, job_name
from toolkit.platforms.program import chosen
from toolkit.platforms.sagemaker import documents, names, report
from toolkit.platforms.sagemaker import read as sagemaker
from toolkit.platforms.sagemaker.documents import CheckpointConfig, Documents, InstanceGroup, ResourceConfig
from toolkit.settings import Settings

BASE = "/opt/ml"
HINT = (
    "Set TOOLKIT_PROGRAM or SAGEMAKER_PROGRAM to the script, or TOOLKIT_JOB to a job file (docs/orchestrators.md);"
    " or let `toolkit run SCRIPT` play the platform. SAGEMAKER_BASE_DIR names the folder of SageMaker's documents"
)
JOB_FILES = ("job.json", "job.toml", "job.yaml", "job.yml")
SUBMITTED = "sagemaker_submit_directory"
# What SageMaker's SDK adds of its own, which would hide the variables that say the same.
SDKS = ("sagemaker_container_log_level", "sagemaker_region")
Find = Callable[[Mapping[str, str], Settings], Place]


def folders(environ: Mapping[str, str], find: Find, ours: Settings) -> Folders:
    """Return the folders below TOOLKIT_BASE, else /opt/ml; {job} and {host} are "unknown" where the place is."""
    try:
        place = _found(environ, find, ours)
    except ContractError:
        place = Place(hosts=("unknown",), current="unknown", name="unknown")
    given = (ours.base or BASE).replace("{host}", place.current)
    job = place.name if names.is_folder_name(place.name) else job_name(place.name)
    base = Path(given.replace("{job}", job or "job")).absolute()
    usual = sagemaker.folders({**environ, "SAGEMAKER_BASE_DIR": str(base)})
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
    mounted = documents.mounted(places.config, log)
    spec = _spec(environ, ours, places, place, mounted, log)
    if spec is not None:
        rules = {"TOOLKIT_RULES": str(spec.rules)} if spec.rules is not None and not ours.rules else {}
        environ = {**environ, **rules, **spec.environment}
        ours = settings.read(environ)
    for note in place.notes:
        log.info(note)
    if spec is None and not environ.get("SAGEMAKER_TRAINING_MODULE"):
        raise ContractError(
            f"expected a script to run, found none named and not just one in {places.code}",
            where=f"{name} job",
            hint=HINT,
        )
    job = sagemaker.assemble(
        _papers(mounted, spec, places, _resources(spec, place, machine)),
        places if spec is None else _own(places, spec),
        _environment(environ, place),
        _with_place(ours, spec, place),
        machine,
        log,
        entry="" if spec is None else spec.entry,
        interpreter=interpreter,
    )
    cluster = msgspec.structs.replace(job.cluster, addresses={**place.addresses, **job.cluster.addresses})
    return msgspec.structs.replace(
        job,
        name=job.name or (spec.name if spec else place.name),
        platform=name,
        cluster=cluster,
        channels=_channels(job.channels, spec, places),
        stop_within_s=_stop_within_s(name, place, ours, machine),
        stopped_is_success=False,
        companion="" if ours.kubeflow_progress == "off" else place.companion,
    )


def _spec(
    environ: Mapping[str, str], ours: Settings, places: Folders, place: Place, mounted: Documents, log: Log
) -> Spec | None:
    """Return what the job file and TOOLKIT_* variables ask for, None if nothing names a script and there is not just
    one."""
    here = Path.cwd()
    file = _job_file(ours, places)
    words = {} if file is None else _words(file)
    where = "TOOLKIT_PROGRAM" if file is None else str(file)
    words = joined(words, _variables(ours, here))
    code = Path(words.get("source", places.code))
    asked = sagemaker.decoded(mounted.hyperparameters).get("sagemaker_program")
    named = [
        ("TOOLKIT_PROGRAM", _program(ours.program, code, here)["script"] if ours.program else None),
        (str(file), words.get("script")),
        ("SAGEMAKER_PROGRAM", environ.get("SAGEMAKER_PROGRAM")),
        ("sagemaker_program", asked if isinstance(asked, str) else None),
    ]
    by, script = chosen(named, code, log)
    if not script and file is None and not environ.get("SAGEMAKER_TRAINING_MODULE"):
        script = only_script(places.code) or ""
        if script:
            log.info(f"nothing names a script: {script} is the only one in {places.code}")
    if by == "TOOLKIT_PROGRAM":
        words |= _program(ours.program, code, here)
    elif script and "script" not in words:
        words |= {"script": str(code / script), "source": str(code)}
    if "script" not in words:
        if file is not None:
            check_words(words, Written(where=where))
            raise ContractError("$.script: expected the path of a script, found nothing", where=where)
        return None
    words.setdefault("name", place.name or job_name(Path(words["script"]).stem) or "job")
    if place.distribution and "distribution" not in words:
        words["distribution"] = place.distribution
    spec = complete(words, Written(where=where, names=_named(ours)), folder=here, stamp="")
    _check(spec, place, where)
    return spec


def _job_file(ours: Settings, places: Folders) -> Path | None:
    if ours.job is not None:
        return ours.job.absolute()
    return next((places.config / name for name in JOB_FILES if (places.config / name).is_file()), None)


def _words(file: Path) -> dict[str, Any]:
    try:
        return from_file(file.read_text("utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ContractError(f"expected a job file, found {reason}", where=str(file), hint=HINT) from None


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
        raise ContractError('expected a JSON object, as {"epochs": 5}', where="TOOLKIT_HYPERPARAMETERS")
    return values


def _program(program: str, code: Path, here: Path) -> dict[str, str]:
    """Return the words for a script in the code folder, else in the current one, else anywhere."""
    source = code if (code / program).exists() else here
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


def _own(places: Folders, spec: Spec) -> Folders:
    """Return *places* with the job file's own folders: its source, and its checkpoints where none are mounted."""
    keeps = spec.checkpoints if spec.checkpoints is not None else places.checkpoints
    return msgspec.structs.replace(places, code=spec.source, checkpoints=keeps)


def _papers(mounted: Documents, spec: Spec | None, places: Folders, raw: dict[str, Any]) -> Documents:
    """Return *mounted* with what *spec* asks for, in the place that *raw*, resourceconfig.json, tells."""
    resources = msgspec.convert(raw, ResourceConfig)
    if spec is None:
        return msgspec.structs.replace(mounted, resources=resources, raw_resources=raw)
    submitted = SUBMITTED if spec.source != places.code else ""
    asked = {k: v for k, v in jobfile.hyperparameters(spec, spec.source, "").items() if k not in (SUBMITTED, *SDKS)}
    kept = {name: value for name, value in mounted.hyperparameters.items() if name != submitted}
    channels = {**mounted.raw_channels, **jobfile.inputs(spec)}
    return Documents(
        hyperparameters={**kept, **asked},
        channels=documents.channels(channels, places.config / "inputdataconfig.json"),
        resources=resources,
        raw_channels=channels,
        raw_resources=raw,
        metric_definitions=spec.metrics or mounted.metric_definitions,
        checkpoints=CheckpointConfig() if spec.checkpoints is not None else mounted.checkpoints,
    )


def _resources(spec: Spec | None, place: Place, machine: Machine) -> dict[str, Any]:
    """Return resourceconfig.json for the place, with the job file's instance groups dealt out over its hosts."""
    groups = _groups(spec, place)
    current = next(group for group in groups if place.current in group.hosts)
    return {
        "current_host": place.current,
        "current_instance_type": current.instance_type,
        "current_group_name": current.instance_group_name,
        "hosts": list(place.hosts),
        "instance_groups": [
            {
                "instance_group_name": group.instance_group_name,
                "instance_type": group.instance_type,
                "hosts": list(group.hosts),
            }
            for group in groups
        ],
        "network_interface_name": machine.route_interface or "eth0",
        "topology": None,
    }


def _groups(spec: Spec | None, place: Place) -> list[InstanceGroup]:
    if spec is None or len(spec.groups) == 1:
        kind = "local" if spec is None else spec.groups[0].instance_type
        name = sagemaker.HOMOGENEOUS if spec is None else spec.groups[0].name
        return [InstanceGroup(instance_group_name=name, hosts=place.hosts, instance_type=kind)]
    groups, first = [], 0
    for group in spec.groups:
        hosts = place.hosts[first : first + len(group.hosts)]
        groups.append(InstanceGroup(instance_group_name=group.name, hosts=hosts, instance_type=group.instance_type))
        first += len(group.hosts)
    return groups


def _environment(environ: Mapping[str, str], place: Place) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in place.dropped}
    return {**place.environ, **kept}


def _with_place(ours: Settings, spec: Spec | None, place: Place) -> Settings:
    asked = spec.processes_per_host if spec is not None else None
    count = asked or ours.processes_per_host or place.processes_per_host
    return msgspec.structs.replace(ours, processes_per_host=count)


def _stop_within_s(name: str, place: Place, ours: Settings, machine: Machine) -> float:
    if ours.stop_within_s is not None:
        return ours.stop_within_s
    return ENGINE_STOP_WITHIN_S if name == "plain" and machine.engine else place.stop_within_s


def _channels(named: tuple[Channel, ...], spec: Spec | None, places: Folders) -> tuple[Channel, ...]:
    """Return the channels: what is mounted below input/data is one, whether or not it is named; a named one that is not
    mounted is where the job file says."""
    paths = {} if spec is None else {channel.name: channel.path for channel in spec.channels}
    found = {channel.name: channel for channel in named}
    for name in _mounted(places.data):
        found.setdefault(name, Channel(name=name, folder=places.data / name))
    return tuple(
        channel
        if channel.name not in paths or channel.folder.is_dir()
        else msgspec.structs.replace(channel, folder=paths[channel.name])
        for channel in found.values()
    )


def _mounted(data: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in data.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
