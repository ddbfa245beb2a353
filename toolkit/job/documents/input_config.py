"""The documents of a SageMaker job in input/config, as Records: strict about the keys that we use, others are ignored.

Three are required: hyperparameters.json, inputdataconfig.json and resourceconfig.json
(https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html, 2026-08).
Three more are optional: metric-definition-regex.json, checkpointconfig.json and profilerconfig.json. Their formats are
not documented, so if one has another format, `train` warns and ignores it: a job must not fail because of a file that
its user neither wrote nor sees.
"""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from toolkit import files, folders
from toolkit.errors import ContractError, choose_document_error
from toolkit.job.documents import folder_names
from toolkit.job.documents.parameters import decode_values
from toolkit.job.documents.sagemaker_variables import BASE_DIR
from toolkit.log import Log
from toolkit.metrics.definition import pairs
from toolkit.records import Record

HINT = (
    f"SageMaker writes it; elsewhere set TOOLKIT_JOB or TOOLKIT_PROGRAM (docs/orchestrators.md), or {BASE_DIR}"
    " to a folder that has input/config, or let `toolkit run SCRIPT` simulate the platform"
)
_KINDS = {"array": "a list", "object": "an object", "str": "a string", "int": "a whole number", "null": "null"}
T = TypeVar("T")


class InstanceGroup(Record, frozen=True, kw_only=True):
    """A group of hosts of one type; `hosts` are in the platform's order, which is arbitrary."""

    instance_group_name: str
    hosts: tuple[str, ...]
    instance_type: str | None = None


class ResourceConfig(Record, frozen=True, kw_only=True):
    """resourceconfig.json. Local Mode writes few keys besides hosts and current_host."""

    hosts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """All hosts, in the platform's order."""
    current_host: str
    """This host."""
    current_instance_type: str | None = None
    """None: Local Mode."""
    current_group_name: str | None = None
    """The instance group of this host."""
    instance_groups: tuple[InstanceGroup, ...] | None = None
    """None: the job has only one."""
    network_interface_name: str | None = None
    """The interface to the other hosts."""
    topology: Any = None
    """May be null."""


class ChannelConfig(Record, frozen=True, kw_only=True, rename="pascal"):
    """One channel of inputdataconfig.json. EFS and FSx channels have more keys; we use none of them."""

    training_input_mode: str | None = None


class CheckpointConfig(Record, frozen=True, kw_only=True, rename="pascal"):
    """checkpointconfig.json: the folder of checkpoints, which the platform restores and uploads."""

    local_path: str | None = None


class ProfilerConfig(Record, frozen=True, kw_only=True, rename="pascal"):
    """profilerconfig.json, as the request's ProfilerConfig; the parameters' values are texts."""

    disable_profiler: bool = False
    profiling_interval_in_milliseconds: int | float | str | None = None
    profiling_parameters: dict[str, Any] | None = None


class Documents(Record, frozen=True, kw_only=True):
    """The content of the documents."""

    hyperparameters: dict[str, Any]
    """Not decoded."""
    channels: dict[str, ChannelConfig]
    raw_channels: dict[str, Any]
    """The channels unchanged, to show to scripts."""
    metric_definitions: tuple[tuple[str, str], ...]
    """(name, regular expression) of each."""
    checkpoints: CheckpointConfig
    profiler: ProfilerConfig | None = None
    """None: there is no profilerconfig.json."""


def read(
    folder: Path,
    log: Log,
    *,
    required: bool = True,
    hyperparameters: dict[str, Any] | None = None,
    channels: dict[str, Any] | None = None,
) -> Documents:
    """Return the content of the documents in *folder*, input/config; *required*: the first two must exist.

    *hyperparameters*, *channels*: the content to use in place of the first two.

    Raises:
        ContractError: a required document is missing, or one is unreadable, not JSON or wrongly typed. The message
            names file, key, expected and found.
    """
    if required and not folders.is_dir(folder):
        reason = "something else" if folders.exists(folder) else "no such folder"
        raise ContractError(f"expected a folder with the job's documents, found {reason}", where=str(folder), hint=HINT)
    hyperparameter_file, input_file = folder / "hyperparameters.json", folder / "inputdataconfig.json"
    if hyperparameters is None:
        hyperparameters = _object(hyperparameter_file) if required or _exists(hyperparameter_file) else {}
    if channels is None:
        channels = _object(input_file) if required or _exists(input_file) else {}
    return Documents(
        hyperparameters=hyperparameters,
        channels=_channels(channels, input_file),
        raw_channels=channels,
        metric_definitions=_metric_definitions(folder / "metric-definition-regex.json", log),
        checkpoints=_checkpoints(folder / "checkpointconfig.json", log),
        profiler=_profiler(folder / "profilerconfig.json", log),
    )


def read_resources(file: Path, content: dict[str, Any] | None = None) -> tuple[ResourceConfig, dict[str, Any]]:
    """Return the content of *file*, resourceconfig.json, typed and unchanged; *content*: used in place of the file's.

    Raises:
        ContractError: it is missing, unreadable, not JSON or wrongly typed, or has invalid names of hosts or groups.
    """
    raw = _object(file) if content is None else content
    return _resources(raw, file), raw


def read_hyperparameters(folder: Path) -> dict[str, Any]:
    """Return the content of hyperparameters.json in *folder*, decoded, the platform's own included.

    Raises:
        ContractError: it is missing or wrong.
    """
    return decode_values(_object(folder / "hyperparameters.json"))


def load(file: Path, *, hint: str = HINT) -> Any:
    """Return the content of *file*, JSON as Python's json accepts it (NaN too).

    Raises:
        ContractError: it is missing, unreadable, empty or not JSON.
        PlatformError: it cannot be read at the moment.
    """
    try:
        content = files.read(file)
        return json.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise ContractError("expected a JSON document, found no such file", where=str(file), hint=hint) from None
    except OSError as error:
        reason = f"one that cannot be read ({error.strerror})"
        raise choose_document_error(error)(
            f"expected a JSON document, found {reason}", where=str(file), hint=hint
        ) from None
    except (ValueError, RecursionError) as error:
        if not content.strip():
            raise ContractError("expected a JSON document, found an empty file", where=str(file), hint=hint) from None
        hint = "" if hint == HINT else hint  # The file exists, so the hint to set something else does not apply.
        raise ContractError(f"expected JSON, found {_mistake(error)}", where=str(file), hint=hint) from None


def _exists(file: Path) -> bool:
    """True unless *file* is absent: a link to nothing is there, and so is what cannot be looked at; `load` names it."""
    return folders.may_exist(file, follow_links=False)


def _mistake(error: Exception) -> str:
    """Return why a document is not JSON: the position, but not the text, which may hold secrets."""
    if isinstance(error, json.JSONDecodeError):
        return f"a mistake at line {error.lineno} column {error.colno} ({error.msg})"
    if isinstance(error, UnicodeDecodeError):
        return f"bytes that are not UTF-8, from byte {error.start} on ({error.reason})"
    if isinstance(error, RecursionError):
        return "objects or lists nested more deeply than Python reads them"
    return f"a whole number of more than {sys.get_int_max_str_digits():,} digits"


def typed(value: Any, kind: type[T], place: str) -> T:
    """Return *value*, which stands at *place* ("FILE: $.KEY"), as a *kind*.

    Raises:
        ContractError: it has another type; the message names place, expected and found.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        path = path.strip("`").removeprefix("$")
        raise ContractError(_expectation(message, _value_at(value, path)), where=f"{place}{path}") from None
    except UnicodeEncodeError:
        raise ContractError("expected text, found half of a surrogate pair in a key", where=place) from None


def _object(file: Path) -> dict[str, Any]:
    return typed(load(file), dict[str, Any], f"{file}: $")


def _channels(raw: dict[str, Any], file: Path) -> dict[str, ChannelConfig]:
    for name in raw:
        folder_names.check_folder(name, str(file), "$", "a channel")
    return {name: typed(channel or {}, ChannelConfig, f"{file}: $.{name}") for name, channel in raw.items()}


def _resources(raw: dict[str, Any], file: Path) -> ResourceConfig:
    resources = typed(raw, ResourceConfig, f"{file}: $")
    folder_names.check_hosts(resources.hosts, str(file), "$.hosts")
    for group in resources.instance_groups or ():
        folder_names.check_folder(group.instance_group_name, str(file), "$.instance_groups", "an instance group")
        folder_names.check_hosts(group.hosts, str(file), "$.instance_groups")
    if resources.current_host not in resources.hosts:
        raise ContractError(
            f"$.current_host: expected one of $.hosts ({', '.join(resources.hosts[:8])}),"
            f" found {_quoted(resources.current_host)}",
            where=str(file),
        )
    return resources


def _metric_definitions(file: Path, log: Log) -> tuple[tuple[str, str], ...]:
    try:
        return pairs(load(file), str(file)) if _exists(file) else ()
    except ContractError as error:
        log.warning(f"{error} (continuing without metric definitions)")
        return ()


def _checkpoints(file: Path, log: Log) -> CheckpointConfig:
    try:
        return typed(load(file) or {}, CheckpointConfig, f"{file}: $") if _exists(file) else CheckpointConfig()
    except ContractError as error:
        log.warning(f"{error} (continuing with the usual folder for checkpoints)")
        return CheckpointConfig()


def _profiler(file: Path, log: Log) -> ProfilerConfig | None:
    try:
        return typed(load(file) or {}, ProfilerConfig, f"{file}: $") if _exists(file) else None
    except ContractError as error:
        log.warning(f"{error} (continuing without the monitor that it may ask for)")
        return None


def _expectation(message: str, value: Any) -> str:
    """Return msgspec's *message* in plain English, with *value* in place of its type."""
    if missing := re.match("Object missing required field `(.+)`", message):
        keys = ", ".join(value) if value else "no key at all"
        return f"expected a key {missing[1]!r}, found {keys}"
    if kinds := re.match("Expected `(.+?)`, got", message):
        kind = " or ".join(_KINDS.get(kind, kind) for kind in kinds[1].split(" | "))
        return f"expected {kind}, found {_quoted(value)}"
    return f"{message[0].lower()}{message[1:].replace('`', '')}, found {_quoted(value)}"


def _value_at(value: Any, path: str) -> Any:
    """Return the value at msgspec's *path* (".hosts[1].name") below *value*."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[int(index)] if index else value[key]
    return value


def _quoted(value: Any) -> str:
    """Return the beginning of *value* as JSON, on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."
