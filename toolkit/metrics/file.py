"""Samples as JSON lines in output/metrics.jsonl, one object a line:

    {"name":"loss","value":0.6931,"time_s":1760000000.25,"host":"algo-1","rank":0,"step":120}

JSON has no NaN and no infinity. Such a value is the string "NaN", "Infinity" or "-Infinity", as protobuf's JSON mapping
writes them, and `float()` reads them in most languages. `rank` and `step` are null where there is none.
"""

import heapq
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from toolkit import files
from toolkit.metrics.sample import Sample as Sample
from toolkit.metrics.sample import json_value
from toolkit.records import Record

# O_NONBLOCK: if the script has made it a FIFO, opening it must not wait for a reader.
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
_SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _Row(Record, frozen=True, kw_only=True):
    """A sample as it is written."""

    name: str
    value: float | Literal["NaN", "Infinity", "-Infinity"]
    """JSON has no NaN and no infinity: these are text."""
    time_s: float
    """Seconds since the epoch."""
    host: str
    rank: int | None = None
    """None: of no rank."""
    step: int | None = None
    """None: of no step."""


class SampleFile:
    """Appends samples to *path*, which the first one creates. Each call is one write, so a reader sees them at once.

    If the file cannot be written (disk full, folder gone), *warn* gets one line and no more samples are written:
    metrics must not disturb a job.
    """

    def __init__(self, path: Path, *, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._fd: int | None = None
        self._given_up = False
        self.written = 0

    def append(self, samples: Sequence[Sample]) -> None:
        """Write *samples*."""
        if not samples or self._given_up:
            return
        try:
            if self._fd is None:
                self._fd = _open(self._path)
            _write(self._fd, _lines(samples))
            self.written += len(samples)
        except OSError as error:
            self._given_up = True
            self._warn(f"{self._path}: {error.strerror}: no more metrics are written there; the job goes on")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read(path: Path) -> Iterator[Sample]:
    """Yield the samples in the file at *path*, oldest first.

    Raises:
        OSError: the file cannot be read.
    """
    with files.opened(path) as file:
        yield from decoded(file)


def by_time(paths: Iterable[Path]) -> Iterator[Sample]:
    """Yield the samples of all the files at *paths* by time; each file's own order is kept. A file that cannot be read
    has none: its host captured nothing."""
    return heapq.merge(*map(_readable, paths), key=lambda sample: sample.time_s)


def _readable(path: Path) -> Iterator[Sample]:
    try:
        yield from read(path)
    except OSError:
        pass


def decoded(lines: Iterable[bytes]) -> Iterator[Sample]:
    """Yield the samples in *lines*. A cut line (a full disk, a killed host) is skipped."""
    decoder = msgspec.json.Decoder(_Row)
    for line in lines:
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError too.
            continue
        value = _SPELLED[row.value] if isinstance(row.value, str) else row.value
        yield Sample(name=row.name, value=value, time_s=row.time_s, host=row.host, rank=row.rank, step=row.step)


def _open(path: Path) -> int:
    """Open *path* to append, and end a cut line of an earlier run, so that the next one does not continue it."""
    fd = os.open(path, FLAGS, 0o644)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    return fd


def _lines(samples: Sequence[Sample]) -> bytes:
    encoder = msgspec.json.Encoder()
    lines = encoder.encode_lines(samples)
    # msgspec writes null for NaN and infinity. A quote in a name is escaped, so this text is never part of a name.
    return (
        lines
        if b'"value":null' not in lines
        else encoder.encode_lines(
            {**msgspec.structs.asdict(sample), "value": json_value(sample.value)} for sample in samples
        )
    )


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
