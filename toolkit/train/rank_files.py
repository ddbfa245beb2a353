"""Reads what this host's ranks left at the end of an attempt: the traces that TOOLKIT_PROFILE asked for, and what the
compiler did."""

from collections.abc import Collection
from pathlib import Path

from toolkit import files, folders
from toolkit.errors import ToolkitError
from toolkit.job.compilation import Compilation
from toolkit.job.job import Job
from toolkit.log import Log
from toolkit.records import decode
from toolkit.status_pages.layout import COMPILER_NAME

LOST = "what the compiler did is not in outcome.json"


class RequestedTraces:
    """The traces of this host's ranks. Those of an earlier run or attempt do not count."""

    def __init__(self, job: Job) -> None:
        self._asked = job.settings.profile
        self._folder = job.folders.output / "profiler" / "framework"
        self._before = self._written()

    def say_if_none(self, log: Log) -> None:
        """Log that no trace was written, if the job asked for one."""
        if self._asked and self._written() <= self._before:
            log.warning(
                f"TOOLKIT_PROFILE={self._asked!r}: no rank of this host has written a trace. The script imported"
                " neither torch nor Keras, or it ended before (toolkit docs profiler)"
            )

    def _written(self) -> frozenset[Path]:
        if not self._asked:
            return frozenset()
        entries = folders.walk(self._folder, folders.named_elsewhere)
        return frozenset(Path(entry.path) for entry in entries if entry.name.endswith(".gz"))


def read_compilation(status_folder: Path, pids: Collection[int], log: Log) -> Compilation | None:
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
