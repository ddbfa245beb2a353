"""The argument vector that starts a script as one process."""

from pathlib import Path

import toolkit
from toolkit.job.job import Script

PLUGIN = Path(toolkit.__file__).parent / "rank" / "hook" / "plugin.py"


def command(script: Script, interpreter: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tokens that start *script* in its folder, with *arguments*; no shell reads them.

    There is no "--" before a .py entry (5.1.4 writes one): an entry point cannot begin with "-".
    A plug-in gets no arguments.
    """
    if script.kind == "plugin":
        module, _, function = script.entry.partition(":")
        return interpreter, str(PLUGIN), module, function
    if script.kind == "command":
        return *script.through, f"./{script.entry}", *arguments
    if is_module(script):
        return interpreter, "-m", script.entry, *arguments
    return interpreter, script.entry, *arguments


def is_module(script: Script) -> bool:
    """True if *script* is started with -m; `entry` is then the name of a module, otherwise a file."""
    return script.kind in ("module", "package") and not script.entry.endswith(".py")
