"""A job file or the arguments of `toolkit run`, checked: a JobFile of the options that options.py reads. Pure.

A JobFile holds a JobSpec (job/spec.py), what every platform knows of a job, and what only `toolkit run` needs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec

from toolkit.errors import ContractError
from toolkit.job.cluster import Group
from toolkit.job.file.distribution import strategy_of
from toolkit.job.file.options import PATH_OPTIONS, URI, Backend, ChannelOptions, Options, Origin, check_options
from toolkit.job.job import Channel, ChannelMode, FileSystemAccess
from toolkit.job.spec import JobSpec
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
    """What only `toolkit run` needs. `replace`: an earlier job's results in `job_dir` may be removed. `backend` None:
    not given, so the hosts are processes."""

    job_dir: Path
    replace: bool = False
    stop_after_s: float | None = None
    max_run_s: float | None = None
    kills: tuple[Kill, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    max_wait_s: float | None = None
    backend: Backend | None = None
    image: str | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None


class JobFile(Record, frozen=True, kw_only=True):
    """A job file or a command line, checked: the job, its hosts, and what only `toolkit run` needs. Paths are absolute.

    `source`: the folder that holds the script. `requirements`: the file to install, which may lie elsewhere.
    """

    spec: JobSpec
    source: Path
    groups: tuple[Group, ...]
    run: LocalRun
    requirements: Path | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts in the order of the platform's document: by the alphabet (algo-10 before algo-2)."""
        return tuple(sorted(host for group in self.groups for host in group.hosts))

    @property
    def entry(self) -> str:
        """The script as the source folder knows it."""
        assert self.spec.entry is not None
        return self.spec.entry

    @property
    def script(self) -> Path:
        return self.source / self.entry

    @property
    def rules_in_source(self) -> str:
        """The document of log rules as the submitted source has it: by its place there, from elsewhere at the top."""
        rules = self.spec.rules
        if rules is None:
            return ""
        return rules.relative_to(self.source).as_posix() if rules.is_relative_to(self.source) else rules.name

    @property
    def first_type(self) -> str:
        """The instance type of the first group that takes part in the distribution."""
        name = (self.spec.groups or (self.groups[0].name,))[0]
        return next(group.instance_type for group in self.groups if group.name == name)


def complete(
    options: Mapping[str, Any], origin: Origin, *, folder: Path, stamp: str, needs_script: bool = True
) -> JobFile:
    """Return the JobFile for *options*; *folder* is where jobs/ goes; *stamp* (a time) makes a name if none
    is given. *needs_script* False: a plug-in runs, and `source` is given.

    Raises:
        ContractError: an option is missing, of the wrong type or outside what is possible; names it.
    """
    asked = check_options(options, origin)
    for option in ("script", *PATH_OPTIONS):
        _check_path(getattr(asked, option.replace("-", "_")), origin.of(option))
    if asked.script is None and needs_script:
        raise ContractError("expected the path of a script, found nothing", where=origin.of("script"))
    source = Path(asked.source) if asked.source else Path(asked.script or "").parent
    script = None if asked.script is None else _below(Path(asked.script), source, origin)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", script.stem if script else "")[: NAME_CHARACTERS - 1 - len(stamp)].strip("-")
    name = f"{stem or 'job'}-{stamp}" if asked.name is None else asked.name
    if not _JOB_NAME.fullmatch(name):
        raise ContractError(
            f"expected letters, digits and inner dashes, at most 63, found {name!r}", where=origin.of("name")
        )
    if asked.checkpoints and asked.job_dir and Path(asked.checkpoints) == Path(asked.job_dir):
        hint = "The job's folder holds its results, which the next run in it replaces."
        raise ContractError(
            f"expected a folder beside the job's own, found {asked.job_dir}", where=origin.of("checkpoints"), hint=hint
        )
    compile(tuple(asked.metric.items()), origin.of("metric"))
    groups = _groups(asked, origin)
    hosts = {host for group in groups for host in group.hosts}
    strategy, taking_part = strategy_of(asked.distribution, {group.name for group in groups}, origin)
    return JobFile(
        spec=JobSpec(
            name=name,
            entry=None if script is None else script.relative_to(source).as_posix(),
            code=source,
            strategy=strategy,
            groups=taking_part or None,
            processes_per_host=asked.processes_per_host,
            hyperparameters=asked.hyperparameter,
            channels=tuple(_channel(name, value, origin) for name, value in asked.channel.items()),
            metric_definitions=(
                *asked.metric.items(),
                *presets.definitions(asked.metric_presets, origin.of("metric-presets")),
            ),
            checkpoints=Path(asked.checkpoints) if asked.checkpoints else None,
            rules=Path(asked.rules) if asked.rules else None,
            profiler_rules=list(asked.profiler_rules)
            if isinstance(asked.profiler_rules, tuple)
            else asked.profiler_rules,
            monitor=_monitor(asked, origin),
            environment={name: _text(value) for name, value in asked.env.items()},
        ),
        source=source,
        groups=groups,
        requirements=Path(asked.requirements) if asked.requirements else None,
        run=LocalRun(
            job_dir=Path(asked.job_dir) if asked.job_dir else folder / "jobs" / name,
            replace=bool(asked.replace),
            stop_after_s=None if asked.stop_after is None else seconds(asked.stop_after, "stop-after", origin),
            max_run_s=None if asked.max_run is None else seconds(asked.max_run, "max-run", origin, above_zero=True),
            kills=tuple(_kill(text, hosts, origin) for text in _several(asked.kill)),
            interrupts=_interrupts(asked, origin),
            max_wait_s=_max_wait(asked, origin),
            backend=asked.backend,
            image=asked.image,
            memory_bytes=None if asked.memory is None else size_bytes(asked.memory, "memory", origin),
            shm_bytes=None if asked.shm_size is None else size_bytes(asked.shm_size, "shm-size", origin),
        ),
    )


def seconds(value: str | float, option: str, origin: Origin, *, above_zero: bool = False) -> float:
    """Return the seconds of "30s", "10m", "1.5h", "250ms" or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", value.strip()) if isinstance(value, str) else None
    found = float(match[1]) * _UNIT_S[match[2]] if match else -1.0 if isinstance(value, str) else float(value)
    if not 0 <= found < math.inf or (above_zero and found == 0):
        expected = "a time above 0, such as" if above_zero else "a time such as"
        raise ContractError(f"expected {expected} 30s, 10m or 1.5h, found {value!r}", where=origin.of(option))
    return found


def size_bytes(value: str | int, option: str, origin: Origin) -> int:
    """Return the bytes of "512m", "2g", "1.5GiB" (docker's units, of 1,024) or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    found = int(float(match[1]) * _UNIT_BYTES[match[2]]) if match else 0
    if not found:
        raise ContractError(f"expected a size such as 512m or 2g, found {value!r}", where=origin.of(option))
    return found


def _groups(asked: Options, origin: Origin) -> tuple[Group, ...]:
    if not asked.instance_groups:
        hosts = tuple(f"algo-{number}" for number in range(1, (asked.hosts or 1) + 1))
        return (Group(name="homogeneousCluster", hosts=hosts, instance_type="local"),)
    count = sum(group.hosts for group in asked.instance_groups)
    if asked.hosts not in (None, count):
        raise ContractError(
            f"expected {count}, the sum over instance-groups, found {asked.hosts}", where=origin.of("hosts")
        )
    names = [group.name for group in asked.instance_groups]
    if len(set(names)) < len(names):
        raise ContractError(f"expected different names, found {', '.join(names)}", where=origin.of("instance-groups"))
    groups, first = [], 1
    for group in asked.instance_groups:
        numbers = range(first, first + group.hosts)
        hosts = tuple(f"algo-{number}" for number in numbers)
        groups.append(Group(name=group.name, hosts=hosts, instance_type=group.instance_type))
        first += group.hosts
    return tuple(groups)


def _monitor(asked: Options, origin: Origin) -> bool | None:
    """Return whether the job wants the system monitor, None if it does not say."""
    disabled = asked.disable_profiler
    if asked.monitor is not None and asked.monitor == disabled:
        message = f"expected {str(not disabled).lower()}, as disable-profiler says, found {str(asked.monitor).lower()}"
        raise ContractError(message, where=origin.of("monitor"), hint="Give one of the two.")
    return asked.monitor if disabled is None else not disabled


def _channel(name: str, value: str | ChannelOptions, origin: Origin) -> Channel:
    if not _CHANNEL_NAME.fullmatch(name) or name in (".", ".."):
        raise ContractError(f"expected a name of A-Z a-z 0-9 . - _, found {name!r}", where=origin.of("channel"))
    if isinstance(value, ChannelOptions):
        sharded = value.distribution == SHARDED
        found = Channel(name=name, folder=Path(), mode=value.mode, sharded=sharded, file_system=value.file_system or "")
        return _placed(found, value.path, origin)
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
        raise ContractError(f"{expected}, found {value!r}", where=origin.of("channel"))
    modes = [mode for word in words for mode in MODES if mode == word]
    if len(modes) > 1:
        raise ContractError(
            f"expected PATH:MODE with one mode, found {value!r} with {' and '.join(modes)}", where=origin.of("channel")
        )
    mode = (*modes, MODES[0])[0]
    access = next((each for each in ACCESS if each in words), ACCESS[0])
    found = Channel(name=name, folder=Path(), mode=mode, sharded=SHARDED in words, file_system=access)
    return _placed(found, path, origin)


def _placed(channel: Channel, path: str, origin: Origin) -> Channel:
    if channel.file_system and (channel.mode != "File" or channel.sharded or is_remote(path)):
        message = f"expected a folder of this machine without a mode or a distribution, found {path!r} with one"
        raise ContractError(
            message if not is_remote(path) else f"expected a folder of this machine, found {path!r}",
            where=origin.of("channel"),
            hint="A file system is seen by all hosts as it is.",
        )
    if is_remote(path):
        return msgspec.structs.replace(channel, uri=path)
    if URI.match(path):
        expected = "expected a path of this machine, or a URI that begins with s3://, gs:// or az://"
        raise ContractError(f"{expected}, found {path!r}", where=origin.of("channel"))
    return msgspec.structs.replace(channel, folder=Path(path))


def _check_path(path: str | None, where: str) -> None:
    if path is not None and URI.match(path):
        hint = "Checkpoints in storage: --env TOOLKIT_CHECKPOINT_URI=s3://BUCKET/KEY (docs/storage.md)."
        raise ContractError(f"expected a path of this machine, found {path!r}", where=where, hint=hint)


def _kill(text: str, hosts: set[str], origin: Origin) -> Kill:
    host, _, after = text.partition("@")
    if host not in hosts or not after:
        expected = ", ".join(sorted(hosts, key=lambda host: (len(host), host)))
        raise ContractError(f"expected HOST@TIME with a host among {expected}, found {text!r}", where=origin.of("kill"))
    return Kill(host=host, after_s=seconds(after, "kill", origin))


def _interrupts(asked: Options, origin: Origin) -> tuple[Interrupt, ...]:
    """Return the spot interruptions in the order of their times."""
    given = asked.interrupt if isinstance(asked.interrupt, tuple) else (asked.interrupt,)
    found = sorted((_interrupt(value, origin) for value in given), key=lambda each: each.after_s)
    for first, second in pairwise(found):
        if first.after_s == second.after_s:
            message = f"expected different times, found {second.after_s:g} s twice"
            raise ContractError(message, where=origin.of("interrupt"))
    return tuple(found)


def _interrupt(value: str | float, origin: Origin) -> Interrupt:
    after, plus, wait = value.partition("+") if isinstance(value, str) else (value, "", "")
    try:
        after_s = seconds(after, "interrupt", origin)
        return Interrupt(after_s=after_s, wait_s=seconds(wait, "interrupt", origin) if plus else 0.0)
    except ContractError:
        expected = "expected TIME or TIME+WAIT, such as 30s or 10m+1m"
        raise ContractError(f"{expected}, found {value!r}", where=origin.of("interrupt")) from None


def _max_wait(asked: Options, origin: Origin) -> float | None:
    """Return the most seconds from the job's start to its end; the platform takes no less than the time limit."""
    if asked.max_wait is None:
        return None
    found = seconds(asked.max_wait, "max-wait", origin, above_zero=True)
    if asked.max_run is not None and found < seconds(asked.max_run, "max-run", origin):
        message = f"expected no less than max-run, {asked.max_run}, found {asked.max_wait}"
        hint = "It is the time of training and of waiting together (MaxWaitTimeInSeconds)."
        raise ContractError(message, where=origin.of("max-wait"), hint=hint)
    return found


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
