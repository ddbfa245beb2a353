"""The steps of ranks, as the monitor collects them: when each ended and how long its phases took.

The writer needs the standard library alone; `read` needs numpy, which it imports when it is called.
"""

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import files, folders
from toolkit.folders import make
from toolkit.records import Record
from toolkit.series import blocks
from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Whole = NDArray[np.int64]
    Floats = NDArray[np.float64]

SUFFIX = ".steps"
CAP_BYTES = 64 << 20  # A day of 8 ranks with a step every second is 61 MB.
_SHARES = 16
_NEWEST = 100  # Steps of a rank, by which StepTail measures its speed.
_HEADER = b'{"kind":"steps"}'
# rank, attempt, step, end_s, then seconds, NaN where not measured: step, data, forward, backward, optimizer,
# checkpoint, own part of backward, evaluation, collection, pause, compilation, and CPU times: of the whole step, of
# data, evaluation, checkpoint and pause
_RECORD = struct.Struct("<2iqd16f")
_FIELDS = ("rank", "attempt", "step", "end_s")
SECONDS = (
    "step_s",
    "data_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "checkpoint_s",
    "own_backward_s",
    "evaluation_s",
    "collection_s",
    "pause_s",
    "compile_s",
    "cpu_s",
    "data_cpu_s",
    "evaluation_cpu_s",
    "checkpoint_cpu_s",
    "pause_cpu_s",
)
"""The durations of a step, in the order in which they are written."""


class StepRecord(Record, frozen=True, kw_only=True):
    """One step of one rank. Durations in seconds, None: not measured."""

    rank: int  # The rank.
    step: int  # Its number.
    end_s: float  # When it ended, since the epoch.
    step_s: float | None = None  # The whole step.
    data_s: float | None = None  # Waiting for the data loader.
    forward_s: float | None = None  # The forward pass.
    backward_s: float | None = None  # The backward pass.
    optimizer_s: float | None = None  # The optimizer's step.
    checkpoint_s: float | None = None  # Saving within the step.
    own_backward_s: float | None = None  # Backward without the wait for the gradients of other ranks at its end.
    evaluation_s: float | None = None  # Evaluation before the forward pass.
    collection_s: float | None = None  # Python's garbage collections.
    pause_s: float | None = None  # What lies before the forward pass and is nothing of the above.
    compile_s: float | None = None  # torch.compile within the step.
    cpu_s: float | None = None  # CPU time of the thread that steps, in the whole step,
    data_cpu_s: float | None = None  # in waiting for the data loader,
    evaluation_cpu_s: float | None = None  # in evaluation,
    checkpoint_cpu_s: float | None = None  # in saving,
    pause_cpu_s: float | None = None  # and in the pause. What a part took longer, the thread waited.
    attempt: int = 1  # 1, then more with each restart of the ranks.


class StepWriter:
    """Appends steps to files in *folder*. Files of an earlier writer stay; the reader joins them.

    No method raises an OSError. If a file cannot be written, *warn* gets one line and no more steps are written.
    *cap_bytes*: what all files in the folder may take; then the oldest steps are dropped.
    """

    def __init__(self, folder: Path, *, cap_bytes: int = CAP_BYTES, warn: Callable[[str], None] | None = None) -> None:
        self._folder = folder
        self._cap_bytes = cap_bytes
        self._warn = warn or _ignore
        self._file: blocks.Appender | None = None
        self._given_up = False

    def add(self, steps: Sequence[StepRecord]) -> None:
        """Write *steps*, of any ranks, in any order. A reader sees them at once."""
        if not steps or self._given_up:
            return
        try:
            self._append(len(steps), b"".join(map(_packed, steps)))
        except OSError as error:
            self._given_up = True
            self.close()
            self._warn(f"{self._folder}: {error.strerror}: no more steps are written there; the job goes on")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, rows: int, payload: bytes) -> None:
        if self._file is not None and self._file.size > self._cap_bytes // _SHARES:
            self.close()
        if self._file is None:
            make(self._folder)
            files = [Path(self._folder, name) for name in folders.names(self._folder) if name.endswith(SUFFIX)]
            while files and sum(path.stat().st_size for path in files) > self._cap_bytes * (_SHARES - 1) // _SHARES:
                files.pop(0).unlink(missing_ok=True)
            number = 1 + max((int(path.stem) for path in files if path.stem.isdecimal()), default=0)
            self._file = blocks.Appender(self._folder / f"{number:06d}{SUFFIX}", _HEADER)
        self._file.append(blocks.STEPS, rows, payload)


class StepTable:
    """Steps as arrays of the same length, ascending by `end_s`. Durations in seconds, NaN: not measured."""

    def __init__(self, records: "Any") -> None:
        np = numpy()
        self._records = records[np.argsort(records["end_s"], kind="stable")]
        self.rank: Whole = self._records["rank"].astype("i8")
        self.attempt: Whole = self._records["attempt"].astype("i8")
        self.step: Whole = self._records["step"].astype("i8")
        self.end_s: Floats = self._records["end_s"].astype("f8")
        self.step_s: Floats = self._records["step_s"].astype("f8")
        self.data_s: Floats = self._records["data_s"].astype("f8")
        self.forward_s: Floats = self._records["forward_s"].astype("f8")
        self.backward_s: Floats = self._records["backward_s"].astype("f8")
        self.optimizer_s: Floats = self._records["optimizer_s"].astype("f8")
        self.checkpoint_s: Floats = self._records["checkpoint_s"].astype("f8")
        self.own_backward_s: Floats = self._records["own_backward_s"].astype("f8")
        self.evaluation_s: Floats = self._records["evaluation_s"].astype("f8")
        self.collection_s: Floats = self._records["collection_s"].astype("f8")
        self.pause_s: Floats = self._records["pause_s"].astype("f8")
        self.compile_s: Floats = self._records["compile_s"].astype("f8")
        self.cpu_s: Floats = self._records["cpu_s"].astype("f8")
        self.data_cpu_s: Floats = self._records["data_cpu_s"].astype("f8")
        self.evaluation_cpu_s: Floats = self._records["evaluation_cpu_s"].astype("f8")
        self.checkpoint_cpu_s: Floats = self._records["checkpoint_cpu_s"].astype("f8")
        self.pause_cpu_s: Floats = self._records["pause_cpu_s"].astype("f8")

    def __len__(self) -> int:
        return len(self._records)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have steps, ascending."""
        return tuple(sorted({int(rank) for rank in self.rank}))

    def of(self, rank: int) -> "StepTable":
        """Return the steps of *rank* alone."""
        return self.where(self.rank == rank)

    def where(self, chosen: "NDArray[np.bool_]") -> "StepTable":
        """Return the steps for which *chosen*, an array of the table's length, is true."""
        return StepTable(self._records[chosen])


class StepTail:
    """Reads the steps in *folder* while they are written, without numpy: how many a rank takes in a second.

    No method raises an OSError: a file that cannot be read has no steps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._offset = 0
        self._ends_s: dict[int, deque[float]] = {}
        self.done = 0
        """The greatest number of a step."""

    def read_new(self) -> None:
        """Read what was written since the last call, at most of the newest two files."""
        for rank, _, step, end_s, *_ in self._new():
            self._ends_s.setdefault(rank, deque(maxlen=_NEWEST)).append(end_s)
            self.done = max(self.done, step)

    def new(self) -> Iterator[StepRecord]:
        """Yield the steps that were written since the last call, at most of the newest two files."""
        for rank, attempt, step, end_s, *seconds in self._new():
            known = {name: value for name, value in zip(SECONDS, seconds, strict=True) if value == value}
            yield StepRecord(rank=rank, attempt=attempt, step=step, end_s=end_s, **known)

    def _new(self) -> Iterator[tuple[Any, ...]]:
        for path in folders.matching(self._folder, f"*{SUFFIX}", folders.named_elsewhere)[-2:]:
            if self._path is not None and path.name < self._path.name:
                continue
            if path != self._path:
                self._path, self._offset = path, 0
            try:
                yield from self._records(path)
            except OSError:
                continue

    def measure_speed(self) -> float | None:
        """Return the steps of one rank in a second, over its newest ones, the median of all; None: fewer than 2."""
        speeds = sorted(
            (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])
            for ends_s in self._ends_s.values()
            if len(ends_s) > 1 and ends_s[-1] > ends_s[0]
        )
        return speeds[len(speeds) // 2] if speeds else None

    def _records(self, path: Path) -> Iterator[tuple[Any, ...]]:
        fd = files.descriptor(path)
        try:
            for block in blocks.scan(fd, self._offset):
                self._offset = block.offset + block.size
                content = blocks.payload(fd, block) if _holds_records(block) else None
                if content:
                    yield from _RECORD.iter_unpack(content)
        finally:
            os.close(fd)


def table(steps: Sequence[StepRecord]) -> StepTable:
    """Return *steps* as a table."""
    return _table(b"".join(map(_packed, steps)))


def read(folder: Path) -> StepTable:
    """Return the steps in *folder*, which may still be written. A folder that is not there has none.

    Raises:
        UserError: numpy is not installed.
    """
    numpy()
    parts = []
    for path in folders.matching(folder, f"*{SUFFIX}", folders.named_elsewhere):
        try:
            fd = files.descriptor(path)
        except OSError:  # Deleted since glob saw it.
            continue
        try:
            payloads = [blocks.payload(fd, block) for block in blocks.scan(fd) if _holds_records(block)]
        finally:
            os.close(fd)
        parts += [part for part in payloads if part]
    return _table(b"".join(parts))


def describe_other_layout(path: Path) -> str:
    """Return in words how the records of the file of steps at *path* differ from this version's, "" if they do not.

    Raises:
        OSError: it cannot be opened.
    """
    fd = files.descriptor(path)
    try:
        of_steps = [block for block in blocks.scan(fd) if block.kind == blocks.STEPS and block.rows]
    finally:
        os.close(fd)
    sizes = (block.size / block.rows for block in of_steps if not _holds_records(block))
    return next((f"expected {_RECORD.size} bytes a step, found {size:g}" for size in sizes), "")


def _holds_records(block: blocks.Block) -> bool:
    """Return whether *block* has steps in the layout of this version."""
    return block.kind == blocks.STEPS and block.size == block.rows * _RECORD.size


def _table(content: bytes) -> StepTable:
    np = numpy()
    kinds = ("<i4", "<i4", "<i8", "<f8", *["<f4"] * len(SECONDS))
    return StepTable(np.frombuffer(content, np.dtype(list(zip((*_FIELDS, *SECONDS), kinds, strict=True)))))


def _packed(step: StepRecord) -> bytes:
    seconds = (_nan(getattr(step, name)) for name in SECONDS)
    return _RECORD.pack(step.rank, step.attempt, step.step, step.end_s, *seconds)


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _ignore(_text: str) -> None:
    """Take a warning that nobody asked for."""
