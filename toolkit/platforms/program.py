"""Which script a job runs if several sources name one. A source of this job wins over one in the image:
TOOLKIT_PROGRAM, TOOLKIT_JOB, SAGEMAKER_PROGRAM, sagemaker_program. (If none does: the only script of the code
folder.)"""

from collections.abc import Iterable
from pathlib import Path

from toolkit.log import Log


def chosen(named: Iterable[tuple[str, str | None]], folder: Path, log: Log) -> tuple[str, str]:
    """Return (source, script): the first of *named* that is set, else ("", ""); a warning names sources with another
    script.

    *folder*: where relative paths start, for the comparison.
    """
    given = [(place, script) for place, script in named if script]
    if not given:
        return "", ""
    place, script = given[0]
    others = [f"{other}={found}" for other, found in given[1:] if folder / found != folder / script]
    if others:
        log.warning(f"{place} names the script, {script}, and wins over {' and '.join(others)}")
    return place, script
