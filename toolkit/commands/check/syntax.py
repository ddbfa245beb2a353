"""Compiles the Python files of a job's code, to find syntax errors without running anything."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolkit import files, folders
from toolkit.commands.check.result import CheckResult
from toolkit.records import Record

MOST_FILES = 500  # Of a folder with more, these many are compiled: it holds more than a script's own modules.
MOST_BYTES = 1 << 20
SHOWN = 3
NO_CODE = frozenset({".git", ".venv", "node_modules", "__pycache__"})


class Error(Record, frozen=True, kw_only=True):
    """A file that is no Python: its name in the code folder, and what is wrong at which line."""

    name: str
    text: str


def errors(folder: Path) -> Iterator[Error]:
    """Yield the syntax errors of the Python files below *folder*, as this interpreter finds them."""
    count = 0
    # What cannot be listed is reported where the code is looked at.
    for entry in folders.walk(folder, lambda _: None, enter=lambda entry: entry.name not in NO_CODE):
        path = Path(entry.path)
        if path.suffix != ".py" or count == MOST_FILES:
            continue
        count += 1
        if text := _error(path):
            yield Error(name=path.relative_to(folder).as_posix(), text=text)


def check(errors: Sequence[Error], entry: str, interpreter: str) -> tuple[CheckResult, ...]:
    """Return a failure if the script *entry* is no Python, and a warning for other files. *interpreter*: the job's; if
    it is not this one, its Python may be another, so that all are warnings."""
    of_entry = [f"{error.name}: {error.text}" for error in errors if error.name == entry]
    others = [f"{error.name}: {error.text}" for error in errors if error.name != entry]
    results = []
    if of_entry:
        is_sure = os.path.realpath(interpreter) == os.path.realpath(sys.executable)
        advice = "Correct the script" if is_sure else f"Correct it, unless {interpreter} has another Python"
        results.append(
            CheckResult(name="syntax", status="fail" if is_sure else "warn", found="; ".join(of_entry), advice=advice)
        )
    if others:
        more = f"; and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        text = "; ".join(others[:SHOWN]) + more
        results.append(
            CheckResult(name="syntax", status="warn", found=text, advice="Correct it if the script imports it")
        )
    return tuple(results)


def _error(path: Path) -> str:
    try:
        content = files.read(path, MOST_BYTES)
    except OSError:
        return ""  # The script finds that out where it needs the file.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # An invalid escape sequence is none of ours.
            compile(content, path.name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    except (ValueError, RecursionError, MemoryError) as error:  # A NUL; a file that is nested too deeply.
        return str(error)
    return ""
