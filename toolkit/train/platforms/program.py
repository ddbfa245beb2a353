"""Chooses the script of a job if several sources name one: TOOLKIT_PROGRAM wins over TOOLKIT_JOB, that over
SAGEMAKER_PROGRAM, and that over sagemaker_program. If none is set, callers take the code folder's only script."""

from collections.abc import Iterable
from pathlib import Path

from toolkit.log import Log


def chosen(named: Iterable[tuple[str, str | None]], folder: Path, log: Log) -> tuple[str, str]:
    """Return (source, script): the first of *named* that is set, else ("", ""). Warn if later ones name other scripts.

    *folder*: relative paths start here when scripts are compared.
    """
    given = [(place, script) for place, script in named if script]
    if not given:
        return "", ""
    place, script = given[0]
    others = [f"{other}={found}" for other, found in given[1:] if folder / found != folder / script]
    if others:
        log.warning(f"{place} names the script, {script}, and wins over {' and '.join(others)}")
    return place, script
