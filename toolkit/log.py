"""The toolkit's own log: lines "[toolkit] ..." on stderr, with secrets masked.

While ranks run, the lines go through the supervisor's outlet (`say_through`), so that they are never inside a rank's
line.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from toolkit import paths
from toolkit.masking.known import Known
from toolkit.masking.names import is_secret, strength
from toolkit.masking.text import MASK, mask, mask_spans

if TYPE_CHECKING:
    from toolkit.masking.digests import Digests

_T = TypeVar("_T")
_E = TypeVar("_E")
LEVELS = {"notset": 0, "debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40, "critical": 50, "fatal": 50}
LEAST_SECRET = 6
# A shorter number under such a name is usually a setting (`key_frames: 100000`).
LEAST_SECRET_NUMBER = 8
# Words of the toolkit's reports: a secret that is one of them is masked only next to its name (docs/secrets.md).
_OWN_WORDS = (
    "succeeded",
    "success",
    "failed",
    "failure",
    "complete",
    "completed",
    "stopped",
    "stopping",
    "running",
    "started",
    "killed",
    "training",
    "toolkit",
    "script",
    "platform",
    "reporting",
    "warning",
    "errors",
    "status",
    "signal",
    "launcher",
    "container",
)
# The depth to which nested JSON in hyperparameters is searched for names.
_DEPTH = 8


def masked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with a mask in place of those whose name is a secret's.

    `Log.mask` masks secrets inside other values: it knows them whole, in any encoding.
    """
    return {name: MASK if is_secret(name, value) else value for name, value in values.items()}


class Log:
    """Writes the toolkit's own lines. cli/ makes one for the process and passes it down."""

    def __init__(self, level: int = 20) -> None:
        self.level = level
        self.brief = False  # The failure text is only in its file (TOOLKIT_LOG_FAILURE).
        self._known = Known()
        self._digests: list[Digests] = []
        self._say: Callable[[bytes], None] = _write_stderr
        self._finish: Callable[[], None] = lambda: None

    def hide(self, values: Mapping[str, Any]) -> None:
        """Mask from now on each value in *values*, at any depth, whose name is a secret's (6 characters or more),
        however it is encoded."""
        self._known.add(text for text in _secrets(values) if _is_hidden(text))

    def hide_digests(self, digests: "Digests") -> None:
        """Mask from now on the secrets of *digests*, too."""
        self._digests.append(digests)

    def digests(self) -> "Digests | None":
        """Return digests of all secrets that are hidden so far; None for none."""
        from toolkit.masking.digests import of  # Only `toolkit run` needs it.

        return of(self._known.forms()) if self._known else None

    def mask(self, text: str) -> str:
        """Return *text* with known and recognised secrets masked; a placeholder if masking fails."""
        try:
            return self._masked(text)
        except Exception as error:  # noqa: BLE001 - a missing text must not end a job
            return f"(left out: it could not be masked, {type(error).__name__})"

    def _masked(self, text: str) -> str:
        if self._known:
            text = mask_spans(text, self._known.spans(text))
        for digests in self._digests:
            text = mask_spans(text, digests.spans(text))
        return mask(text)

    def say_through(self, say: Callable[[bytes], None] | None, finish: Callable[[], None] = lambda: None) -> None:
        """Send whole lines (bytes, newline included) to *say* from now on, None: to stderr; `flush` calls *finish*."""
        self._say = say or _write_stderr
        self._finish = finish

    def flush(self) -> None:
        """Write pending lines, then write directly to stderr again."""
        self._finish()
        self._say = _write_stderr

    def attempt(self, message: str, step: Callable[[], _T], otherwise: _E) -> _T | _E:
        """Return the result of *step*; if it raises, log that and return *otherwise*.

        *message*: the message, for example "the metrics could not be closed".
        """
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - an error in the report must not change the job's status
            try:
                self.error(f"{message} ({type(error).__name__}: {error}); the job's status stays as it is")
            except Exception:  # noqa: BLE001
                _write_stderr(
                    f"[toolkit] error: {message}; the job's status stays as it is\n".encode("utf-8", "replace")
                )
        return otherwise

    def debug(self, text: str) -> None:
        """Log *text* at level debug."""
        self._line(10, text)

    def info(self, text: str) -> None:
        """Log *text*."""
        self._line(20, text)

    def warning(self, text: str) -> None:
        """Log *text* as a warning."""
        self._line(30, "warning: " + text)

    def error(self, text: str) -> None:
        """Log *text* as an error."""
        self._line(40, "error: " + text)

    def _line(self, level: int, text: str) -> None:
        if level < self.level:
            return
        lines = self.mask(text).splitlines() or [""]
        self._say(paths.shown_text("".join(f"[toolkit] {line}\n" for line in lines)).encode())


def _secrets(value: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the secrets in *value* as text: at any depth, in lists of names and values, and in JSON inside strings."""
    if isinstance(value, Mapping):
        listed = next((value[key] for key in ("name", "Name", "key", "Key") if isinstance(value.get(key), str)), "")
        for key, entry in value.items():
            of = listed if listed and key in ("value", "Value") else str(key)
            yield from _secrets(entry, name if strength(name) == "always" else of, depth + 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _secrets(entry, name, depth + 1)
    elif isinstance(value, str) and depth < _DEPTH and value.lstrip()[:1] in ("{", "[", '"'):
        inner = _decoded(value)
        if isinstance(inner, str | Mapping | list):
            yield from _secrets(inner, name, depth + 1)
        if is_secret(name, value):
            yield value
    elif isinstance(value, str | int | float) and is_secret(name, value):
        yield str(value)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def _is_hidden(text: str) -> bool:
    """True if a secret is masked everywhere: a short one, or a word of the toolkit's, is masked only next to its
    name."""
    text = text.strip()
    if text.lower() in _OWN_WORDS:
        return False
    return len(text) >= (LEAST_SECRET_NUMBER if text.isdigit() else LEAST_SECRET)


def level_named(text: str) -> int | None:
    """Return the level for "20", "INFO", "info" (as logging's numbers), None for anything else."""
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        return int(text)
    return LEVELS.get(text.strip().lower())


def _write_stderr(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:
        pass  # A closed or full stderr must not change the job's status.
