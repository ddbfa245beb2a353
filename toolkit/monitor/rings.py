"""Drains the rings of step times that the start-up hook writes in each rank (status_pages/layout.py: STEPS_*)."""

import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.series.step_records import SECONDS, StepRecord
from toolkit.status_pages import layout as layout

# The rings of this many processes at most are read: a rank may start others that train.
MOST_RINGS = 256


def _seconds(duration_ns: int) -> float | None:
    return None if duration_ns < 0 else duration_ns / 1e9


class Ring:
    """The ring of one process. It stays open, so that its last steps are read also after the process has ended."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or ValueError if it is not there, or of another version."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            version, self.pid, self._kept, _ = self._head()
            if version != layout.VERSION or not 0 < self._kept <= 1 << 20:
                raise ValueError
        except ValueError:
            os.close(self._fd)
            raise
        self._seen = 0

    def new(self) -> Iterator[tuple[int, int, tuple[float | None, ...]]]:
        """Yield (step, end_ns monotonic, durations in seconds) of each step that was written since the last call.

        Steps that were overwritten before they could be read are left out.
        """
        written = self._head()[3]
        first = max(self._seen, written - self._kept)
        size = layout.STEPS_RECORD.size
        while first < written:
            slot = first % self._kept
            count = min(written - first, self._kept - slot, 512)
            text = os.pread(self._fd, count * size, layout.STEPS_HEAD.size + slot * size)
            for expected, record in enumerate(layout.STEPS_RECORD.iter_unpack(text[: len(text) // size * size]), first):
                number, step, end_ns, *durations = record
                if number == expected + 1:
                    yield step, end_ns, tuple(map(_seconds, durations))
            first += count
        self._seen = written

    def close(self) -> None:
        os.close(self._fd)

    def _head(self) -> tuple[int, int, int, int]:
        head = os.pread(self._fd, layout.STEPS_HEAD.size, 0)
        if len(head) < layout.STEPS_HEAD.size:
            raise ValueError
        version, pid, capacity, written = layout.STEPS_HEAD.unpack(head)
        return version, pid, capacity, written


def step_of(
    rank: int, attempt: int, offset_s: float, step: int, end_ns: int, durations: tuple[float | None, ...]
) -> StepRecord:
    """Return the step as it is stored. *offset_s*: seconds since the epoch less monotonic seconds."""
    return StepRecord(
        rank=rank,
        attempt=attempt,
        step=step,
        end_s=end_ns / 1e9 + offset_s,
        **dict(zip(SECONDS, durations, strict=True)),
    )
