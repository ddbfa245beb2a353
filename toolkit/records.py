"""Record, the frozen base class of all values, and the functions that write and read documents of Records."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolkit import paths
from toolkit.errors import ContractError


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A value: frozen, keyword-only, compared by content."""


T = TypeVar("T")


def meaning(text: str) -> msgspec.Meta:
    """Return the description of a field, for `Annotated`: it stands in the JSON schema of its Record."""
    return msgspec.Meta(description=text)


def encode(value: Any) -> bytes:
    """Return *value* as JSON, for `decode` and for people.

    Its paths come back from `decode` as they are, whatever their bytes. In any other text, which may name files too, as
    that of an error does, a byte that is not UTF-8 becomes "\\xff".
    """
    try:
        return msgspec.json.encode(value, enc_hook=paths.to_text)
    except UnicodeEncodeError:
        return msgspec.json.encode(_shown(msgspec.to_builtins(value, enc_hook=paths.to_text)))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return paths.shown_text(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    return value


def decode(document: bytes, kind: type[T], source: str, *, hint: str = "") -> T:
    """Return *document*, JSON text, as a *kind*; *source* names the file in errors.

    Raises:
        ContractError: not JSON (with line and column), or a value of the wrong type (with its path, as `$.hosts[0]`).
    """
    try:
        return msgspec.json.decode(document, type=kind, dec_hook=_plain)
    except msgspec.ValidationError as error:
        raise ContractError(plainly(str(error)), where=source, hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContractError(f"expected JSON, found {_mistake(document, error)}", where=source, hint=hint) from None


def convert(value: Any, kind: type[T], source: str, *, strict: bool = True, hint: str = "") -> T:
    """Return the already decoded *value* as a *kind*; *strict* False also takes "12" for 12.

    Raises:
        ContractError: a value of the wrong type, with its path.
    """
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_plain)
    except msgspec.ValidationError as error:
        raise ContractError(plainly(str(error)), where=source, hint=hint) from None
    except UnicodeEncodeError:
        raise ContractError("expected text, found half of a surrogate pair", where=source, hint=hint) from None


def plainly(reason: str) -> str:
    """Return msgspec's *reason* with its path in front: "Expected `str` ... - at `$.a`" -> "$.a: expected str ..."."""
    message, _, path = reason.rpartition(" - at ")
    message, path = (message or path).replace("`", ""), path.replace("`", "") if message else ""
    if message.startswith(("Expected", "Invalid", "Object")):
        message = message[0].lower() + message[1:]
    return f"{path}: {message}" if path else message


def _plain(kind: type[T], value: Any) -> T:
    """Return *value* as a Path; msgspec asks this for types it does not know."""
    if kind is Path and isinstance(value, str):
        return kind(paths.from_text(value))  # type: ignore[call-arg]
    raise TypeError(f"Expected `{kind.__name__.lower()}`, got `{type(value).__name__}`")


def _utf8_error(document: bytes) -> str:
    try:
        document.decode()
    except UnicodeDecodeError as error:
        return error.reason
    return "in a text"


def _mistake(document: bytes, error: Exception) -> str:
    """Return what is wrong with *document* and where, without showing its content: it may hold secrets."""
    if not document.strip():
        return "an empty file"
    if isinstance(error, RecursionError):
        return "objects or lists nested too deeply"
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Invalid UTF-8"):  # msgspec 0.22 and 0.23.
        return f"bytes that are not UTF-8 ({_utf8_error(document)})"
    if document.startswith(b"\xef\xbb\xbf"):
        return "a byte order mark at its start"
    reason = str(error).removeprefix("JSON is malformed: ")
    place = re.search(r" ?\(byte (\d+)\)", reason)
    if place is None:
        return f"a mistake: {reason}"
    text_before = document[: int(place[1])]
    line, column = text_before.count(b"\n") + 1, len(text_before) - (text_before.rfind(b"\n") + 1) + 1
    return f"a mistake in line {line}, column {column}: {reason.replace(place[0], '')}"
