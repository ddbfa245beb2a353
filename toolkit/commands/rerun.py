"""Makes a job of one that ran: its source, channels and options as they were, and what cannot be the same.

The source is the copy that the job was submitted with. A channel is the person's folder if its files are still those
that the job had, else the copy that the job got. Faults and stops that `toolkit run` was told to simulate are left out,
and so are checkpoints: with these the new job would begin where the other one ended.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import toolkit
from toolkit import files, folders
from toolkit.commands import jobs
from toolkit.commands.jobs.data import JobData
from toolkit.commands.jobs.manifests import read_manifests
from toolkit.commands.simulate import containers
from toolkit.commands.simulate.documents import FOREIGN_PREFIXES, HostSetup, environment, region_of
from toolkit.commands.simulate.request import REQUEST
from toolkit.commands.simulate.stage import installs
from toolkit.errors import UserError
from toolkit.job.documents.parameters import MODEL_PARALLEL
from toolkit.job.documents.writing import distribution_flags
from toolkit.job.drift import ABSENT, Difference, compare_manifests
from toolkit.job.file.job_file import WORDS, JobFile
from toolkit.job.file.reading import read as read_file
from toolkit.job.manifest import SECRET, ManifestChannel, RunManifest
from toolkit.log import Log
from toolkit.records import Record
from toolkit.storage.uri import is_remote
from toolkit.train.probe.look import probe_machine
from toolkit.train.provenance.gather import describe_interpreter
from toolkit.train.provenance.hardware import describe_hardware
from toolkit.train.provenance.installed import list_packages, search_path_of
from toolkit.train.provenance.trees import LEFT_OUT as IGNORED
from toolkit.train.provenance.trees import digest_tree
from toolkit.train.provenance.variables import digest_variables, show_hyperparameters
from toolkit.train.source.unpack import unpack

LEFT_OUT = {
    "stop-after": "the stop that was simulated",
    "kill": "the host that was let vanish",
    "interrupt": "the spot interruptions that were simulated",
    "max-wait": "the limit of waiting",
    "checkpoints": "the checkpoints: the job begins without any",
}
OF_THE_FOLDER = ("name", "job-dir", "replace", "requirements")
# Where a checkpoint of the first job would be restored from, and overwritten.
CHECKPOINT_VARIABLE = "TOOLKIT_CHECKPOINT_URI"


class EarlierJob(Record, frozen=True, kw_only=True):
    """A job that ran, as far as it is needed to run it again."""

    data: JobData
    """The job, as its folder has it."""
    manifests: dict[str, RunManifest]
    """What ran, by host; at least one."""
    notes: tuple[str, ...]
    """A sentence for each manifest that cannot be read."""

    @property
    def manifest(self) -> RunManifest:
        """The first host's manifest, which stands for all."""
        return next(iter(self.manifests.values()))

    @property
    def name(self) -> str:
        """The job's name, as people know it."""
        return self.manifest.job or self.data.name

    @property
    def output(self) -> Path:
        """The output folder of that host."""
        name = next(iter(self.manifests))
        return next(host.output for host in self.data.hosts if host.name == name)


class NewJob(Record, frozen=True, kw_only=True):
    """The options of the new job, as a job file has them."""

    options: dict[str, Any]
    """By name, with absolute paths."""
    channels: dict[str, ManifestChannel]
    """What its channels hold now."""
    notes: tuple[str, ...] = ()
    """What it leaves out, and where its files come from, in sentences."""


def read_earlier(folder: Path) -> EarlierJob:
    """Return the job in *folder*: a job folder of `toolkit run`, or any /opt/ml or /opt/ml/output.

    Raises:
        UserError: there is no job, or no host has a manifest that can be read.
    """
    data = jobs.read(folder)
    notes: list[str] = []
    manifests = read_manifests(data, notes.append)
    if not manifests:
        raise UserError(f"expected a manifest.json that can be read, found none: {'; '.join(notes)}", where=str(folder))
    return EarlierJob(data=data, manifests=manifests, notes=tuple(notes))


def make_options(job: EarlierJob, source: Path, by_user: Mapping[str, Any]) -> NewJob:
    """Return the options of a job that runs *job* again. *source*: an empty folder for its source. *by_user*: options
    that win, of which the channels count here.

    Raises:
        UserError: the source is gone, or a channel is.
    """
    path = job.data.folder / REQUEST
    if folders.is_file(path):
        options = read_file(path, "It is the job as it was asked for.")
        script = _place_source(job, options, source)
    else:
        options = _options_of_container(job)
        shutil.copytree(
            _find_code(job), source, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED), dirs_exist_ok=True
        )
        script = source / job.manifest.script
    notes = [f"without {meaning}" for name, meaning in LEFT_OUT.items() if options.get(name)]
    env = dict(options.get("env", {}))
    if env.pop(CHECKPOINT_VARIABLE, None):
        notes.append(f"without {CHECKPOINT_VARIABLE}: the job would continue from the checkpoints of the other one")
    if job.manifest.source_commit:
        env.setdefault("TOOLKIT_SOURCE_COMMIT", job.manifest.source_commit)
    channel_options, channels = {}, {}
    for name, channel in job.manifest.channels.items():
        value = by_user.get("channel", {}).get(name) or options.get("channel", {}).get(name)
        value, held, note = _choose_channel(job, name, channel, value, is_of_user=name in by_user.get("channel", {}))
        channel_options[name], channels[name] = value, held
        notes += [note] if note else []
    for name in by_user.get("channel", {}):
        if name not in job.manifest.channels:
            channel_options[name] = by_user["channel"][name]
            channels[name] = ManifestChannel(mode="new")
    kept_options = {
        name: value for name, value in options.items() if name not in OF_THE_FOLDER and name not in LEFT_OUT
    }
    return NewJob(
        options={**kept_options, "script": str(script), "source": str(source), "env": env}
        | ({"channel": channel_options} if channel_options else {}),
        channels=channels,
        notes=tuple(notes),
    )


def find_missing_secrets(job: EarlierJob, options: Mapping[str, Any]) -> list[str]:
    """Return the names of hyperparameters that were secrets, and which *options* do not set."""
    hyperparameters = options.get("hyperparameter", {})
    return [
        name for name, value in job.manifest.hyperparameters.items() if value == SECRET and name not in hyperparameters
    ]


def list_differences(
    job: EarlierJob, job_file: JobFile, channels: Mapping[str, ManifestChannel], environ: Mapping[str, str], log: Log
) -> tuple[list[Difference], list[str]]:
    """Return what will not be the same in the job *job_file*, and sentences on what cannot be known before it runs.

    *environ*: the person's environment.
    """
    manifest, notes = job.manifest, list[str]()
    hidden = {**environ, **job_file.environment}
    log.hide(hidden)
    now = replace(
        manifest,
        toolkit=toolkit.__version__,
        source=digest_tree(job_file.source),
        channels=dict(channels),
        hosts=len(job_file.hosts),
        hyperparameters=show_hyperparameters(_list_hyperparameters(job_file), log.mask),
        environment=_digest_environment(job_file, manifest.host, environ, log),
    )
    if job_file.run.backend == "docker":
        now = replace(now, image=containers.image_with_digest(job_file.run.image or "", environ))
        notes.append("packages and machine of the image are not known before it runs: toolkit compare tells them")
    else:
        now = _with_machine(now, job_file, environ)
        if manifest.image:
            notes.append(f"it ran in the image {manifest.image}; this job runs without a container")
    differences = [one for one in compare_manifests(manifest, now) if not _is_of_documents(one)]
    if job_file.run.interpreter is not None:
        rebuilt = [one for one in differences if _is_of_the_venv(one)]
        differences = [one for one in differences if one not in rebuilt]
        if packages := [one.name for one in rebuilt if one.part == "package"]:
            text = f"{len(packages)} packages have the same version and another RECORD"
            notes.append(f"{text}: it holds paths, and who installed")
    if job_file.run.interpreter is None and job_file.run.backend != "docker" and installs(job_file):
        again = [one for one in differences if one.part == "package" and one.second == ABSENT]
        differences = [one for one in differences if one not in again]
        if again:
            notes.append(
                f"{len(again)} packages ({', '.join(one.name for one in again[:4])}{', ...' if len(again) > 4 else ''})"
                " come from requirements.txt again, in the versions that its index has now; --venv takes those that ran"
            )
    return differences, notes


def _is_of_documents(difference: Difference) -> bool:
    """True for a variable that `train` makes of the job's documents."""
    return difference.part == "variable" and difference.name.startswith(FOREIGN_PREFIXES)


def _is_of_the_venv(difference: Difference) -> bool:
    """True for what differs because packages were installed again into another folder."""
    versions = [text.partition(" ")[0] for text in (difference.first, difference.second)]
    return (difference.part == "package" and versions[0] == versions[1]) or (
        difference.part == "variable" and difference.name == "PATH"
    )


def _place_source(job: EarlierJob, options: Mapping[str, Any], source: Path) -> Path:
    """Unpack the source of *job* into *source*; return the script in it."""
    archive = job.data.folder / "source" / "sourcedir.tar.gz"
    if not folders.is_file(archive):
        raise UserError(
            "expected the source that the job was submitted with, found none",
            where=str(archive),
            hint="Run the script itself: toolkit run SCRIPT.",
        )
    unpack(archive, source)
    rules = options.get("rules")
    if isinstance(rules, str):
        first_source = Path(options.get("source") or Path(str(options["script"])).parent)
        inside = Path(rules).relative_to(first_source) if Path(rules).is_relative_to(first_source) else Path(rules).name
        options["rules"] = str(source / inside)  # type: ignore[index]
    return source / job.manifest.script


def _find_code(job: EarlierJob) -> Path:
    code = job.output.parent / "code"
    if not folders.is_dir(code):
        raise UserError(
            "expected the job's code, found none",
            where=str(code),
            hint="Name a folder that holds output/ and code/, as /opt/ml does.",
        )
    return code


def _options_of_container(job: EarlierJob) -> dict[str, Any]:
    """Return the options of a job that `toolkit run` did not run, as its manifest and documents have them."""
    manifest, config = job.manifest, job.output.parent / "input" / "config"
    options: dict[str, Any] = {"hosts": manifest.hosts, "hyperparameter": {}}
    documents = _read_document(config / "hyperparameters.json")
    for name, text in manifest.hyperparameters.items():
        if text == SECRET:
            continue
        if text.startswith("sha256:"):
            if not isinstance(documents, dict) or name not in documents:
                raise UserError(
                    f"expected the value of the hyperparameter {name}, found its digest alone",
                    where=str(config / "hyperparameters.json"),
                    hint=f"Give it: --hyperparameter {name}=VALUE.",
                )
            text = documents[name]
        options["hyperparameter"][name] = _parse(text)
    if manifest.strategy != "script":
        options["distribution"] = manifest.strategy
    if manifest.processes_per_host > 1:
        options["processes-per-host"] = manifest.processes_per_host
    metrics = _read_document(config / "metric-definition-regex.json")
    if isinstance(metrics, list):
        pairs = [entry for entry in metrics if isinstance(entry, dict) and {"Name", "Regex"} <= entry.keys()]
        options["metric"] = {str(entry["Name"]): str(entry["Regex"]) for entry in pairs}
    return options


def _parse(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def _read_document(path: Path) -> Any:
    try:
        return msgspec.json.decode(files.read(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _choose_channel(
    job: EarlierJob, name: str, channel: ManifestChannel, value: Any, *, is_of_user: bool
) -> tuple[Any, ManifestChannel, str]:
    """Return the channel's option, what it holds, and a sentence if that is not the person's own folder.

    Raises:
        UserError: neither the person's folder nor the job's copy is there.
    """
    kept = job.output.parent / "input" / "data" / name
    place, words = _split(value) if value is not None else ("", "")
    if is_remote(place or channel.uri):
        return value or channel.uri, channel, f"channel {name} is fetched again from {place or channel.uri}, unchecked"
    candidates = [Path(place)] if place else []
    if not channel.sharded and channel.mode != "Pipe" and not is_of_user:
        candidates.append(kept)
    trees = {path: digest_tree(path) for path in candidates}
    there = [path for path, tree in trees.items() if tree is not None]
    if not there:
        places = " or ".join(map(str, candidates)) or "any place"
        raise UserError(
            f"expected the files of channel {name}, found nothing at {places}",
            where=str(job.data.folder),
            hint=f"Say where they are: --channel {name}=PATH.",
        )
    wanted = None if channel.tree is None or channel.sharded else channel.tree.digest
    equal = [path for path in there if wanted is None or _digest(trees[path]) == wanted]
    path = (equal or there)[0]
    is_copy = bool(place) and path == kept
    note = f"channel {name} is the copy that the job had: {place} is gone or has changed" if is_copy else ""
    tree = channel.tree if wanted is None else trees[path]
    return _with_path(value, path, words), replace(channel, tree=tree), note


def _digest(tree: Any) -> str:
    return "" if tree is None else str(tree.digest)


def _split(value: Any) -> tuple[str, str]:
    """Return (path, the words behind it) of a channel's option."""
    if isinstance(value, dict):
        return str(value.get("path", "")), ""
    path, words = str(value), ""
    while ":" in path and path.rpartition(":")[2] in WORDS:
        path, _, word = path.rpartition(":")
        words = f":{word}{words}"
    return path, words


def _with_path(value: Any, path: Path, words: str) -> Any:
    return {**value, "path": str(path)} if isinstance(value, dict) else f"{path}{words}"


def _list_hyperparameters(job_file: JobFile) -> dict[str, Any]:
    """Return what scripts get as hyperparameters: the user's, and the parameters of a model's partitions."""
    flags = distribution_flags(job_file)
    return {name: flags[name] for name in (MODEL_PARALLEL,) if name in flags} | job_file.hyperparameters


def _digest_environment(job_file: JobFile, host: str, environ: Mapping[str, str], log: Log) -> dict[str, str]:
    """Return the digests of the variables that `train` of *host* will have."""
    name = host if host in job_file.hosts else job_file.hosts[0]
    base = job_file.run.job_dir / "hosts" / name / "opt" / "ml"
    setup = HostSetup(
        host=name,
        base=base,
        submitted=base,
        port=0,
        cpus=len(os.sched_getaffinity(0)),
        contained=job_file.run.backend == "docker",
    )
    variables = environment(job_file, setup, environ, region_of(environ))
    if job_file.run.interpreter is not None:
        folder = str(job_file.run.interpreter.parent)
        variables["PATH"] = os.pathsep.join([folder, variables.get("PATH", os.defpath)])
    return digest_variables(variables, log.mask)


def _with_machine(manifest: RunManifest, job_file: JobFile, environ: Mapping[str, str]) -> RunManifest:
    """Return *manifest* with the packages, the interpreter and the machine that a job has here."""
    interpreter = str(job_file.run.interpreter or sys.executable)
    path = search_path_of(interpreter, sys.path, sys.executable, environ.get("PYTHONPATH", ""))
    packages, places = list_packages(path)
    described = describe_interpreter(interpreter if interpreter == sys.executable else sys.executable)
    return replace(
        manifest,
        interpreter=described,
        packages=packages,
        package_places=places,
        hardware=describe_hardware(probe_machine(environ), packages, environ),
    )
