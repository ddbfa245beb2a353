"""A job as a person asked for it: the words of words.py, checked together, as one Spec. Pure."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.errors import ContractError, did_you_mean
from toolkit.jobfile.words import PATH_WORDS, URI, Backend, ChannelWords, Mode, Place, Positive, Words, check_words
from toolkit.records import Record, convert

MODES: tuple[Mode, ...] = ("File", "FastFile", "Pipe")
SHARDED = "ShardedByS3Key"
# The names `--distribution` takes, as the SageMaker SDK's dictionaries.
DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "pytorchddp": {"pytorchddp": {"enabled": True}},
    "torch_distributed": {"torch_distributed": {"enabled": True}},
    "mpi": {"mpi": {"enabled": True}},
    "horovod": {"horovod": {"enabled": True}},
    "smddp": {"smdistributed": {"dataparallel": {"enabled": True}}},
    "pytorchxla": {"pytorchxla": {"enabled": True}},
    "parameter_server": {"parameter_server": {"enabled": True}},
    "multi_worker_mirrored_strategy": {"multi_worker_mirrored_strategy": {"enabled": True}},
}
# What people who come from torch call two of them.
ALIASES = {"torchrun": "torch_distributed", "ddp": "pytorchddp"}
# Those that start one process on each host, whatever processes-per-host says.
ONE_PROCESS = ("none", "parameter_server", "multi_worker_mirrored_strategy")
DISTRIBUTION_KEYS = {key for form in DISTRIBUTIONS.values() for key in form} | {"instance_groups"}
_UNIT_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Names of jobs and channels as the platform takes them (CreateTrainingJob, seen 2026).
NAME_CHARACTERS = 63
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")


class Channel(Record, frozen=True, kw_only=True):
    """An input channel: a file or folder of this machine, and how the job is given it."""

    name: str
    path: Path
    mode: Mode = "File"
    sharded: bool = False


class Group(Record, frozen=True, kw_only=True):
    """An instance group: its hosts are counted through over all groups."""

    name: str
    hosts: tuple[str, ...]
    instance_type: str


class Kill(Record, frozen=True, kw_only=True):
    """A host that vanishes *after_s* seconds from the start."""

    host: str
    after_s: float


class Spec(Record, frozen=True, kw_only=True):
    """A job as asked for. Paths are absolute. `entry` is the script as the source folder knows it.

    `backend` None: not given, so the hosts are processes.
    """

    name: str
    script: Path
    source: Path
    groups: tuple[Group, ...]
    job_dir: Path
    processes_per_host: int | None = None
    distribution: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {}
    channels: tuple[Channel, ...] = ()
    metrics: tuple[tuple[str, str], ...] = ()
    requirements: Path | None = None
    rules: Path | None = None
    checkpoints: Path | None = None
    environment: dict[str, str] = {}
    stop_after_s: float | None = None
    max_run_s: float | None = None
    kills: tuple[Kill, ...] = ()
    backend: Backend | None = None
    image: str | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts in the order of the platform's document: by the alphabet (algo-10 before algo-2)."""
        return tuple(sorted(host for group in self.groups for host in group.hosts))

    @property
    def entry(self) -> str:
        return self.script.relative_to(self.source).as_posix()

    @property
    def starts_ranks(self) -> bool:
        """True if the distribution starts several processes on a host where it is told to."""
        asked = {**self.distribution, **self.distribution.get("smdistributed", {})}
        return any(
            isinstance(asked[key], dict) and asked[key].get("enabled") for key in asked if key not in ONE_PROCESS
        )

    @property
    def rules_in_source(self) -> str:
        """The document of log rules as the submitted source has it: by its place there, from elsewhere at the top."""
        if self.rules is None:
            return ""
        below = self.rules.is_relative_to(self.source)
        return self.rules.relative_to(self.source).as_posix() if below else self.rules.name

    def group_of(self, host: str) -> Group:
        return next(group for group in self.groups if host in group.hosts)


def complete(words: Mapping[str, Any], place: Place, *, folder: Path, stamp: str) -> Spec:
    """Return the Spec for *words*; *folder* is where jobs/ goes, *stamp* (a time) makes a name where none is given.

    Raises:
        ContractError: a word is missing, of the wrong type or outside what is possible; names it.
    """
    asked = check_words(words, place)
    for word in ("script", *PATH_WORDS):
        _check_path(getattr(asked, word.replace("-", "_")), place.of(word))
    if asked.script is None:
        raise ContractError("expected the path of a script, found nothing", where=place.of("script"))
    source = Path(asked.source) if asked.source else Path(asked.script).parent
    script = _below(Path(asked.script), source, place)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", script.stem)[: NAME_CHARACTERS - 1 - len(stamp)].strip("-")
    name = asked.name or f"{stem or 'job'}-{stamp}"
    if not _JOB_NAME.fullmatch(name):
        raise ContractError(
            f"expected letters, digits and inner dashes, at most 63, found {name!r}", where=place.of("name")
        )
    if asked.checkpoints and asked.job_dir and Path(asked.checkpoints) == Path(asked.job_dir):
        hint = "The job's folder holds its results, which the next run in it replaces."
        raise ContractError(
            f"expected a folder beside the job's own, found {asked.job_dir}", where=place.of("checkpoints"), hint=hint
        )
    groups = _groups(asked, place)
    hosts = {host for group in groups for host in group.hosts}
    return Spec(
        name=name,
        script=script,
        source=source,
        groups=groups,
        job_dir=Path(asked.job_dir) if asked.job_dir else folder / "jobs" / name,
        processes_per_host=asked.processes_per_host,
        distribution=distribution(asked.distribution, {group.name for group in groups}, place),
        hyperparameters=asked.hyperparameter,
        channels=tuple(_channel(name, value, place) for name, value in asked.channel.items()),
        metrics=tuple(asked.metric.items()),
        requirements=Path(asked.requirements) if asked.requirements else None,
        rules=Path(asked.rules) if asked.rules else None,
        checkpoints=Path(asked.checkpoints) if asked.checkpoints else None,
        environment={name: _text(value) for name, value in asked.env.items()},
        stop_after_s=None if asked.stop_after is None else seconds(asked.stop_after, "stop-after", place),
        max_run_s=None if asked.max_run is None else seconds(asked.max_run, "max-run", place, above_zero=True),
        kills=tuple(_kill(text, hosts, place) for text in _several(asked.kill)),
        backend=asked.backend,
        image=asked.image,
        memory_bytes=None if asked.memory is None else size_bytes(asked.memory, "memory", place),
        shm_bytes=None if asked.shm_size is None else size_bytes(asked.shm_size, "shm-size", place),
    )


def distribution(asked: str | Mapping[str, Any] | None, groups: set[str], place: Place) -> dict[str, Any]:
    """Return the SDK's dictionary form of what was *asked*: a name, such a dictionary, or nothing."""
    if asked is None:
        return {}
    if isinstance(asked, str):
        name = asked.lower().replace("-", "_")
        name = ALIASES.get(name, name)
        if name not in DISTRIBUTIONS:
            known = (*DISTRIBUTIONS, *ALIASES)
            expected = f"expected one of {', '.join(known)}, found {asked!r}"
            raise ContractError(expected, where=place.of("distribution"), hint=did_you_mean(asked, known))
        return DISTRIBUTIONS[name]
    for key in asked:
        if key not in DISTRIBUTION_KEYS:
            expected = ", ".join(sorted(DISTRIBUTION_KEYS))
            raise ContractError(f"expected keys among {expected}, found {key!r}", where=place.of("distribution"))
    try:
        convert(dict(asked), _Distribution, "")
    except ContractError as error:
        path, _, message = error.message.partition(": ")
        raise ContractError(message, where=place.of("distribution") + path.removeprefix("$")) from None
    for name in asked.get("instance_groups", ()):
        if name not in groups:
            expected = ", ".join(sorted(groups))
            raise ContractError(
                f"expected {expected}, found {name!r}", where=place.of("distribution") + ".instance_groups"
            )
    return dict(asked)


class _Launcher(Record, frozen=True, kw_only=True):
    """What a distribution's dictionary says of one launcher, as far as it is used."""

    enabled: bool = False
    processes_per_host: Positive | None = None
    custom_mpi_options: str = ""
    parameters: dict[str, Any] = {}


class _Smdistributed(Record, frozen=True, kw_only=True):
    dataparallel: _Launcher = _Launcher()
    modelparallel: _Launcher = _Launcher()


class _Distribution(Record, frozen=True, kw_only=True):
    pytorchddp: _Launcher = _Launcher()
    torch_distributed: _Launcher = _Launcher()
    mpi: _Launcher = _Launcher()
    horovod: _Launcher = _Launcher()
    smdistributed: _Smdistributed = _Smdistributed()
    pytorchxla: _Launcher = _Launcher()
    parameter_server: _Launcher = _Launcher()
    multi_worker_mirrored_strategy: _Launcher = _Launcher()
    instance_groups: tuple[str, ...] = ()


def seconds(value: str | float, word: str, place: Place, *, above_zero: bool = False) -> float:
    """Return the seconds of "30s", "10m", "1.5h", "250ms" or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", value.strip()) if isinstance(value, str) else None
    found = float(match[1]) * _UNIT_S[match[2]] if match else -1.0 if isinstance(value, str) else float(value)
    if not 0 <= found < math.inf or (above_zero and found == 0):
        expected = "a time above 0, such as" if above_zero else "a time such as"
        raise ContractError(f"expected {expected} 30s, 10m or 1.5h, found {value!r}", where=place.of(word))
    return found


def size_bytes(value: str | int, word: str, place: Place) -> int:
    """Return the bytes of "512m", "2g", "1.5GiB" (docker's units, of 1,024) or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    found = int(float(match[1]) * _UNIT_BYTES[match[2]]) if match else 0
    if not found:
        raise ContractError(f"expected a size such as 512m or 2g, found {value!r}", where=place.of(word))
    return found


def _groups(asked: Words, place: Place) -> tuple[Group, ...]:
    if not asked.instance_groups:
        hosts = tuple(f"algo-{number}" for number in range(1, (asked.hosts or 1) + 1))
        return (Group(name="homogeneousCluster", hosts=hosts, instance_type="local"),)
    count = sum(group.hosts for group in asked.instance_groups)
    if asked.hosts not in (None, count):
        raise ContractError(
            f"expected {count}, the sum over instance-groups, found {asked.hosts}", where=place.of("hosts")
        )
    names = [group.name for group in asked.instance_groups]
    if len(set(names)) < len(names):
        raise ContractError(f"expected different names, found {', '.join(names)}", where=place.of("instance-groups"))
    groups, first = [], 1
    for group in asked.instance_groups:
        numbers = range(first, first + group.hosts)
        hosts = tuple(f"algo-{number}" for number in numbers)
        groups.append(Group(name=group.name, hosts=hosts, instance_type=group.instance_type))
        first += group.hosts
    return tuple(groups)


def _channel(name: str, value: str | ChannelWords, place: Place) -> Channel:
    if not _CHANNEL_NAME.fullmatch(name) or name in (".", ".."):
        raise ContractError(f"expected a name of A-Z a-z 0-9 . - _, found {name!r}", where=place.of("channel"))
    _check_path(value if isinstance(value, str) else value.path, place.of("channel"))
    if isinstance(value, ChannelWords):
        sharded = value.distribution == SHARDED
        return Channel(name=name, path=Path(value.path), mode=value.mode, sharded=sharded)
    path, mode, sharded = value, MODES[0], False
    while ":" in path:
        front, _, word = path.rpartition(":")
        if word in MODES:
            mode = MODES[MODES.index(word)]
        elif word == SHARDED:
            sharded = True
        else:
            break
        path = front
    return Channel(name=name, path=Path(path), mode=mode, sharded=sharded)


def _check_path(path: str | None, where: str) -> None:
    if path is not None and URI.match(path):
        hint = "Download it first (of S3: aws s3 cp --recursive URI FOLDER), and give its path here."
        raise ContractError(f"expected a path of this machine, found {path!r}", where=where, hint=hint)


def _kill(text: str, hosts: set[str], place: Place) -> Kill:
    host, _, after = text.partition("@")
    if host not in hosts or not after:
        expected = ", ".join(sorted(hosts))
        raise ContractError(f"expected HOST@TIME with a host among {expected}, found {text!r}", where=place.of("kill"))
    return Kill(host=host, after_s=seconds(after, "kill", place))


def _below(script: Path, source: Path, place: Place) -> Path:
    """Return the absolute path of *script*, given from where the words are or from *source*."""
    for candidate in (script, source / script):
        if candidate.is_absolute() and source in candidate.parents:
            return candidate
    raise ContractError(f"expected a script in the source folder {source}, found {script}", where=place.of("script"))


def _text(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
