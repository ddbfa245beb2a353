"""Writing system metrics as SageMaker Debugger did: JSON lines in system/incremental/<YYYYMMDDHH>/<epoch>.algo-N.json.

A file is open below a name that no reader takes, and gets its own when it is closed: when its minute is over, or when
it is large enough. <epoch> is the full minute in which it begins, in seconds; if there is such a file already, the next
second.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from toolkit import folders
from toolkit.folders import make
from toolkit.series.column import SampleColumn
from toolkit.series.debugger_names import Metric, metric_of

CAP_BYTES = 1 << 30
_BELOW = Path("system/incremental")
_PART = ".part"
_TEMPLATES = 16  # Which columns are measured changes rarely: with slow values that come each 5 s, between two.


class DebuggerWriter:
    """Appends samples of *columns* below *folder* (profilerconfig.json's LocalPath) for the host *node* ("algo-1").

    Columns that the Debugger does not have are left out, and so is NaN, which JSON does not have. No method raises an
    OSError: *warn* gets one line and nothing is written any more. *most_bytes*, *most_s*: when a file is closed
    (RotateMaxFileSizeInBytes, RotateFileCloseIntervalInSeconds). *cap_bytes*: what all files of this node may take;
    then the oldest are deleted.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        columns: Sequence[SampleColumn],
        *,
        most_bytes: int = 10 << 20,
        most_s: float = 60.0,
        cap_bytes: int = CAP_BYTES,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder / _BELOW
        # smdebug takes no other names: .algo-\d+.json
        self._node = node if re.fullmatch(r"algo-\d+", node) else "algo-1"
        self._most_bytes, self._most_s, self._cap_bytes = most_bytes, most_s, cap_bytes
        self._warn = warn
        self._given_up = False
        self._fd: int | None = None
        self._part = self._path = Path()
        self._bytes = 0
        self._from_s = 0.0
        self._sizes: dict[Path, int] = {}
        self.use(columns)
        self._guard(self._begin)

    def use(self, columns: Sequence[SampleColumn]) -> None:
        """Take samples of *columns* from now on."""
        metrics = ((place, metric_of(column.name)) for place, column in enumerate(columns))
        self._metrics = [(place, metric) for place, metric in metrics if metric is not None]
        self._templates: dict[tuple[bool, ...], str] = {}

    def add(self, time_s: float, values: Sequence[float]) -> None:
        """Write one sample: a value for each column. *time_s*: since the epoch."""
        self._guard(lambda: self._add(time_s, values))

    def close(self) -> None:
        """Close the file that is open."""
        self._guard(self._finish)

    def _guard(self, step: Callable[[], None]) -> None:
        if self._given_up:
            return
        try:
            step()
        except OSError as error:
            self._given_up = True
            reason = error.strerror or errno.errorcode.get(error.errno or 0, "error")
            if self._warn is not None:
                self._warn(f"{self._folder}: {reason}: no more of the Debugger's files are written; the job goes on")

    def _begin(self) -> None:
        """Take over what an earlier writer of this node left; a file that it had open gets its name."""
        hours = [self._folder / name for name in folders.names(self._folder)]
        for part in self._named(hours, f".*.{self._node}{_PART}"):
            part.rename(_free(part.with_name(part.name[1:].removesuffix(_PART) + ".json")))
        for path in self._named(hours, f"*.{self._node}.json"):
            self._sizes[path] = path.stat().st_size

    def _named(self, hours: Sequence[Path], pattern: str) -> list[Path]:
        return [path for hour in hours for path in folders.matching(hour, pattern, folders.named_elsewhere)]

    def _add(self, time_s: float, values: Sequence[float]) -> None:
        row = [values[place] for place, _ in self._metrics]
        measured = tuple([math.isfinite(value) for value in row])
        if not any(measured):
            return
        if self._bytes >= self._most_bytes or time_s // self._most_s != self._from_s // self._most_s:
            self._finish()
        if self._fd is None:
            self._start(time_s)
        template = self._templates.get(measured)
        if template is None:
            template = self._new_template(measured)
        if not all(measured):
            row = [value for value, taken in zip(row, measured, strict=True) if taken]
        lines = (template % tuple(row)).replace("@", f"{time_s:.6f}").encode()
        self._bytes += len(lines)
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._fd or 0, rest) :]

    def _start(self, time_s: float) -> None:
        minute = int(time_s // 60 * 60)
        folder = self._folder / datetime.fromtimestamp(minute, timezone.utc).strftime("%Y%m%d%H")
        make(folder)
        self._path = _free(folder / f"{minute:010d}.{self._node}.json")
        self._part = self._path.with_name(f".{self._path.name.removesuffix('.json')}{_PART}")
        self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._bytes = 0
        self._from_s = time_s

    def _finish(self) -> None:
        if self._fd is None:
            return
        descriptor, self._fd = self._fd, None
        os.close(descriptor)
        self._part.rename(self._path)
        self._sizes[self._path] = self._bytes
        for path in sorted(self._sizes):
            if sum(self._sizes.values()) <= self._cap_bytes:
                break
            path.unlink(missing_ok=True)
            del self._sizes[path]

    def _new_template(self, measured: tuple[bool, ...]) -> str:
        if len(self._templates) >= _TEMPLATES:
            self._templates.clear()
        metrics = [metric for (_, metric), taken in zip(self._metrics, measured, strict=True) if taken]
        self._templates[measured] = template = "".join(_line(metric, self._node) for metric in metrics)
        return template


def _line(metric: Metric, node: str) -> str:
    """Return the line of *metric* with %.2f for the value and @ for the time, in the service's order of keys."""
    name, dimension = (msgspec.json.encode(text).decode() for text in (metric.name, metric.dimension))
    prefix = f'{{"Type":"{metric.kind}","Name":{name},"Dimension":{dimension},"Value":'
    return f'{prefix}%.2f,"NodeId":"{node}","Timestamp":@}}\n'


def _free(path: Path) -> Path:
    """Return *path*, or if it exists the next second of its name that does not."""
    while folders.exists(path):
        second, _, rest = path.name.partition(".")
        path = path.with_name(f"{int(second) + 1:010d}.{rest}")
    return path
