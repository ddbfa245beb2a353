"""The toolkit's own words: one writer, "[toolkit] ..." on stderr, secrets masked.

While the loop runs, the words go through its outlet (`say_through`), so that they never land inside a rank's line.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LEVELS = {"notset": 0, "debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40, "critical": 50, "fatal": 50}
MASK = "******"
LEAST_SECRET = 6
# A number under such a name is more often a setting (`key_frames: 100000`).
LEAST_SECRET_NUMBER = 8
# Lines of a secret that has several (a PEM key) are secret each, from this length on: an excerpt may hold only some.
LEAST_LINE = 12
# Names whose values are masked: the list of the SageMaker SDK v3 (SECRET PASSWORD KEY TOKEN PRIVATE CREDS), less the
# words of models and data that only contain one of them ("keyboard", "max_tokens", "eos_token_id", "key_value_heads").
_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|PRIVATE|CREDS|CREDENTIAL"
    r"|TOKEN(?!I|S_|S$|_IDS?$|_TYPE|_COUNT|_LEN)"
    r"|(?:API|ACCESS)_?KEY"
    r"|(?:^|[^A-Z])KEY(?:$|[^A-Z])(?!VALUE|DIM|SIZE|LEN|HEAD|PADDING)",
    re.I,
)


def looks_secret(name: str) -> bool:
    """True if a value under *name* should never be shown (api_key, AWS_SECRET_ACCESS_KEY; not `max_tokens`)."""
    return bool(_SECRET.search(name))


def masked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with those under secret-looking names replaced by a mask."""
    return {name: MASK if looks_secret(name) and value not in (None, "") else value for name, value in values.items()}


class Log:
    """Writes our own lines. One for a process, made in cli/ and handed down."""

    def __init__(self, level: int = 20, secrets: frozenset[str] = frozenset()) -> None:
        self.level = level
        self._secrets = secrets
        self._say: Callable[[bytes], None] = _write_stderr
        self._finish: Callable[[], None] = lambda: None

    def hide(self, values: Mapping[str, Any]) -> None:
        """From now on never print what *values* holds, at any depth, under a name that looks secret (6 characters or
        more), in whatever way it is quoted."""
        found = _secrets(values)
        texts = {text for text in found if len(text) >= (LEAST_SECRET_NUMBER if text.isdigit() else LEAST_SECRET)}
        self._secrets = self._secrets.union(*map(_forms, texts))

    def mask(self, text: str) -> str:
        """Return *text* without any known secret in it."""
        for secret in sorted(self._secrets, key=len, reverse=True):  # The longest first: one may contain another.
            text = text.replace(secret, MASK)
        return text

    def say_through(self, say: Callable[[bytes], None] | None, finish: Callable[[], None] = lambda: None) -> None:
        """Send whole lines (bytes, newline included) to *say* from now on, None: to stderr; `flush` calls *finish*."""
        self._say = say or _write_stderr
        self._finish = finish

    def flush(self) -> None:
        """Write what is still on its way, and go back to writing straight to stderr."""
        self._finish()
        self._say = _write_stderr

    def debug(self, text: str) -> None:
        """Say *text* if the level is debug."""
        self._line(10, text)

    def info(self, text: str) -> None:
        """Say *text*."""
        self._line(20, text)

    def warning(self, text: str) -> None:
        """Say *text* as something to look at."""
        self._line(30, "warning: " + text)

    def error(self, text: str) -> None:
        """Say *text* as something that went wrong."""
        self._line(40, "error: " + text)

    def _line(self, level: int, text: str) -> None:
        if level < self.level:
            return
        lines = self.mask(text).splitlines() or [""]
        self._say("".join(f"[toolkit] {line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def _secrets(value: Any, secret: bool = False) -> Iterator[str]:
    """Yield what *value* holds under secret-looking names, as text; a number too (a key of digits that was JSON)."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _secrets(entry, secret or looks_secret(str(name)))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _secrets(entry, secret)
    elif secret and value is not None and not isinstance(value, bool):
        yield str(value)


def _forms(text: str) -> set[str]:
    """Return *text* as it is, as a shell, Python and JSON quote it, and its longer lines."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    forms = {text, text.replace("'", "'\"'\"'"), repr(text)[1:-1], escaped, escaped.replace('"', '\\"')}
    return forms | {line for line in text.splitlines() if len(line) >= LEAST_LINE}


def level_named(text: str) -> int | None:
    """Return the level for "20", "INFO", "info" (as logging's numbers), None for anything else."""
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        return int(text)
    return LEVELS.get(text.strip().lower())


def _write_stderr(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:
        pass  # A closed or full stderr must not change how the job ends.
