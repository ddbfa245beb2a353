"""What a person asked for: the words of `toolkit run`, from its arguments and from a job file, as one Spec.

Pure: text in, values out. Relative paths belong to the folder that the words came from (the job file's, or the current
one for arguments), so each source is read with its folder and only then are the two joined.
"""

import json
import os.path
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from toolkit.errors import ContractError
from toolkit.records import Record, convert

Mode = Literal["File", "FastFile", "Pipe"]
Backend = Literal["process", "docker"]
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
DISTRIBUTION_KEYS = {key for form in DISTRIBUTIONS.values() for key in form} | {"instance_groups"}
PATH_WORDS = ("source", "requirements", "checkpoints", "job-dir")
TABLE_WORDS = ("hyperparameter", "channel", "metric", "env")
_UNIT_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Names of jobs and channels as the platform takes them (CreateTrainingJob, seen 2026).
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")

Positive = Annotated[int, msgspec.Meta(ge=1)]


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
    """A job as asked for. Paths are absolute. `entry` is the script as the source folder knows it."""

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
    checkpoints: Path | None = None
    environment: dict[str, str] = {}
    stop_after_s: float | None = None
    max_run_s: float | None = None
    kills: tuple[Kill, ...] = ()
    backend: Backend = "process"
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

    def group_of(self, host: str) -> Group:
        return next(group for group in self.groups if host in group.hosts)


class ChannelWords(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    mode: Mode = "File"
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = "FullyReplicated"


class GroupWords(Record, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    name: str
    hosts: Positive
    instance_type: str = "local"


class Words(Record, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The words as they are written, in a job file or as arguments."""

    script: str | None = None
    source: str | None = None
    name: str | None = None
    job_dir: str | None = None
    hosts: Positive | None = None
    instance_groups: tuple[GroupWords, ...] = ()
    processes_per_host: Positive | None = None
    distribution: str | dict[str, Any] | None = None
    hyperparameter: dict[str, Any] = {}
    channel: dict[str, str | ChannelWords] = {}
    metric: dict[str, str] = {}
    requirements: str | None = None
    checkpoints: str | None = None
    env: dict[str, str | bool | int | float] = {}
    stop_after: str | float | None = None
    max_run: str | float | None = None
    kill: str | tuple[str, ...] = ()
    backend: Backend = "process"
    image: str | None = None
    memory: str | int | None = None
    shm_size: str | int | None = None


def from_arguments(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the words of the command line: *given* by argparse's names, None and [] left out; paths from *folder*.

    Raises:
        ContractError: a `name=value` without "=".
    """
    words = {name.replace("_", "-"): value for name, value in given.items() if value not in (None, [])}
    for word in TABLE_WORDS:
        if word in words:
            words[word] = dict(_pair(word, text) for text in words[word])
    if "hyperparameter" in words:
        words["hyperparameter"] = {key: _json_or_text(value) for key, value in words["hyperparameter"].items()}
    if str(words.get("distribution", "")).startswith("{"):
        words["distribution"] = _json_or_text(words["distribution"])
    return _rooted(words, folder)


def from_file(text: str, path: Path) -> dict[str, Any]:
    """Return the words of the job file *path*, whose content is *text*: TOML, or JSON by its name.

    Raises:
        ContractError: it is neither, or not a table of words.
    """
    if path.suffix == ".json":
        try:
            content = msgspec.json.decode(text.encode())
        except msgspec.DecodeError as error:
            raise ContractError(
                f"expected JSON ({str(error).removeprefix('JSON is malformed: ')})", where=str(path)
            ) from None
    else:
        content = _toml(text, path)
    if not isinstance(content, dict):
        raise ContractError(f"expected an object of words, found {type(content).__name__}", where=str(path))
    words = {name.replace("_", "-"): value for name, value in content.items()}
    if isinstance(words.get("instance-groups"), list):
        groups = words["instance-groups"]
        words["instance-groups"] = [_dashed(group) if isinstance(group, dict) else group for group in groups]
    check_words(words, str(path))
    return _rooted(words, path.parent)


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both sources' words; *second* wins word by word, within a table name by name."""
    words = {**first, **second}
    for word in TABLE_WORDS:
        if word in first and word in second:
            words[word] = {**first[word], **second[word]}
    return words


def check_words(words: Mapping[str, Any], where: str) -> None:
    """Raise a ContractError that names the first word that is unknown or of the wrong type."""
    known = [field.encode_name for field in msgspec.structs.fields(Words)]
    for word in words:
        if word not in known:
            from difflib import get_close_matches

            near = get_close_matches(word, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else ""
            raise ContractError(f"$.{word}: expected one of {', '.join(known)}", where=where, hint=hint)
    convert(dict(words), Words, where)


def complete(words: Mapping[str, Any], where: str, *, folder: Path, stamp: str) -> Spec:
    """Return the Spec for *words*; *folder* is where jobs/ goes, *stamp* (a time) makes a name where none is given.

    Raises:
        ContractError: a word is missing, of the wrong type or outside what is possible; names it.
    """
    check_words(words, where)
    asked = convert(dict(words), Words, where)
    if asked.script is None:
        raise ContractError("$.script: expected the path of a script, found nothing", where=where)
    source = Path(asked.source) if asked.source else Path(asked.script).parent
    script = _below(Path(asked.script), source, where)
    name = asked.name or f"{re.sub(r'[^A-Za-z0-9]+', '-', script.stem).strip('-') or 'job'}-{stamp}"
    if not _JOB_NAME.fullmatch(name):
        raise ContractError(
            f"$.name: expected letters, digits and inner dashes, at most 63, found {name!r}", where=where
        )
    groups = _groups(asked, where)
    hosts = {host for group in groups for host in group.hosts}
    return Spec(
        name=name,
        script=script,
        source=source,
        groups=groups,
        job_dir=Path(asked.job_dir) if asked.job_dir else folder / "jobs" / name,
        processes_per_host=asked.processes_per_host,
        distribution=distribution(asked.distribution, {group.name for group in groups}, where),
        hyperparameters=asked.hyperparameter,
        channels=tuple(_channel(name, value, where) for name, value in asked.channel.items()),
        metrics=tuple(asked.metric.items()),
        requirements=Path(asked.requirements) if asked.requirements else None,
        checkpoints=Path(asked.checkpoints) if asked.checkpoints else None,
        environment={name: _text(value) for name, value in asked.env.items()},
        stop_after_s=None if asked.stop_after is None else seconds(asked.stop_after, "stop-after", where),
        max_run_s=None if asked.max_run is None else seconds(asked.max_run, "max-run", where),
        kills=tuple(_kill(text, hosts, where) for text in _several(asked.kill)),
        backend=asked.backend,
        image=asked.image,
        memory_bytes=None if asked.memory is None else size_bytes(asked.memory, "memory", where),
        shm_bytes=None if asked.shm_size is None else size_bytes(asked.shm_size, "shm-size", where),
    )


def distribution(asked: str | Mapping[str, Any] | None, groups: set[str], where: str) -> dict[str, Any]:
    """Return the SDK's dictionary form of what was *asked*: a name, such a dictionary, or nothing."""
    if asked is None:
        return {}
    if isinstance(asked, str):
        if asked not in DISTRIBUTIONS:
            expected = ", ".join(DISTRIBUTIONS)
            raise ContractError(f"$.distribution: expected one of {expected}, found {asked!r}", where=where)
        return DISTRIBUTIONS[asked]
    for key in asked:
        if key not in DISTRIBUTION_KEYS:
            expected = ", ".join(sorted(DISTRIBUTION_KEYS))
            raise ContractError(f"$.distribution: expected keys among {expected}, found {key!r}", where=where)
    for name in asked.get("instance_groups", ()):
        if name not in groups:
            expected = ", ".join(sorted(groups))
            raise ContractError(f"$.distribution.instance_groups: expected {expected}, found {name!r}", where=where)
    return dict(asked)


def seconds(value: str | float, word: str, where: str) -> float:
    """Return the seconds of "30s", "10m", "1.5h", "250ms" or a plain number."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", value.strip())
        if not match:
            raise ContractError(f"$.{word}: expected a time such as 30s, 10m or 1.5h, found {value!r}", where=where)
        return float(match[1]) * _UNIT_S[match[2]]
    if value < 0:
        raise ContractError(f"$.{word}: expected a time, found {value}", where=where)
    return float(value)


def size_bytes(value: str | int, word: str, where: str) -> int:
    """Return the bytes of "512m", "2g", "1.5GiB" (docker's units, of 1,024) or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
    found = int(float(match[1]) * _UNIT_BYTES[match[2]]) if match else 0
    if not found:
        raise ContractError(f"$.{word}: expected a size such as 512m or 2g, found {value!r}", where=where)
    return found


def _groups(asked: Words, where: str) -> tuple[Group, ...]:
    if not asked.instance_groups:
        hosts = tuple(f"algo-{number}" for number in range(1, (asked.hosts or 1) + 1))
        return (Group(name="homogeneousCluster", hosts=hosts, instance_type="local"),)
    count = sum(group.hosts for group in asked.instance_groups)
    if asked.hosts not in (None, count):
        raise ContractError(
            f"$.hosts: expected {count}, the sum over instance-groups, found {asked.hosts}", where=where
        )
    names = [group.name for group in asked.instance_groups]
    if len(set(names)) < len(names):
        raise ContractError(f"$.instance-groups: expected different names, found {', '.join(names)}", where=where)
    groups, first = [], 1
    for group in asked.instance_groups:
        numbers = range(first, first + group.hosts)
        hosts = tuple(f"algo-{number}" for number in numbers)
        groups.append(Group(name=group.name, hosts=hosts, instance_type=group.instance_type))
        first += group.hosts
    return tuple(groups)


def _channel(name: str, value: str | ChannelWords, where: str) -> Channel:
    if not _CHANNEL_NAME.fullmatch(name):
        raise ContractError(f"$.channel: expected a name of A-Z a-z 0-9 . - _, found {name!r}", where=where)
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


def _kill(text: str, hosts: set[str], where: str) -> Kill:
    host, _, after = text.partition("@")
    if host not in hosts:
        expected = ", ".join(sorted(hosts))
        raise ContractError(f"$.kill: expected HOST@TIME with a host among {expected}, found {text!r}", where=where)
    return Kill(host=host, after_s=seconds(after or "0s", "kill", where))


def _below(script: Path, source: Path, where: str) -> Path:
    """Return the absolute path of *script*, given from where the words are or from *source*."""
    for candidate in (script, source / script):
        if candidate.is_absolute() and source in candidate.parents:
            return candidate
    raise ContractError(f"$.script: expected a script in the source folder {source}, found {script}", where=where)


def _rooted(words: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return *words* with every path absolute, seen from *folder*."""
    rooted = dict(words)
    for word in PATH_WORDS:
        if isinstance(rooted.get(word), str):
            rooted[word] = _absolute(rooted[word], folder)
    script, source = rooted.get("script"), rooted.get("source")
    if isinstance(script, str):
        absolute = _absolute(script, folder)
        if not isinstance(source, str) or absolute.startswith(source + "/"):
            rooted["script"] = absolute
    if isinstance(rooted.get("channel"), dict):
        rooted["channel"] = {name: _rooted_channel(value, folder) for name, value in rooted["channel"].items()}
    return rooted


def _rooted_channel(value: Any, folder: Path) -> Any:
    if isinstance(value, str):
        return _absolute(value, folder)
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        return {**value, "path": _absolute(value["path"], folder)}
    return value


def _absolute(path: str, folder: Path) -> str:
    return os.path.normpath(folder / path)


def _pair(word: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ContractError(f"expected NAME=VALUE, found {text!r}", where=f"--{word}")
    return name, value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _several(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _dashed(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in group.items()}


def _toml(text: str, path: Path) -> Any:
    try:
        tomllib: Any = import_module("tomllib")
    except ImportError:  # Python 3.10
        try:
            tomllib = import_module("tomli")
        except ImportError:
            hint = "Install tomli, or write the same words in a .json file."
            message = "a TOML job file needs Python 3.11 or the package tomli"
            raise ContractError(message, where=str(path), hint=hint) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"expected TOML ({error})", where=str(path)) from None
