"""`toolkit torchrun ARGS...`: run the line that follows torchrun (docs/torchrun.md)."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError, UserError, explain_path_error
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.train.platforms.torchrun_launch import TorchrunLaunch
    from toolkit.train.supervise.signals import Signals

INSTALL_SHIM = "--install-shim"
MARK = "# Written by toolkit torchrun --install-shim."
# sys.path begins with the current folder, in which another `toolkit` may be.
START = 'import sys; sys.path[:1] == [""] and sys.path.pop(0); from toolkit.cli.start import toolkit; toolkit()'
SHIM = """#!/bin/sh
{mark}
exec {python} -c {start} torchrun "$@"
"""


def torchrun(words: list[str]) -> None:
    """Run the line *words*, or install the shim; exit with the job's code."""
    from toolkit.train.supervise.signals import Signals

    with Signals(last=True) as signals:
        sys.exit(_run(words, signals))


def _run(words: list[str], signals: "Signals") -> int:
    log = Log()
    try:
        if words[:1] == [INSTALL_SHIM]:
            return _install_shim(words[1:], log)
        return _launch(words, signals, log)
    except ToolkitError as error:
        log.error(str(error))
        return error.exit_code
    except OSError as error:
        refusal = explain_path_error(error)
        if refusal is None:
            raise
        log.error(str(refusal))
        return refusal.exit_code


def _launch(words: list[str], signals: "Signals", log: Log) -> int:
    from toolkit.job.base_folders import current
    from toolkit.job.documents.base_variable import BASE_DIR
    from toolkit.train import torchrun as job
    from toolkit.train import walk, within
    from toolkit.train.entry_point import environ_of
    from toolkit.train.platforms.torchrun_launch import read_launch, without_program

    environ = dict(os.environ)
    folder = current()
    line = without_program(words)
    launch = read_launch(line, environ, folder)
    if within.is_inside(environ):  # The script of a job runs this line: what the job set for it is not the line's.
        environ = environ_of(environ, folder)
    base = _make_base(launch, environ, log)
    log.info(f"toolkit torchrun: outcome, causes and the ranks' logs go to {base}")
    # Where the guard around this process reports a fault of the toolkit (cli/outermost.py).
    os.environ.update({"TOOLKIT_BASE": str(base), "TOOLKIT_PLATFORM": "plain"})
    os.environ.pop(BASE_DIR, None)
    return walk.train(
        environ,
        interpreter=_interpreter(line.python, environ),
        log=log,
        signals=signals,
        platform=job.make_platform(launch, base),
    )


def _make_base(launch: "TorchrunLaunch", environ: dict[str, str], log: Log) -> Path:
    """Create and return the folder for what the run writes: below --log-dir, else below TMPDIR, for this user alone."""
    from toolkit.folders import make
    from toolkit.train.artifacts.scratch import private
    from toolkit.train.platforms.place import job_name

    parent = launch.log_dir
    if parent is None:
        temporary = Path(environ.get("TMPDIR") or "/tmp").absolute()
        parent = private(temporary / f"toolkit-torchrun-{os.getuid()}", log)
    base = parent / f"{job_name(launch.name) or 'job'}_{os.urandom(4).hex()}"
    try:
        make(base)
    except OSError as error:
        raise UserError(
            f"expected a folder that can be written, found: {error.strerror}",
            where=str(base),
            hint="Give another --log-dir.",
        ) from None
    return base


def _interpreter(python: str, environ: dict[str, str]) -> str:
    """Return the interpreter of the line's *python*, that of this process if the line names none.

    Raises:
        UserError: there is no such program.
    """
    if not python:
        return sys.executable
    from shutil import which

    path = which(python, path=environ.get("PATH"))
    if path is None:
        raise UserError(f"expected a Python, found no program {python!r}", where="toolkit torchrun")
    return str(Path(path).absolute())


def _install_shim(words: list[str], log: Log) -> int:
    """Write a torchrun that runs this one into the folder that *words* names.

    Raises:
        UserError: no folder is named, or another program would be replaced.
    """
    import shlex

    from toolkit import files
    from toolkit.folders import exists, make

    where = f"toolkit torchrun {INSTALL_SHIM}"
    if len(words) != 1 or not words[0] or words[0].startswith("-"):
        raise UserError(
            f"expected one folder, found {' '.join(words)[:80] or 'nothing'!r}", where=where, hint=f"{where} DIR"
        )
    folder = Path(words[0]).absolute()
    file = folder / "torchrun"
    if exists(file, follow_links=False) and MARK.encode() not in files.read(file):
        raise UserError(
            "expected no file, or an earlier shim, found another program",
            where=str(file),
            hint="Give a folder of your own, and put it first in PATH.",
        )
    make(folder)
    text = SHIM.format(mark=MARK, python=shlex.quote(sys.executable), start=shlex.quote(START))
    files.replace(file, text.encode())
    file.chmod(0o755)
    log.info(f"{file} runs toolkit torchrun. Put it first in PATH: export PATH={shlex.quote(str(folder))}:$PATH")
    return 0
