"""Event files for TensorBoard, by tensorboardX: a folder for each host and rank, and one for the system.

A metric is a scalar of its name. Its step is the script's, else how many values it has had.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names, Refusals, missing
from toolkit.monitor.exporters.kept import Kept

FLUSH_S = 1  # At the job's end a busy machine may leave no time for what is still held.
# tensorboardX 2.6.5 (summary.py) puts "_" for each of these, so that two names may become one.
_REFUSED = re.compile(r"[^-/\w.]")


class TensorBoard:
    """Writes event files below the folder that the job names."""

    def __init__(self, config: ExportsConfig, kept: Kept) -> None:
        """Make the folder.

        Raises:
            UserError: tensorboardX is not installed.
            OSError: the folder cannot be made.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise missing("tensorboardX", "tensorboard", error) from None
        assert config.exports.tensorboard is not None
        self._folder: Path = config.exports.tensorboard
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make = SummaryWriter
        self._names = Names("tensorboard", lambda name: _REFUSED.sub("_", name).lstrip("/"), kept.names)
        self._refusals = Refusals("tensorboard")
        self._host = config.host
        self._writers: dict[str, Any] = {}
        self._began_s = kept.began_s

    def samples(self, new: Sequence[Sample]) -> None:
        for sample in new:
            run = self._host if sample.rank is None else f"{self._host}-rank-{sample.rank}"
            self._write(run, sample.name, sample.value, sample.step or 0, sample.time_s)

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        """Write the sample; its step is the seconds since the job's first attempt began."""
        for column, value in values.items():
            if value == value:
                step = max(int(time_s - self._began_s), 0)
                self._write(f"{self._host}-system", f"system/{column}", value, step, time_s)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _write(self, run: str, metric: str, value: float, step: int, time_s: float) -> None:
        writer = self._writer(run)
        try:
            writer.add_scalar(self._names.of(metric), value, step, walltime=time_s)
        except (ValueError, TypeError, OverflowError) as error:  # Of this value; a folder that is gone is an OSError.
            self._refusals.note(metric, error)

    def _writer(self, run: str) -> Any:
        if run not in self._writers:
            self._writers[run] = self._make(logdir=str(self._folder / run), flush_secs=FLUSH_S)
        return self._writers[run]
