"""Says at a job's end that what TOOLKIT_PROFILE asked for was not traced."""

from pathlib import Path

from toolkit import folders
from toolkit.job.job import Job
from toolkit.log import Log


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
