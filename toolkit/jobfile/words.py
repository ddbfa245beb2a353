"""The words of `toolkit run`, from its arguments and from a job file, before they are one job (spec.py).

Pure: text in, values out. Relative paths belong to the folder that the words came from (the job file's, or the current
one for arguments), so each source is read with its folder and only then are the two joined.
"""

import json
import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from toolkit.errors import ContractError, did_you_mean
from toolkit.job.job import ChannelMode
from toolkit.jobfile.text import parse
from toolkit.records import Record, convert
from toolkit.settings import MOST

Backend = Literal["process", "docker"]
Shares = Literal["FullyReplicated", "ShardedByS3Key"]
# The words that are one of few, by their key, wherever it stands.
CHOICES = {"backend": get_args(Backend), "mode": get_args(ChannelMode), "distribution": get_args(Shares)}
PATH_WORDS = ("source", "requirements", "rules", "checkpoints", "job-dir")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# How an argument gives an entry of a table.
SHAPES = {
    "hyperparameter": "NAME=VALUE",
    "channel": "NAME=PATH[:MODE]",
    "metric": "NAME=REGEX",
    "env": "NAME=VALUE",
}
TABLE_WORDS = tuple(SHAPES)
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class Place(Record, frozen=True, kw_only=True):
    """Where words were written, for errors: in the file `where`, but for those in `names`, which gives each one's place
    ({"hosts": "toolkit run: --hosts"})."""

    where: str
    names: dict[str, str] = {}

    def of(self, word: str) -> str:
        """Return the place of *word*: "toolkit run: --hosts", "job.toml: $.hosts"."""
        return self.names.get(word) or f"{self.where}: $.{word}"


class ChannelWords(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    mode: ChannelMode = "File"
    distribution: Shares = "FullyReplicated"


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
    rules: str | None = None
    checkpoints: str | None = None
    env: dict[str, str | bool | int | float] = {}
    stop_after: str | float | None = None
    max_run: str | float | None = None
    kill: str | tuple[str, ...] = ()
    backend: Backend | None = None
    image: str | None = None
    memory: str | int | None = None
    shm_size: str | int | None = None


TABLES: dict[str, type[Record]] = {"channel": ChannelWords, "instance-groups": GroupWords}
# msgspec's words for types, in ours.
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}


def from_arguments(given: Mapping[str, Any], folder: Path, place: Place) -> dict[str, Any]:
    """Return the words of the command line: *given* by argparse's names, None and [] left out; paths from *folder*.

    Raises:
        ContractError: a `name=value` without "="; a channel that is named twice.
    """
    words = {name.replace("_", "-"): value for name, value in given.items() if value not in (None, [])}
    for word in TABLE_WORDS:
        if word in words:
            pairs = [_pair(text, SHAPES[word], place.of(word)) for text in words[word]]
            words[word] = dict(pairs)
            if word == "channel" and len(words[word]) < len(pairs):
                twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
                raise ContractError(f"expected each channel once, found {twice} twice", where=place.of(word))
    if "hyperparameter" in words:
        words["hyperparameter"] = {key: _json_or_text(value) for key, value in words["hyperparameter"].items()}
    if str(words.get("distribution", "")).startswith("{"):
        words["distribution"] = _json_or_text(words["distribution"])
    return _rooted(words, folder)


def from_file(text: str, path: Path) -> dict[str, Any]:
    """Return the words of the job file *path*, whose content is *text*: JSON or YAML by its name, else TOML.

    Raises:
        ContractError: it is not that, or not a table of words.
    """
    content = parse(text.encode(), path)
    if not isinstance(content, dict):
        raise ContractError(f"expected an object of words, found {type(content).__name__}", where=str(path))
    words = {str(name).replace("_", "-"): value for name, value in content.items()}
    if isinstance(words.get("instance-groups"), list):
        groups = words["instance-groups"]
        words["instance-groups"] = [_dashed(group) if isinstance(group, dict) else group for group in groups]
    check_words(words, Place(where=str(path)))
    return _rooted(words, path.parent)


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both sources' words; *second* wins word by word, within a table name by name."""
    words = {**first, **second}
    for word in TABLE_WORDS:
        if word in first and word in second:
            words[word] = {**first[word], **second[word]}
    return words


def check_words(words: Mapping[str, Any], place: Place) -> Words:
    """Return *words* with their types.

    Raises:
        ContractError: a word is unknown or of the wrong type; names the first.
    """
    known = [field.encode_name for field in msgspec.structs.fields(Words)]
    for word in words:
        if word not in known:
            expected = f"expected one of {', '.join(known)}"
            raise ContractError(expected, where=place.of(word), hint=did_you_mean(word, known))
    for word, value in words.items():
        parts = value.items() if isinstance(value, dict) and word in TABLE_WORDS else ()
        for name, part in parts:
            _check_word(word, {str(name): part}, place, name=str(name))
        _check_word(word, value, place)
    return convert(dict(words), Words, place.where)


def _check_word(word: str, value: Any, place: Place, name: str = "") -> None:
    """Check the type of *value*, of which *name* is the only key, if it is given."""
    try:
        convert({word: value}, Words, "")
    except ContractError as error:
        path, _, message = error.message.partition(": ")
        inside = path.removeprefix(f"$.{word}").replace("[...]", f".{name}")
        hint = ""
        if message.startswith(("expected int >=", "expected int <=")):
            message = f"expected a whole number from 1 to {MOST:,}, found {_at(value, inside)}"
        elif message.startswith("invalid enum value"):
            found, choices = message.split("'")[1], CHOICES[path.rpartition(".")[2]]
            message, hint = f"expected one of {', '.join(choices)}, found {found!r}", did_you_mean(found, choices)
        elif unknown := re.match("object contains unknown field (.+)", message):
            known = [field.encode_name for field in msgspec.structs.fields(TABLES[word])]
            message = f"expected the keys {', '.join(known)}, found {unknown[1]!r}"
            hint = did_you_mean(unknown[1], known)
        elif kinds := re.match("expected (.+), got (.+)", message):
            expected = " or ".join(KINDS[kind] for kind in kinds[1].split(" | ") if kind in KINDS)
            message = f"expected {expected}, found {KINDS.get(kinds[2], kinds[2])}"
        raise ContractError(message, where=place.of(word) + inside, hint=hint) from None


def _at(value: Any, path: str) -> Any:
    """Return what *path*, as msgspec's errors write it ("[0].hosts"), leads to in *value*."""
    for index, key in re.findall(r"\[(\d+)\]|\.([\w-]+)", path):
        value = value[int(index)] if index else value[key]
    return value


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
    return path if URI.match(path) else os.path.normpath(folder / path)


def _pair(text: str, shape: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ContractError(f"expected {shape}, found {text!r}", where=where)
    return name, value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _dashed(group: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).replace("_", "-"): value for key, value in group.items()}
