"""The steps of ranks, as the monitor collects them: when each ended and how long its phases took.

The writer needs the standard library alone; `read` needs numpy, which it imports when it is called.
"""

import os
import struct
from collections.abc import Callable, Sequence
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
CAP_BYTES = 64 << 20  # A day of 8 ranks with two steps a second is 66 MB.
_SHARES = 16
_HEADER = b'{"kind":"steps"}'
# rank, attempt, step, end_s, then seconds, NaN where not measured: step, data, forward, backward, optimizer,
# checkpoint, own part of backward
_RECORD = struct.Struct("<2iqd7f")
_FIELDS = ("rank", "attempt", "step", "end_s")
_SECONDS = ("step_s", "data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "own_backward_s")


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
            payloads = [blocks.payload(fd, block) for block in blocks.scan(fd) if block.kind == blocks.STEPS]
        finally:
            os.close(fd)
        parts += [part for part in payloads if part and len(part) % _RECORD.size == 0]
    return _table(b"".join(parts))


def _table(content: bytes) -> StepTable:
    np = numpy()
    kinds = ("<i4", "<i4", "<i8", "<f8", *["<f4"] * len(_SECONDS))
    return StepTable(np.frombuffer(content, np.dtype(list(zip((*_FIELDS, *_SECONDS), kinds, strict=True)))))


def _packed(step: StepRecord) -> bytes:
    seconds = (_nan(getattr(step, name)) for name in _SECONDS)
    return _RECORD.pack(step.rank, step.attempt, step.step, step.end_s, *seconds)


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _ignore(_text: str) -> None:
    """Take a warning that nobody asked for."""
