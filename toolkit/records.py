"""The frozen Record every value derives from, and the one door through which documents become Records."""

from typing import Any, TypeVar

import msgspec

from toolkit.errors import ContractError


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A value: frozen, keyword-only, compared by content."""


T = TypeVar("T")


def decode(document: bytes, kind: type[T], source: str, *, hint: str = "") -> T:
    """Return *document*, JSON text, as a *kind*; *source* names the file in errors.

    Raises:
        ContractError: not JSON (with the byte position), or a value of the wrong type (with its path, as `$.hosts[0]`).
    """
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.ValidationError as error:
        raise ContractError(plainly(str(error)), where=source, hint=hint) from None
    except msgspec.DecodeError as error:
        found = repr(document[:40].decode("utf-8", "replace")) if document.strip() else "an empty file"
        reason = str(error).removeprefix("JSON is malformed: ")
        raise ContractError(f"expected JSON, found {found} ({reason})", where=source, hint=hint) from None


def convert(value: Any, kind: type[T], source: str, *, strict: bool = True, hint: str = "") -> T:
    """Return the already decoded *value* as a *kind*; *strict* False also takes "12" for 12.

    Raises:
        ContractError: a value of the wrong type, with its path.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ContractError(plainly(str(error)), where=source, hint=hint) from None


def plainly(reason: str) -> str:
    """Return msgspec's *reason* with its path in front: "Expected `str` ... - at `$.a`" -> "$.a: expected str ..."."""
    message, _, path = reason.partition(" - at ")
    message = message.replace("`", "")
    if message.startswith("Expected"):
        message = "e" + message[1:]
    return f"{path.strip('`')}: {message}" if path else message
