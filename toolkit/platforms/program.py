"""Which script a job runs where several places name one. What is said for this job wins over what the image bakes in:
TOOLKIT_PROGRAM, TOOLKIT_JOB, SAGEMAKER_PROGRAM, sagemaker_program. (Without any: the only script of the code folder.)
"""

from collections.abc import Iterable
from pathlib import Path

from toolkit.log import Log


def chosen(named: Iterable[tuple[str, str | None]], folder: Path, log: Log) -> tuple[str, str]:
    """Return (place, script): the first of *named* that is given, else ("", ""); a line of the log names those that it
    wins over, if they name another script.

    *folder*: what relative paths start from, for the comparison.
    """
    given = [(place, script) for place, script in named if script]
    if not given:
        return "", ""
    place, script = given[0]
    others = [f"{other}={found}" for other, found in given[1:] if folder / found != folder / script]
    if others:
        log.warning(f"{place} names the script, {script}, and wins over {' and '.join(others)}")
    return place, script
