"""Reads the options that the image and the job's environment set for `pip install`: pip's files and variables.

uv reads neither. As in pip 26 (https://pip.pypa.io/en/stable/topics/configuration/), a later place overrides an
earlier: files of the machine, of the user, of the virtual environment, PIP_CONFIG_FILE, variables; [install] overrides
[global].
"""

import configparser
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from toolkit.errors import UserError

SECTIONS = ("global", "install")
_PREFIX = "PIP_"
# They set no option of `pip install`.
_OF_PIP = {"config-file", "version"}


def read(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Return the options for the interpreter *python* with their values, by their long names ("index-url"); an empty
    value counts as not set.

    Raises:
        UserError: one of pip's files cannot be read.
    """
    options: dict[str, str] = {}
    for section in SECTIONS:
        for file in _files(environ, Path(python)):
            options |= _read_section(file, section)
    for name, value in environ.items():
        if name.startswith(_PREFIX):
            options[_option(name.removeprefix(_PREFIX))] = value
    return {name: value for name, value in options.items() if value.strip() and name not in _OF_PIP}


def is_on(value: str) -> bool:
    """True if *value* sets a switch of pip."""
    return value.strip().lower() in ("1", "true", "yes", "on", "y", "t")


def _option(name: str) -> str:
    return name.lower().replace("_", "-")


def _files(environ: Mapping[str, str], python: Path) -> Iterator[Path]:
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return
    for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip/pip.conf")
    yield Path("/etc/pip.conf")
    if home := environ.get("HOME"):
        yield Path(home, ".pip/pip.conf")
        yield Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "pip/pip.conf")
    yield python.parent.parent / "pip.conf"
    if chosen:
        yield Path(chosen)


def _read_section(file: Path, section: str) -> dict[str, str]:
    try:
        text = file.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"expected pip's configuration, cannot read it ({error})", where=str(file)) from None
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error as error:
        reason = str(error).replace("\n", " ")
        raise UserError(f"expected pip's configuration, found a wrong line ({reason})", where=str(file)) from None
    return {_option(name): value for name, value in parser.items(section)} if parser.has_section(section) else {}
