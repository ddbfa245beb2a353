"""Hyperparameters as the tokens of a command line, in four styles.

Every token reaches the script unchanged: it is an argv element, never part of a shell line.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolkit.errors import UserError
from toolkit.settings import ArgumentStyle

# The longest string that execve takes, with its NUL (MAX_ARG_STRLEN, linux/binfmts.h: 32 pages of 4 KiB).
ONE_STRING_BYTES = 131_072


def arguments(hyperparameters: Mapping[str, Any], style: ArgumentStyle) -> tuple[str, ...]:
    """Return the argv tokens for *hyperparameters*.

    sagemaker: as sagemaker-training 5.1.4 does; sorted by name, `--name value`, exactly one token for each value.
    json: as the drivers of SageMaker's SDK v3 do; in the order given, always `--name`, values as JSON, strings bare.
    flags: sorted by name; true gives the flag alone, false and null give nothing, a list gives several tokens.
    none: no tokens; the script reads SM_HPS.
    """
    return tuple(_STYLES[style](hyperparameters))


def check(tokens: tuple[str, ...], *, one_bytes: int = ONE_STRING_BYTES) -> None:
    """Check that every token can be passed to a process.

    Raises:
        UserError: a token contains a NUL, cannot be encoded, or with its NUL is longer than *one_bytes*.
    """
    for place, token in enumerate(tokens):
        reason = _unfit(token, one_bytes)
        if reason:
            name = next((flag for flag in reversed(tokens[: place + 1]) if flag.startswith("-")), f"number {place + 1}")
            raise UserError(
                f"expected a value that fits a command line, found one {reason}",
                where=f"argument {name[:80]}",
                hint="Set TOOLKIT_ARGUMENT_STYLE=none and let the script read the hyperparameters from SM_HPS"
                " or from the file that SM_TRAINING_ENV_FILE names",
            )


def _unfit(token: str, one_bytes: int) -> str:
    if "\0" in token:
        return "with a NUL character"
    try:
        length = len(token.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return "with half a surrogate pair, which is no character"
    return f"of {length:,} bytes (at most {one_bytes - 1:,})" if length >= one_bytes else ""


def _as_sagemaker(hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(hyperparameters):
        yield _flag(name)
        yield _as_repr(hyperparameters[name])


def _as_json(hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    for name, value in hyperparameters.items():
        yield f"--{name}"
        yield _as_text(value)


def _as_flags(hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(hyperparameters):
        value = hyperparameters[name]
        if value is None or value is False:
            continue
        yield _flag(name)
        if isinstance(value, list | tuple):
            yield from map(_as_text, value)
        elif value is not True:
            yield _as_text(value)


def _as_nothing(_: Mapping[str, Any]) -> Iterator[str]:
    return iter(())


_STYLES: Mapping[ArgumentStyle, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "sagemaker": _as_sagemaker,
    "json": _as_json,
    "flags": _as_flags,
    "none": _as_nothing,
}


def _flag(name: str) -> str:
    """Return "--name", "-n" for a name of one letter, "" for an empty name: the value stays the second of a pair."""
    return f"--{name}" if len(name) > 1 else f"-{name}" if name else ""


def _as_repr(value: Any) -> str:
    """Return Python's text of *value* ("True", "[1, 'a']", "1e-05"), null as "", a dictionary as "k=v,k=v"."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def _as_text(value: Any) -> str:
    """Return *value* as JSON (", " and ": " between, ASCII), a string as it is."""
    return value if isinstance(value, str) else json.dumps(value)
