"""Writing samples: raw values of the last two minutes, and minimum, maximum and mean of 1, 10 and 60 seconds.

A sample is in the raw file as soon as `add` returns. Once a minute its buckets are appended to the files of the levels,
and raw files older than a minute are deleted, unless somebody asked to keep their time. So a SIGKILL loses nothing:
what the levels lack, the raw files have. Files of raw values and of all levels begin and end at full minutes.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from toolkit import folders
from toolkit.folders import make
from toolkit.series import blocks, levels
from toolkit.series.column import Header, SampleColumn

CAP_BYTES = 256 << 20
AROUND_S = 60.0  # Raw values are kept this long around the end and around each window of `keep`.
# Files of a level are cut at this share of the cap: the oldest is dropped as a whole.
_SHARES = 32
_KEPT_SHARE = 4  # Raw values around findings may take this share of the cap.
SUFFIX = ".samples"


class _RawFile(NamedTuple):
    path: Path
    first_s: float
    last_s: float


class SampleWriter:
    """Appends samples to files in *folder*. Files of an earlier writer stay; the reader joins them.

    No method raises an OSError. If a file cannot be written (a full disk, a folder that is gone), *warn* gets one line
    and nothing is written any more. *cap_bytes*: what all files in the folder may take; the oldest 1 s data is dropped
    first, then raw values around findings, then 10 s data, never 60 s data.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[SampleColumn],
        *,
        cap_bytes: int = CAP_BYTES,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder
        self._cap_bytes = cap_bytes
        self._warn = warn or _ignore
        self._given_up = False
        self._columns = tuple(columns)
        self._segment = 0
        self._number = 0
        self._open: dict[int, blocks.Appender] = {}
        self._sizes: dict[Path, int] = {}
        self._recent: list[_RawFile] = []
        self._windows: list[tuple[float, float]] = []
        self._raw_first_s = self._last_s = 0.0
        self._second: int | None = None
        self._rows: list[array[float]] = []
        self._buckets: dict[int, list[levels.Bucket]] = {level: [] for level in levels.LEVELS}
        self._tens: list[levels.Bucket] = []
        self._guard(self._begin)

    @property
    def columns(self) -> tuple[SampleColumn, ...]:
        """The columns whose values `add` takes."""
        return self._columns

    def use(self, columns: Sequence[SampleColumn]) -> None:
        """Take samples of *columns* from now on: a device or a rank came or went."""
        self._guard(self._end_minute)
        self._columns = tuple(columns)
        self._segment += 1
        self._guard(self._rotate)

    def add(self, time_s: float, values: Sequence[float]) -> None:
        """Write one sample: a value for each column, NaN where nothing was measured. *time_s*: since the epoch.

        Raises:
            ValueError: there are more or fewer values than columns.
        """
        if len(values) != len(self._columns):
            raise ValueError(f"expected {len(self._columns)} values, one for each column, got {len(values)}")
        if not self._given_up:
            self._guard(lambda: self._add(time_s, array("f", values)))

    def keep(self, start_s: float, end_s: float) -> None:
        """Keep the raw values of this window and of 60 s around it, as far as they are still there."""
        self._windows.append((start_s - AROUND_S, end_s + AROUND_S))

    def close(self) -> None:
        """Write what is still in memory. The raw values of the last 60 to 120 s stay."""
        self._guard(self._end_minute)
        self._close_files()

    def _guard(self, step: Callable[[], None]) -> None:
        if self._given_up:
            return
        try:
            step()
        except OSError as error:
            self._given_up = True
            self._close_files()
            self._rows.clear()
            reason = error.strerror or errno.errorcode.get(error.errno or 0, "error")
            self._warn(f"{self._folder}: {reason}: no more samples are written there; the job goes on")

    def _close_files(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _begin(self) -> None:
        make(self._folder)
        for path in (self._folder / name for name in folders.names(self._folder) if name.endswith(SUFFIX)):
            self._sizes[path] = path.stat().st_size
        self._segment = 1 + max((_segment(path) for path in self._sizes), default=0)

    def _add(self, time_s: float, row: array[float]) -> None:
        second = int(time_s // 1)
        if second != self._second:
            self._turn(second)
        if 0 not in self._open:
            self._raw_first_s = time_s
        self._append(0, blocks.RAW, 1, array("d", (time_s,)).tobytes() + row.tobytes())
        self._rows.append(row)
        self._last_s = time_s

    def _turn(self, second: int) -> None:
        """End the buckets that *second* is no part of."""
        earlier_second, self._second = self._second, second
        if earlier_second is None:
            return
        if earlier_second // 60 != second // 60:
            self._end_minute()
            self._second = second
            return
        self._end_second(earlier_second)
        if earlier_second // 10 != second // 10:
            self._end_ten(earlier_second)

    def _end_second(self, second: int) -> None:
        if self._rows:
            bucket = levels.of_rows(float(second), self._rows)
            self._rows = []
            self._buckets[1].append(bucket)
            self._tens.append(bucket)

    def _end_ten(self, second: int) -> None:
        if self._tens:
            self._buckets[10].append(levels.of_buckets(float(second // 10 * 10), self._tens))
            self._tens = []

    def _end_minute(self) -> None:
        """Write the buckets of the minute of the last sample, and let go of raw values that are old enough."""
        if not self._rows and not self._buckets[1]:
            return
        second = int(self._last_s // 1)
        self._end_second(second)
        self._end_ten(second)
        self._buckets[60].append(levels.of_buckets(float(second // 60 * 60), self._buckets[10]))
        for level, buckets in self._buckets.items():
            payload = levels.packed(buckets)
            self._append(level, blocks.LEVEL, len(buckets), payload, group=levels.GROUP)
            buckets.clear()
        self._second = None
        self._rotate()
        self._forget_raw()
        self._trim()

    def _append(self, level: int, kind: int, rows: int, payload: bytes, *, group: int = 0) -> None:
        file = self._open.get(level)
        if file is None:
            name = f"{self._segment:04d}-{level:02d}-{self._number:06d}{SUFFIX}"
            self._number += 1
            header = msgspec.json.encode(Header(level=level, columns=self._columns))
            file = self._open[level] = blocks.Appender(self._folder / name, header)
        file.append(kind, rows, payload, group=group)
        self._sizes[file.path] = file.size

    def _rotate(self) -> None:
        """Close the raw file, files that are large enough, and after `use` all."""
        for level, file in tuple(self._open.items()):
            if level == 0 or file.size > self._cap_bytes // _SHARES or _segment(file.path) != self._segment:
                self._open.pop(level).close()
                if level == 0:
                    self._recent.append(_RawFile(file.path, self._raw_first_s, self._last_s))

    def _forget_raw(self) -> None:
        """Delete raw files that are older than a minute and belong to no window; those of a window stay for good."""
        waiting = []
        for file in self._recent:
            if file.last_s >= self._last_s - AROUND_S:
                waiting.append(file)
            elif not any(start <= file.last_s and file.first_s <= end for start, end in self._windows):
                self._delete(file.path)
        self._recent = waiting
        self._windows = [window for window in self._windows if window[1] > self._last_s - 2 * AROUND_S]

    def _trim(self) -> None:
        held = {file.path for file in self._open.values()} | {file.path for file in self._recent}
        closed = sorted(path for path in self._sizes if path not in held)
        raw, ones, tens = ([path for path in closed if _level(path) == level] for level in (0, 1, 10))
        kept_bytes = sum(self._sizes[path] for path in raw)
        while raw and kept_bytes > self._cap_bytes // _KEPT_SHARE:
            kept_bytes -= self._sizes[raw[0]]
            self._delete(raw.pop(0))
        for path in (*ones, *raw, *tens):
            if sum(self._sizes.values()) <= self._cap_bytes:
                return
            self._delete(path)

    def _delete(self, path: Path) -> None:
        self._sizes.pop(path, None)
        path.unlink(missing_ok=True)


def _segment(path: Path) -> int:
    """Return the number of the writer (or of its columns) that wrote *path*, 0 for a file of another name."""
    head = path.name.partition("-")[0]
    return int(head) if head.isdecimal() else 0


def _level(path: Path) -> int:
    parts = path.name.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else -1


def _ignore(_text: str) -> None:
    """Take a warning that nobody asked for."""
