"""A document that a person wrote, as TOML, JSON or YAML: text in, values out. Its name says which."""

import contextlib
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import PurePath
from typing import Any

from toolkit.errors import ContractError
from toolkit.records import decode

YAML = (".yaml", ".yml")
MOST_VALUES = 1_000_000  # A few lines of aliases in YAML can make billions.
SUFFIXES = (".toml", ".json", *YAML)


def is_job_file(path: PurePath) -> bool:
    """True if *path* is named as a job file is: .toml, .json, .yaml or .yml, in capitals too."""
    return path.suffix.lower() in SUFFIXES


def parse(content: bytes, path: PurePath) -> Any:
    """Return the values that *content* holds: JSON or YAML by the name of *path*, else TOML.

    They are JSON's: dates and times of TOML and YAML are returned as text (1979-05-27).

    Raises:
        ContractError: it is not that, or the reader for it is not installed; names *path*. Or it holds a value that
            JSON has not; names its place.
    """
    if path.suffix.lower() == ".json":
        values = decode(content, Any, str(path))
        _check_once(content, path)
        return values
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = "YAML" if path.suffix.lower() in YAML else "TOML"
        raise ContractError(
            f"expected {kind}, found bytes that are not UTF-8 ({error.reason})", where=str(path)
        ) from None
    values = _yaml(text, path) if path.suffix.lower() in YAML else _toml(text, path)
    return _as_json(values, f"{path}: $", (), count())


def _check_once(content: bytes, path: PurePath) -> None:
    """Refuse JSON that names a key twice in one object: of both values one would be lost silently."""
    import json

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
        if twice is not None:
            raise ContractError(f"expected each key once, found {twice} twice", where=str(path))
        return dict(pairs)

    with contextlib.suppress(ValueError, RecursionError):  # What it cannot read, the other reader could.
        json.loads(content, object_pairs_hook=once)


def _as_json(value: Any, source: str, above: tuple[int, ...], counter: Iterator[int]) -> Any:
    """Return *value*, found at the place *source* inside the containers *above* (their ids), as JSON could hold it;
    *counter* counts the values."""
    from datetime import date, time

    if next(counter) > MOST_VALUES:
        message = f"expected at most {MOST_VALUES:,} values, found more"
        raise ContractError(message, where=source, hint="An alias of YAML (*name) stands for all that it names.")
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if id(value) in above:
        raise ContractError("expected a value, found an alias of the object that contains it", where=source)
    inside = (*above, id(value))
    if isinstance(value, (list, tuple)):
        return [_as_json(part, f"{source}[{index}]", inside, counter) for index, part in enumerate(value)]
    if not isinstance(value, dict):
        expected = "expected text, a number, true or false, null, a list or a table"
        raise ContractError(f"{expected}, found {type(value).__name__}", where=source)
    for name in value:
        if not isinstance(name, str):
            reason = f"expected a name that is text, found {type(name).__name__}"
            raise ContractError(reason, where=f"{source}.{name}", hint="Put it in quotes.")
    return {name: _as_json(part, f"{source}.{name}", inside, counter) for name, part in value.items()}


def _toml(text: str, path: PurePath) -> Any:
    tomllib = _reader("tomllib", "tomli")  # Python 3.10 has no tomllib.
    if tomllib is None:  # pragma: no cover  # Python 3.10 without tomli.
        or_yaml = " or .yaml" if _reader("yaml") else ""
        hint = f"Install it (pip install tomli), or write the same in a .json{or_yaml} file."
        raise ContractError("TOML needs Python 3.11 or the package tomli", where=str(path), hint=hint)
    try:
        return tomllib.loads(text, parse_float=_finite)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ContractError(f"expected TOML, found a mistake: {error}", where=str(path)) from None


def _finite(text: str) -> float | str:
    """Return the number *text*, or the text if the number is too large for a float: a hash such as 12e4567."""
    value = float(text)
    return text if value in (float("inf"), -float("inf")) and "inf" not in text.lower() else value


def _yaml(text: str, path: PurePath) -> Any:
    yaml = _reader("yaml")
    if yaml is None:
        or_toml = " or .toml" if _reader("tomllib", "tomli") else ""
        install = "pip install 'container-training-toolkit[render]'"
        hint = f"Install it ({install}), or write the same in a .json{or_toml} file."
        raise ContractError("YAML needs the package PyYAML", where=str(path), hint=hint)
    try:
        return yaml.load(text, Loader=_loader(yaml))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ContractError(f"expected YAML, found a mistake: {reason}", where=str(path)) from None


def _reader(*modules: str) -> Any:
    """Return the first of *modules* that is installed; None without one."""
    for module in modules:
        with contextlib.suppress(ImportError):
            return import_module(module)
    return None


def _loader(yaml: Any) -> Any:
    """Return PyYAML's safe loader, but with YAML 1.2's numbers and keywords, as JSON has them, and each key once.

    As YAML 1.1 has it, 3e-4 is a text (no dot), on, off, yes and no are booleans, 12:30 is 750 and 2026-11-22 a date.
    """
    import re

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and key.value in keys:
                    raise yaml.MarkedYAMLError(problem=f"the key {key.value} twice", problem_mark=key.start_mark)
                keys.add(str(key.value))
            return node

    Loader.yaml_implicit_resolvers = {}
    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", r"~|null|Null|NULL|", "~nN"),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
        ("merge", "<<", "<"),
    ):
        letters = [*first, ""] if tag == "null" else list(first)
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), letters)
    Loader.add_constructor("tag:yaml.org,2002:int", _int)
    Loader.add_constructor("tag:yaml.org,2002:float", _float)
    return Loader


def _float(loader: Any, node: Any) -> float | str:
    """Return a number that is too large for a float as text."""
    text = loader.construct_scalar(node).lower()
    return _finite(text.replace(".inf", "inf").replace(".nan", "nan"))


def _int(loader: Any, node: Any) -> int:
    """Return 010 as ten, as YAML 1.2 has it, not as eight; 0o10 is eight."""
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
