"""Encodes paths as text: the only place where a name of any bytes becomes part of a JSON document, label or message.

A file's name on Linux is bytes. Python gives those that are not UTF-8 as lone surrogates, which JSON encoders, sockets
and terminals refuse. In a document such a byte is a NUL and two hexadecimal digits: no path holds a NUL, so the text of
every other path is the path itself, and the way back is unambiguous. `records.encode` and `records.decode` do this for
fields of the type Path; `str` fields and the keys of objects need `to_text` and `from_text`.
"""

import os

_ESCAPE = "\0"


def to_text(path: str | os.PathLike[str]) -> str:
    """Return *path* as text that every document can hold: "model-\\udcff" becomes "model-\\0ff"."""
    return _escaped(path, _ESCAPE)


def from_text(text: str) -> str:
    """Return the path of which *text* is the text.

    What `to_text` cannot have made keeps its NUL, with which no file can be opened.
    """
    plain, *escaped = text.split(_ESCAPE)
    content = plain.encode("utf-8", "surrogateescape")
    for part in escaped:
        content += _byte(part[:2]) or f"{_ESCAPE}{part[:2]}".encode()
        content += part[2:].encode("utf-8", "surrogateescape")
    return os.fsdecode(content)


def shown(path: str | os.PathLike[str]) -> str:
    """Return *path* for people: "model-\\udcff" becomes "model-\\\\xff"."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def shown_text(text: str) -> str:
    """Return *text*, which may hold paths of any bytes and halves of surrogate pairs, for people, as `shown` does."""
    if is_utf8(text):
        return text
    return "".join(
        letter
        if not "\ud800" <= letter <= "\udfff"
        else f"\\x{ord(letter) - 0xDC00:02x}"
        if "\udc80" <= letter <= "\udcff"
        else f"\\u{ord(letter):04x}"
        for letter in text
    )


def to_key(path: str | os.PathLike[str]) -> str:
    """Return *path* as the key of an object, which must be UTF-8: "model-\\udcff" becomes "model-%ff"."""
    return _escaped(path, "%")


def is_utf8(path: str) -> bool:
    """True if *path* can be written as UTF-8 as it is."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def can_be_a_path(text: str) -> bool:
    """True if the kernel takes *text* as a path: it holds no NUL, and no half of a surrogate pair, which JSON may
    write."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _escaped(path: str | os.PathLike[str], mark: str) -> str:
    """Return *path* with *mark* and two digits for each byte that is not UTF-8."""
    text = os.fsencode(path).decode("utf-8", "surrogateescape")
    if is_utf8(text):
        return text
    return "".join(f"{mark}{ord(letter) - 0xDC00:02x}" if "\udc80" <= letter <= "\udcff" else letter for letter in text)


def _byte(digits: str) -> bytes:
    """Return the byte that *digits* name, if `to_text` escapes it and writes it so; else none."""
    try:
        number = int(digits, 16)
    except ValueError:
        return b""
    return bytes((number,)) if number >= 0x80 and f"{number:02x}" == digits else b""
