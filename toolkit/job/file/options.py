"""The options of `toolkit run`, from its arguments and from a job file, before spec.py checks them together.

Pure: text in, values out. Relative paths start from the folder of the job file, or from the current folder for
arguments, so each source is read with its own folder before the two are joined.
"""

import json
import math
import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from toolkit.errors import ContractError, did_you_mean
from toolkit.job.channel import ChannelMode
from toolkit.job.file.text_formats import parse
from toolkit.records import Record, convert
from toolkit.settings import MOST

Backend = Literal["process", "docker"]
Shares = Literal["FullyReplicated", "ShardedByS3Key"]
# The choices of each key that has few, wherever it stands.
CHOICES = {
    "backend": get_args(Backend),
    "mode": get_args(ChannelMode),
    "distribution": get_args(Shares),
    "file-system": ("ro", "rw"),
}
PATH_OPTIONS = ("source", "requirements", "rules", "checkpoints", "job-dir")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# How an argument gives an entry of a table.
SHAPES = {
    "hyperparameter": "NAME=VALUE",
    "channel": "NAME=PATH[:MODE]",
    "metric": "NAME=REGEX",
    "env": "NAME=VALUE",
}
TABLE_OPTIONS = tuple(SHAPES)
# Two options that say the same, the second with the opposite meaning.
OPPOSITES = ("monitor", "disable-profiler")
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class Origin(Record, frozen=True, kw_only=True):
    """The place of options, for errors: the file `where`, except those in `names`, which gives the place of
    each ({"hosts": "toolkit run: --hosts"}). An entry of a table is in the file, too, unless `entries` gives its place
    ({("hyperparameter", "lr"): "TOOLKIT_HYPERPARAMETERS: $.lr"})."""

    where: str
    names: dict[str, str] = {}
    entries: dict[tuple[str, str], str] = {}

    def of(self, option: str) -> str:
        """Return the place of *option*: "toolkit run: --hosts", "job.toml: $.hosts"."""
        return self.names.get(option) or f"{self.where}: $.{option}"

    def of_table(self, option: str, name: str) -> str:
        """Return the place of the table *option* that has the entry *name*."""
        return self.of(option) if (option, name) in self.entries else f"{self.where}: $.{option}"

    def of_entry(self, option: str, name: str) -> str:
        """Return the place of the entry *name* of the table *option*: "job.toml: $.hyperparameter.lr"."""
        return self.entries.get((option, name)) or f"{self.where}: $.{option}.{escaped(name)}"


class ChannelOptions(Record, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    path: str
    mode: ChannelMode = "File"
    distribution: Shares = "FullyReplicated"
    file_system: Literal["ro", "rw"] | None = None


class GroupOptions(Record, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    name: str
    hosts: Positive
    instance_type: str = "local"


class Options(Record, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The options as written in a job file or as arguments."""

    script: str | None = None
    """The path of the script, in `source`."""
    source: str | None = None
    """The folder of the code; None: the script's."""
    name: str | None = None
    """The job's name; None: one of the script's name and the time."""
    job_dir: str | None = None
    """The folder of the job's results."""
    replace: bool | None = None
    """An earlier job's results in `job_dir` may be removed."""
    hosts: Positive | None = None
    """The number of hosts."""
    instance_groups: tuple[GroupOptions, ...] = ()
    """The groups of a heterogeneous cluster."""
    processes_per_host: Positive | None = None
    """The number of ranks on each host."""
    distribution: str | dict[str, Any] | None = None
    """A name, or the dictionary of SageMaker's SDK."""
    hyperparameter: dict[str, Any] = {}
    """By name."""
    channel: dict[str, str | ChannelOptions] = {}
    """By name: a path with its mode, or a table."""
    metric: dict[str, str] = {}
    """A regular expression by name."""
    metric_presets: str | tuple[str, ...] = ()
    """Names of frameworks whose metrics are read."""
    profiler_rules: dict[str, Any] | tuple[Any, ...] | None = None
    """The rules of the profiler."""
    requirements: str | None = None
    """The file of packages to install."""
    rules: str | None = None
    """The document of log rules."""
    monitor: bool | None = None
    """True if the system monitor runs."""
    disable_profiler: bool | None = None
    """The opposite of `monitor`, as in SageMaker's API."""
    checkpoints: str | None = None
    """The folder of checkpoints."""
    env: dict[str, str | bool | int | float] = {}
    """Variables of the job's environment."""
    stop_after: str | float | None = None
    """The time after which the job is stopped."""
    max_run: str | float | None = None
    """The time limit."""
    kill: str | tuple[str, ...] = ()
    """HOST@TIME of hosts that vanish."""
    interrupt: str | float | tuple[str | float, ...] = ()
    """TIME or TIME+WAIT of spot interruptions."""
    max_wait: str | float | None = None
    """The limit of training and of waiting together."""
    backend: Backend | None = None
    """The kind of the simulated hosts."""
    image: str | None = None
    """The container image of the hosts."""
    memory: str | int | None = None
    """The memory of each container."""
    shm_size: str | int | None = None
    """The size of /dev/shm in each container."""


TABLES: dict[str, type[Record]] = {"channel": ChannelOptions, "instance-groups": GroupOptions}
# msgspec's names for types, in plain English.
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}


def from_arguments(arguments: Mapping[str, Any], folder: Path, origin: Origin) -> dict[str, Any]:
    """Return the options of a command line, with absolute paths: *arguments* has argparse's names; None and [] are left
    out.

    Raises:
        ContractError: a `name=value` without "="; a channel or a metric that is named twice; an empty path.
    """
    options = {name.replace("_", "-"): value for name, value in arguments.items() if value not in (None, [])}
    for option in TABLE_OPTIONS:
        if option in options:
            pairs = [_pair(text, SHAPES[option], origin.of(option)) for text in options[option]]
            options[option] = dict(pairs)
            if option in ("channel", "metric") and len(options[option]) < len(pairs):
                twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
                raise ContractError(f"expected each {option} once, found {twice} twice", where=origin.of(option))
    if "hyperparameter" in options:
        options["hyperparameter"] = {key: hyperparameter(value) for key, value in options["hyperparameter"].items()}
    if str(options.get("distribution", "")).lstrip().startswith("{"):
        options["distribution"] = _distribution(options["distribution"].strip(), origin.of("distribution"))
    return _rooted(options, folder, origin)


def from_file(text: str, path: Path) -> dict[str, Any]:
    """Return the options in *text*, the content of the job file *path*: JSON or YAML by its suffix, else TOML.

    Raises:
        ContractError: it is not that, or not a table of options.
    """
    content = parse(text.encode(), path)
    if not isinstance(content, dict):
        kind = "nothing" if content is None else "a list" if isinstance(content, list) else "one value"
        raise ContractError(f"expected a table of options, found {kind}", where=str(path))
    options = {str(name).replace("_", "-"): value for name, value in content.items()}
    if isinstance(options.get("instance-groups"), list):
        groups = options["instance-groups"]
        options["instance-groups"] = [_dashed(group) if isinstance(group, dict) else group for group in groups]
    check_options(options, origin := Origin(where=str(path)))
    return _rooted(options, path.parent, origin)


def escaped(name: str) -> str:
    """Return *name* as JSON writes it, without its quotes, for messages."""
    return json.dumps(name)[1:-1]


def entry_places(options: Mapping[str, Any], form: str) -> dict[tuple[str, str], str]:
    """Return the place of each entry of the tables in *options*. *form*: the place, with {option} and {name} in it."""
    return {
        (option, name): form.format(option=option, name=escaped(name))
        for option in TABLE_OPTIONS
        for name in options.get(option, ())
    }


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of both sources; *second* wins option by option, within a table name by name."""
    options = {**first, **second}
    if any(option in second for option in OPPOSITES):
        options = {name: value for name, value in options.items() if name in second or name not in OPPOSITES}
    for option in TABLE_OPTIONS:
        if option in first and option in second:
            options[option] = {**first[option], **second[option]}
    return options


def check_options(options: Mapping[str, Any], origin: Origin) -> Options:
    """Return *options* with their types.

    Raises:
        ContractError: an option is unknown or of the wrong type; names the first.
    """
    names = [field.encode_name for field in msgspec.structs.fields(Options)]
    for option in options:
        if option not in names:
            expected = f"expected one of {', '.join(names)}"
            raise ContractError(expected, where=origin.of(option), hint=did_you_mean(option, names))
    for option, value in options.items():
        parts = value.items() if isinstance(value, dict) and option in TABLE_OPTIONS else ()
        for name, part in parts:
            _check_option(option, {str(name): part}, origin.of_table(option, str(name)), name=str(name))
        _check_option(option, value, origin.of(option))
    return convert(dict(options), Options, origin.where)


def _check_option(option: str, value: Any, place: str, name: str = "") -> None:
    """Check the type of *value*, which stands at *place* and of which *name* is the only key, if it is given."""
    try:
        convert({option: value}, Options, "")
    except ContractError as error:
        path, _, message = error.message.partition(": ")
        inside = path.removeprefix(f"$.{option}").replace("[...]", f".{name}")
        hint = ""
        if message.startswith(("expected int >=", "expected int <=")):
            message = f"expected a whole number from 1 to {MOST:,}, found {_at(value, inside)}"
        elif message.startswith("invalid enum value"):
            word, choices = message.split("'")[1], CHOICES[path.rpartition(".")[2]]
            message, hint = f"expected one of {', '.join(choices)}, found {word!r}", did_you_mean(word, choices)
        elif unknown := re.match("object contains unknown field (.+)", message):
            names = [field.encode_name for field in msgspec.structs.fields(TABLES[option])]
            message = f"expected the keys {', '.join(names)}, found {unknown[1]!r}"
            hint = did_you_mean(unknown[1], names)
        elif kinds := re.match("expected (.+), got (.+)", message):
            expected = " or ".join(KINDS[kind] for kind in kinds[1].split(" | ") if kind in KINDS)
            message = f"expected {expected}, found {KINDS.get(kinds[2], kinds[2])}"
        raise ContractError(message, where=place + inside, hint=hint) from None


def _at(value: Any, path: str) -> Any:
    """Return what *path*, as msgspec's errors write it ("[0].hosts"), leads to in *value*."""
    for index, key in re.findall(r"\[(\d+)\]|\.([\w-]+)", path):
        value = value[int(index)] if index else value[key]
    return value


def _rooted(options: dict[str, Any], folder: Path, origin: Origin) -> dict[str, Any]:
    """Return *options* with every path absolute, seen from *folder*.

    Raises:
        ContractError: a path is empty, as that of a shell variable that is not set: it would be *folder* itself.
    """
    rooted = dict(options)
    for option in PATH_OPTIONS:
        if isinstance(rooted.get(option), str):
            rooted[option] = _absolute(rooted[option], folder, origin.of(option))
    script, source = rooted.get("script"), rooted.get("source")
    if isinstance(script, str):
        absolute = _absolute(script, folder, origin.of("script"))
        if not isinstance(source, str) or absolute.startswith(source + "/"):
            rooted["script"] = absolute
    if isinstance(rooted.get("channel"), dict):
        channel_origin, channels = origin.of("channel"), rooted["channel"].items()
        rooted["channel"] = {
            name: _rooted_channel(value, folder, f"{channel_origin}: {name}") for name, value in channels
        }
    return rooted


def _rooted_channel(value: Any, folder: Path, source: str) -> Any:
    if isinstance(value, str):
        return _absolute(value, folder, source)
    # A job file's table, of which check_options has seen that it has a path; an argument is
    # text.
    return {**value, "path": _absolute(value["path"], folder, source)}


def _absolute(path: str, folder: Path, source: str) -> str:
    if not path or path.startswith(":"):
        raise ContractError(f"expected a path, found {path!r}", where=source, hint="The folder itself is '.'.")
    return path if URI.match(path) else os.path.normpath(folder / path)


def _pair(text: str, shape: str, source: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ContractError(f"expected {shape}, found {text!r}", where=source)
    return name, value


def hyperparameter(text: str) -> Any:
    """Return the value of a hyperparameter that is given as *text*: JSON if it is JSON, else the text.

    A number stays text if it would reach the script with another value or other digits: 1.10, 12e4567, NaN.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and not _keeps(text, value):
        return text
    return text if isinstance(value, int) and not isinstance(value, bool) and text.strip() != str(value) else value


def number_note(name: str, text: str) -> str:
    """Return a note on the hyperparameter that is given as *name*=*text*, if a number of another spelling is meant, or
    may not be; else ""."""
    value = hyperparameter(text)
    if isinstance(value, str) and value == text and re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", text, re.IGNORECASE):
        try:
            number = float(text)
        except ValueError:
            return ""  # A version such as 1.2.3.
        return f"hyperparameter {name}={text} stays text: as a number it would be {number!r}"
    if isinstance(value, float) and re.fullmatch(r"[0-9.]+e\+?[0-9]+", text, re.IGNORECASE):
        return f"""hyperparameter {name}={text} is the number {value!r}; as text: --hyperparameter '{name}="{text}"'"""
    return ""


def _keeps(text: str, value: float) -> bool:
    """True if *value*, which *text* was read as, is that number, and prints with no fewer digits."""
    from decimal import Decimal

    if not math.isfinite(value) or Decimal(text.strip()) != Decimal(repr(value)):
        return False
    has_exponent = "e" in text.lower()
    return has_exponent or text.strip() == repr(value)


def _distribution(text: str, source: str) -> Any:
    """Return the dictionary in *text*, which is JSON or, as SageMaker's SDK has it, Python.

    Raises:
        ContractError: it is neither.
    """
    import ast

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            place = f": not JSON: column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
            raise ContractError(
                f"expected a dictionary as JSON or as Python writes it, found {text!r}{place}",
                where=source,
                hint="""For example '{"torch_distributed": {"enabled": true}}', or just torch_distributed.""",
            ) from None
        return value


def _dashed(group: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).replace("_", "-"): value for key, value in group.items()}
