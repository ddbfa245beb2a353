"""Chooses the script of a job if several sources name one: TOOLKIT_PROGRAM wins over TOOLKIT_JOB, that over
SAGEMAKER_PROGRAM, and that over sagemaker_program. If none is set, callers take the code folder's only script."""

from collections.abc import Iterable
from pathlib import Path

from toolkit.log import Log


def choose_script(sources: Iterable[tuple[str, str | None]], folder: Path, log: Log) -> tuple[str, str]:
    """Return (source, script): the first of *sources* that is set, else ("", ""). Warn of others.

    *folder*: relative paths start here when scripts are compared.
    """
    scripts = [(source, script) for source, script in sources if script]
    if not scripts:
        return "", ""
    source, script = scripts[0]
    others = [f"{name}={path}" for name, path in scripts[1:] if folder / path != folder / script]
    if others:
        log.warning(f"{source} names the script, {script}, and wins over {' and '.join(others)}")
    return source, script
