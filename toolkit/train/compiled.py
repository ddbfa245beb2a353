"""At the end of an attempt, what the compiler did in this host's ranks."""

from collections.abc import Collection
from pathlib import Path

from toolkit import files, folders
from toolkit.errors import ToolkitError
from toolkit.job.compilation import Compilation
from toolkit.log import Log
from toolkit.records import decode
from toolkit.status_pages.layout import COMPILER_NAME

LOST = "what the compiler did is not in outcome.json"


def found(status_folder: Path, pids: Collection[int], log: Log) -> Compilation | None:
    """Return what the lowest rank of this host that trained has written; None if none has written anything. Ranks of
    *pids* come first, then the newest files: others can be from an earlier attempt."""
    pattern = COMPILER_NAME.replace("%d", "*")
    paths = sorted(folders.matching(status_folder, pattern, lambda error: log.warning(f"{LOST}: {error}")), key=_age)
    own_paths = [path for path in paths if path.stem.rpartition("-")[2] in {str(pid) for pid in pids}]
    compilations = []
    for path in own_paths or paths:
        try:
            compilations.append(decode(files.read(path), Compilation, str(path)))
        except (OSError, ToolkitError) as error:
            log.warning(f"{LOST}: {error}")
    # A launcher, or a program that starts others, may import the framework, too, and train nothing.
    return min(compilations, key=lambda compilation: (compilation.state == "nothing", compilation.rank), default=None)


def _age(path: Path) -> float:
    return -path.stat().st_mtime
