"""Everything that the monitor writes, below output/monitor. A full disk ends a file, never the monitor or the job."""

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.job.monitor import DebuggerFiles
from toolkit.records import encode
from toolkit.series import findings, monitor_document, pauses, sample_writer, start_up
from toolkit.series import step_records as steps
from toolkit.series.column import SampleColumn
from toolkit.series.finding import Finding
from toolkit.series.pauses import RankPauses
from toolkit.series.start_up import HostStart

if TYPE_CHECKING:
    from toolkit.series import debugger_writer


class Outputs:
    """Samples, steps, findings and monitor.json in *folder*. *warn* takes a line for the log."""

    def __init__(
        self,
        folder: Path,
        columns: Sequence[SampleColumn],
        warn: Callable[[str], None],
        *,
        host: str = "",
        debugger_files: DebuggerFiles | None = None,
    ) -> None:
        """*debugger_files*: the Debugger's files that the job asks for; *host*: their node."""
        self._folder = folder
        self._warn = warn
        self._columns = tuple(columns)
        self._samples = sample_writer.SampleWriter(folder / "samples", columns, warn=warn)
        self._steps = steps.StepWriter(folder / "steps", warn=warn)
        self._asked = debugger_files
        self._debugger = None if debugger_files is None else _debugger(debugger_files, host, columns, warn)
        self._first_s: float | None = None
        self._failed = False

    def sample(self, time_s: float, columns: Sequence[SampleColumn], row: Sequence[float]) -> None:
        """Write a sample, taken at *time_s* since the epoch."""
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self._samples.use(columns)
            if self._debugger is not None:
                self._debugger.use(columns)
        self._samples.add(time_s, row)
        self._add_debugger(time_s, row)

    def _add_debugger(self, time_s: float, row: Sequence[float]) -> None:
        """Write the Debugger's files, for as long as the job asked for."""
        if self._debugger is None or self._asked is None:
            return
        self._first_s = time_s if self._first_s is None else self._first_s
        if self._asked.sampled_s is not None and time_s - self._first_s > self._asked.sampled_s:
            self._debugger.close()
            self._debugger = None
        else:
            self._debugger.add(time_s, row)

    def steps(self, new: Sequence[steps.StepRecord]) -> None:
        """Write steps."""
        self._steps.add(new)

    def pauses(self, ranks: Mapping[int, RankPauses]) -> None:
        """Write where *ranks* were in their pauses."""
        self._try(lambda: pauses.write(self._folder, ranks))

    def start(self, start: HostStart) -> None:
        """Write what the host did before the first step of its ranks."""
        self._try(lambda: start_up.write(self._folder, start))

    def finding(self, finding: Finding) -> None:
        """Write a finding, and keep the raw samples around it."""
        self._samples.keep(finding.start_s, finding.end_s)
        self._try(lambda: findings.append(self._folder / findings.NAME, finding))

    def latest(self, path: Path, time_s: float, columns: Sequence[SampleColumn], row: Sequence[float]) -> None:
        """Write the newest sample to *path*, for the exporters; NaN becomes null."""
        values = {column.name: value for column, value in zip(columns, row, strict=True)}
        document = encode({"time_s": time_s, "values": values})
        part = path.with_suffix(".part")
        self._try(lambda: (part.write_bytes(document), part.replace(path)))

    def about(self, about: monitor_document.About) -> None:
        """Write monitor.json."""
        self._try(lambda: monitor_document.write(self._folder / monitor_document.NAME, about))

    def close(self) -> None:
        """Write what is still held."""
        self._samples.close()
        self._steps.close()
        if self._debugger is not None:
            self._debugger.close()

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            if not self._failed:
                reason = error.strerror or errno.errorcode.get(error.errno or 0, "error")
                self._warn(f"{self._folder}: {reason}: the monitor's findings are not kept")
            self._failed = True


def _debugger(
    debugger_files: DebuggerFiles, host: str, columns: Sequence[SampleColumn], warn: Callable[[str], None]
) -> "debugger_writer.DebuggerWriter":
    from toolkit.series import debugger_writer

    return debugger_writer.DebuggerWriter(
        debugger_files.folder,
        host,
        columns,
        most_bytes=debugger_files.most_bytes,
        most_s=debugger_files.most_s,
        warn=warn,
    )
