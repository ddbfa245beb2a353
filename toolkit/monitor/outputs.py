"""Everything that the monitor writes, below output/monitor. A full disk ends a file, never the monitor or the job."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.series import findings, machine, samples, steps
from toolkit.series.column import Column
from toolkit.series.finding import Finding


class Outputs:
    """Samples, steps, findings and monitor.json in *folder*. *warn* takes a line for the log."""

    def __init__(self, folder: Path, columns: Sequence[Column], warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._columns = tuple(columns)
        self._samples = samples.Writer(folder / "samples", columns, warn=warn)
        self._steps = steps.Writer(folder / "steps", warn=warn)
        self._failed = False

    def sample(self, time_s: float, columns: Sequence[Column], row: Sequence[float]) -> None:
        """Write a sample, taken at *time_s* since the epoch."""
        if columns is not self._columns and tuple(columns) != self._columns:
            self._samples.use(columns)
        self._columns = tuple(columns) if columns is not self._columns else self._columns
        self._samples.add(time_s, row)

    def steps(self, new: Sequence[steps.Step]) -> None:
        """Write steps."""
        self._steps.add(new)

    def finding(self, finding: Finding) -> None:
        """Write a finding, and keep the raw samples around it."""
        self._samples.keep(finding.start_s, finding.end_s)
        self._try(lambda: findings.append(self._folder / findings.NAME, finding))

    def about(self, about: machine.About) -> None:
        """Write monitor.json."""
        self._try(lambda: machine.write(self._folder / machine.NAME, about))

    def close(self) -> None:
        """Write what is still held."""
        self._samples.close()
        self._steps.close()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._failed:
                reason = error.strerror or errno.errorcode.get(error.errno or 0, "error")
                self._warn(f"{self._folder}: {reason}: the monitor's findings are not kept")
            self._failed = True
