"""A job file or the arguments of `toolkit run`, checked: a JobFile of the options that options.py reads. Pure."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec

from toolkit.errors import ContractError
from toolkit.job.channel import Channel, ChannelMode, FileSystemAccess
from toolkit.job.cluster import Group
from toolkit.job.file.distribution import strategy_of
from toolkit.job.file.options import PATH_OPTIONS, URI, Backend, ChannelOptions, Options, Origin, check_options
from toolkit.job.strategy import Strategy
from toolkit.metrics import presets
from toolkit.metrics.definition import compile
from toolkit.records import Record
from toolkit.storage.uri import is_remote

MODES: tuple[ChannelMode, ...] = get_args(ChannelMode)
SHARDED = "ShardedByS3Key"
FILE_SYSTEM = "FileSystem"
ACCESS: tuple[FileSystemAccess, ...] = get_args(FileSystemAccess)  # "" and FileSystemAccessMode.
WORDS = (*MODES, SHARDED, FILE_SYSTEM, *ACCESS[1:])  # What may follow a channel's path.
_UNIT_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Names of jobs and channels as the platform takes them (CreateTrainingJob, seen 2026).
NAME_CHARACTERS = 63
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")


class Kill(Record, frozen=True, kw_only=True):
    """A host that vanishes *after_s* seconds from the start."""

    host: str
    after_s: float


class Interrupt(Record, frozen=True, kw_only=True):
    """A spot interruption *after_s* seconds of training; capacity for the next start comes *wait_s* after its end."""

    after_s: float
    wait_s: float = 0.0


class LocalRun(Record, frozen=True, kw_only=True):
    """The options of a job that only `toolkit run` needs."""

    job_dir: Path
    replace: bool = False
    """An earlier job's results in `job_dir` may be removed."""
    stop_after_s: float | None = None
    """When to stop the job, as StopTrainingJob does."""
    max_run_s: float | None = None
    """The time limit, MaxRuntimeInSeconds."""
    kills: tuple[Kill, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    """In the order of their times."""
    max_wait_s: float | None = None
    """The limit of training and of waiting together, MaxWaitTimeInSeconds."""
    backend: Backend | None = None
    """None: not given, so the hosts are processes."""
    image: str | None = None
    """The container image of the hosts."""
    memory_bytes: int | None = None
    """The memory of each container."""
    shm_bytes: int | None = None
    """The size of /dev/shm in each container."""
    interpreter: Path | None = None
    """The Python of hosts that are processes, with all that the job needs; None: the one that runs `toolkit run`."""


class JobFile(Record, frozen=True, kw_only=True):
    """The options of a job file, of a command line or of TOOLKIT_* variables, checked. Paths are absolute."""

    name: str
    source: Path
    """The folder that holds the script."""
    entry: str
    """The script as the source folder knows it; "": a plug-in runs the job."""
    groups: tuple[Group, ...]
    """All instance groups, with their hosts."""
    strategy: Strategy = Strategy()
    distribution_groups: tuple[str, ...] = ()
    """The names of the groups that take part in the distribution; (): the first."""
    processes_per_host: int | None = None
    hyperparameters: dict[str, Any] = {}
    hyperparameter_places: dict[str, str] = {}
    """The place of each hyperparameter, for errors ("job.toml: $.hyperparameter.lr")."""
    channels: tuple[Channel, ...] = ()
    metric_definitions: tuple[tuple[str, str], ...] = ()
    """(name, regular expression) of each; those of presets follow."""
    checkpoints: Path | None = None
    """The folder of checkpoints."""
    rules: Path | None = None
    """The document of log rules."""
    profiler_rules: Any = None
    """A table or list of rules as diagnosis/configuration.py reads it."""
    monitor: bool | None = None
    """True if the job wants the system monitor; None: it does not say."""
    environment: dict[str, str] = {}
    """Variables that override the container's."""
    requirements: Path | None = None
    """The file to install, which may lie outside `source`."""
    request: dict[str, Any] = {}
    """The options as they were written, with absolute paths."""
    run: LocalRun

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts in the order of the platform's document: by the alphabet (algo-10 before algo-2)."""
        return tuple(sorted(host for group in self.groups for host in group.hosts))

    @property
    def script(self) -> Path:
        return self.source / self.entry

    @property
    def rules_in_source(self) -> str:
        """The document of log rules as the submitted source has it: by its place there, from elsewhere at the top."""
        if self.rules is None:
            return ""
        return (
            self.rules.relative_to(self.source).as_posix()
            if self.rules.is_relative_to(self.source)
            else self.rules.name
        )

    @property
    def first_type(self) -> str:
        """The instance type of the first group that takes part in the distribution."""
        name = (self.distribution_groups or (self.groups[0].name,))[0]
        return next(group.instance_type for group in self.groups if group.name == name)


def check_job_file(
    options: Mapping[str, Any], origin: Origin, *, folder: Path, stamp: str, needs_script: bool = True
) -> JobFile:
    """Return the JobFile for *options*; *folder* is where jobs/ goes; *stamp* (a time) makes a name if none
    is given. *needs_script* False: a plug-in runs, and `source` is given.

    Raises:
        ContractError: an option is missing, of the wrong type or outside what is possible; names it.
    """
    checked = check_options(options, origin)
    source, script = _source_and_script(checked, origin, needs_script=needs_script)
    name = _name(checked, script, stamp, origin)
    _check_checkpoints(checked, origin)
    compile(tuple(checked.metric.items()), origin.of("metric"))
    groups = _groups(checked, origin)
    strategy, distribution_groups = strategy_of(checked.distribution, {group.name for group in groups}, origin)
    return JobFile(
        name=name,
        source=source,
        entry="" if script is None else script.relative_to(source).as_posix(),
        groups=groups,
        strategy=strategy,
        distribution_groups=distribution_groups,
        processes_per_host=checked.processes_per_host,
        hyperparameters=checked.hyperparameter,
        hyperparameter_places={name: origin.of_entry("hyperparameter", name) for name in checked.hyperparameter},
        channels=tuple(_channel(name, value, origin) for name, value in checked.channel.items()),
        metric_definitions=_metric_definitions(checked, origin),
        checkpoints=_path(checked.checkpoints),
        rules=_path(checked.rules),
        profiler_rules=list(checked.profiler_rules)
        if isinstance(checked.profiler_rules, tuple)
        else checked.profiler_rules,
        monitor=_monitor(checked, origin),
        environment={name: _text(value) for name, value in checked.env.items()},
        requirements=_path(checked.requirements),
        request=dict(options),
        run=_local_run(checked, groups, _path(checked.job_dir) or folder / "jobs" / name, origin),
    )


def _source_and_script(options: Options, origin: Origin, *, needs_script: bool) -> tuple[Path, Path | None]:
    """Return (the source folder, the script's absolute path in it, None without a script)."""
    for option in ("script", *PATH_OPTIONS):
        _check_path(getattr(options, option.replace("-", "_")), origin.of(option))
    if options.script is None:
        if needs_script:
            raise ContractError("expected the path of a script, found nothing", where=origin.of("script"))
        return Path(options.source or ""), None
    source = Path(options.source) if options.source else Path(options.script).parent
    return source, _below(Path(options.script), source, origin)


def _name(options: Options, script: Path | None, stamp: str, origin: Origin) -> str:
    """Return the job's name: the one given, else one of the script's name and *stamp*."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", script.stem if script else "")[: NAME_CHARACTERS - 1 - len(stamp)].strip("-")
    name = f"{stem or 'job'}-{stamp}" if options.name is None else options.name
    if not _JOB_NAME.fullmatch(name):
        raise ContractError(
            f"expected letters, digits and inner dashes, at most 63, found {name!r}", where=origin.of("name")
        )
    return name


def _check_checkpoints(options: Options, origin: Origin) -> None:
    if options.checkpoints and options.job_dir and Path(options.checkpoints) == Path(options.job_dir):
        hint = "The job's folder holds its results, which the next run in it replaces."
        raise ContractError(
            f"expected a folder beside the job's own, found {options.job_dir}",
            where=origin.of("checkpoints"),
            hint=hint,
        )


def _metric_definitions(options: Options, origin: Origin) -> tuple[tuple[str, str], ...]:
    return (*options.metric.items(), *presets.definitions(options.metric_presets, origin.of("metric-presets")))


def _local_run(options: Options, groups: tuple[Group, ...], job_dir: Path, origin: Origin) -> LocalRun:
    hosts = {host for group in groups for host in group.hosts}
    return LocalRun(
        job_dir=job_dir,
        replace=bool(options.replace),
        stop_after_s=None if options.stop_after is None else seconds(options.stop_after, "stop-after", origin),
        max_run_s=None if options.max_run is None else seconds(options.max_run, "max-run", origin, above_zero=True),
        kills=tuple(_kill(text, hosts, origin) for text in _several(options.kill)),
        interrupts=_interrupts(options, origin),
        max_wait_s=_max_wait(options, origin),
        backend=options.backend,
        image=options.image,
        memory_bytes=None if options.memory is None else size_bytes(options.memory, "memory", origin),
        shm_bytes=None if options.shm_size is None else size_bytes(options.shm_size, "shm-size", origin),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def seconds(value: str | float, option: str, origin: Origin, *, above_zero: bool = False) -> float:
    """Return the seconds of "30s", "10m", "1.5h", "250ms" or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", value.strip()) if isinstance(value, str) else None
    duration_s = float(match[1]) * _UNIT_S[match[2]] if match else -1.0 if isinstance(value, str) else float(value)
    if not 0 <= duration_s < math.inf or (above_zero and duration_s == 0):
        expected = "a time above 0, such as" if above_zero else "a time such as"
        raise ContractError(f"expected {expected} 30s, 10m or 1.5h, found {value!r}", where=origin.of(option))
    return duration_s


def size_bytes(value: str | int, option: str, origin: Origin) -> int:
    """Return the bytes of "512m", "2g", "1.5GiB" (docker's units, of 1,024) or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    size = int(float(match[1]) * _UNIT_BYTES[match[2]]) if match else 0
    if not size:
        raise ContractError(f"expected a size such as 512m or 2g, found {value!r}", where=origin.of(option))
    return size


def _groups(options: Options, origin: Origin) -> tuple[Group, ...]:
    if not options.instance_groups:
        hosts = tuple(f"algo-{number}" for number in range(1, (options.hosts or 1) + 1))
        return (Group(name="homogeneousCluster", hosts=hosts, instance_type="local"),)
    count = sum(group.hosts for group in options.instance_groups)
    if options.hosts not in (None, count):
        raise ContractError(
            f"expected {count}, the sum over instance-groups, found {options.hosts}", where=origin.of("hosts")
        )
    names = [group.name for group in options.instance_groups]
    if len(set(names)) < len(names):
        raise ContractError(f"expected different names, found {', '.join(names)}", where=origin.of("instance-groups"))
    groups, first = [], 1
    for group in options.instance_groups:
        numbers = range(first, first + group.hosts)
        hosts = tuple(f"algo-{number}" for number in numbers)
        groups.append(Group(name=group.name, hosts=hosts, instance_type=group.instance_type))
        first += group.hosts
    return tuple(groups)


def _monitor(options: Options, origin: Origin) -> bool | None:
    """Return whether the job wants the system monitor, None if it does not say."""
    disabled = options.disable_profiler
    if options.monitor is not None and options.monitor == disabled:
        message = (
            f"expected {str(not disabled).lower()}, as disable-profiler says, found {str(options.monitor).lower()}"
        )
        raise ContractError(message, where=origin.of("monitor"), hint="Give one of the two.")
    return options.monitor if disabled is None else not disabled


def _channel(name: str, value: str | ChannelOptions, origin: Origin) -> Channel:
    place = origin.of_table("channel", name)
    if not _CHANNEL_NAME.fullmatch(name) or name in (".", ".."):
        raise ContractError(f"expected a name of A-Z a-z 0-9 . - _, found {name!r}", where=place)
    if isinstance(value, ChannelOptions):
        sharded = value.distribution == SHARDED
        access = value.file_system or ""
        channel = Channel(name=name, folder=Path(), mode=value.mode, sharded=sharded, file_system=access)
        return _placed(channel, value.path, place)
    path, words = value, list[str]()
    while ":" in path and path.rpartition(":")[2] in WORDS:
        path, _, word = path.rpartition(":")
        words.insert(0, word)
    if words == [FILE_SYSTEM]:
        words = ["ro"]
    elif words[:-1] == [FILE_SYSTEM] and words[-1] in ACCESS:
        words = words[1:]
    elif FILE_SYSTEM in words or any(word in ACCESS for word in words):
        expected = "expected PATH:FileSystem or PATH:FileSystem:rw and no mode"
        raise ContractError(f"{expected}, found {value!r}", where=place)
    modes = [mode for word in words for mode in MODES if mode == word]
    if len(modes) > 1:
        raise ContractError(
            f"expected PATH:MODE with one mode, found {value!r} with {' and '.join(modes)}", where=place
        )
    mode = (*modes, MODES[0])[0]
    access = next((access for access in ACCESS if access in words), ACCESS[0])
    channel = Channel(name=name, folder=Path(), mode=mode, sharded=SHARDED in words, file_system=access)
    return _placed(channel, path, place)


def _placed(channel: Channel, path: str, place: str) -> Channel:
    if channel.file_system and (channel.mode != "File" or channel.sharded or is_remote(path)):
        message = f"expected a folder of this machine without a mode or a distribution, found {path!r} with one"
        raise ContractError(
            message if not is_remote(path) else f"expected a folder of this machine, found {path!r}",
            where=place,
            hint="A file system is seen by all hosts as it is.",
        )
    if is_remote(path):
        return msgspec.structs.replace(channel, uri=path)
    if URI.match(path):
        expected = "expected a path of this machine, or a URI that begins with s3://, gs:// or az://"
        raise ContractError(f"{expected}, found {path!r}", where=place)
    return msgspec.structs.replace(channel, folder=Path(path))


def _check_path(path: str | None, source: str) -> None:
    if path is not None and URI.match(path):
        hint = "Checkpoints in storage: --env TOOLKIT_CHECKPOINT_URI=s3://BUCKET/KEY (docs/storage.md)."
        raise ContractError(f"expected a path of this machine, found {path!r}", where=source, hint=hint)


def _kill(text: str, hosts: set[str], origin: Origin) -> Kill:
    host, _, after = text.partition("@")
    if host not in hosts or not after:
        expected = ", ".join(sorted(hosts, key=lambda host: (len(host), host)))
        raise ContractError(f"expected HOST@TIME with a host among {expected}, found {text!r}", where=origin.of("kill"))
    return Kill(host=host, after_s=seconds(after, "kill", origin))


def _interrupts(options: Options, origin: Origin) -> tuple[Interrupt, ...]:
    """Return the spot interruptions in the order of their times."""
    values = options.interrupt if isinstance(options.interrupt, tuple) else (options.interrupt,)
    interrupts = sorted((_interrupt(value, origin) for value in values), key=lambda interrupt: interrupt.after_s)
    for first, second in pairwise(interrupts):
        if first.after_s == second.after_s:
            message = f"expected different times, found {second.after_s:g} s twice"
            raise ContractError(message, where=origin.of("interrupt"))
    return tuple(interrupts)


def _interrupt(value: str | float, origin: Origin) -> Interrupt:
    after, plus, wait = value.partition("+") if isinstance(value, str) else (value, "", "")
    try:
        after_s = seconds(after, "interrupt", origin)
        return Interrupt(after_s=after_s, wait_s=seconds(wait, "interrupt", origin) if plus else 0.0)
    except ContractError:
        expected = "expected TIME or TIME+WAIT, such as 30s or 10m+1m"
        raise ContractError(f"{expected}, found {value!r}", where=origin.of("interrupt")) from None


def _max_wait(options: Options, origin: Origin) -> float | None:
    """Return the most seconds from the job's start to its end; the platform takes no less than the time limit."""
    if options.max_wait is None:
        return None
    max_wait_s = seconds(options.max_wait, "max-wait", origin, above_zero=True)
    if options.max_run is not None and max_wait_s < seconds(options.max_run, "max-run", origin):
        message = f"expected no less than max-run, {options.max_run}, found {options.max_wait}"
        hint = "It is the time of training and of waiting together (MaxWaitTimeInSeconds)."
        raise ContractError(message, where=origin.of("max-wait"), hint=hint)
    return max_wait_s


def _below(script: Path, source: Path, origin: Origin) -> Path:
    """Return the absolute path of *script*, given from where the options are or from *source*."""
    for candidate in (script, source / script):
        if candidate.is_absolute() and source in candidate.parents:
            return candidate
    raise ContractError(f"expected a script in the source folder {source}, found {script}", where=origin.of("script"))


def _text(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
