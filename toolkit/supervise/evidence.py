"""What is known of how processes ended, and of those that are about to: the verdict is made of it."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from toolkit import status_pages
from toolkit.job.outcome import Exit
from toolkit.supervise.process import Process
from toolkit.supervise.relay import Stream

# Within which two pipes may have been read in the wrong order.
TOGETHER_S = 0.005


class Evidence:
    """The exceptions that ranks left in the status *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._raised: dict[int, status_pages.Raised] = {}

    def raised_by(self, pid: int) -> tuple[int | None, int]:
        """Return when the main thread of a process raised the exception it died of (None: the hook saw none), and the
        code that this leads to."""
        found = status_pages.raised(self._folder, pid)
        if found is None or found.thread != "main":
            return None, 1
        self._raised[pid] = found
        return found.time_ns, found.code

    def unfinished(self, pid: int) -> bool:
        """True if a process that has ended had not called MPI_Finalize, as far as the hook saw."""
        return pid in self._raised and bool(self._raised[pid].unfinished)

    def doomed(self, living: Iterable[Process]) -> Iterator[Exit]:
        """Yield the ends to come of ranks that live, but have raised the exception they will die of."""
        for process in living:
            raised_ns, code = self.raised_by(process.pid)
            if raised_ns is not None and process.rank is not None:
                yield process.exit(code << 8, time.monotonic_ns(), raised_ns)

    def raised(self, exits: Iterable[Exit]) -> dict[str, status_pages.Raised]:
        """Return the exceptions that processes died of, by their names. They may not be printed yet, or never be (our
        signal came first), or not be found in what is kept of a long output."""
        return {end.process: self._raised[end.pid] for end in exits if end.pid in self._raised}

    def raised_by_children(self, exits: Iterable[Exit]) -> tuple[status_pages.Raised, ...]:
        """Return the exceptions that ended other processes, where one of *exits* failed."""
        ends = list(exits)
        if all(end.ok for end in ends):
            return ()
        return status_pages.raised_by_others(self._folder, {end.pid for end in ends})


def last_on(out: Stream, err: Stream) -> Literal["stderr", "stdout", "both"]:
    """Return on which of its streams a process spoke last."""
    if abs(out.read_s - err.read_s) <= TOGETHER_S:
        return "both"
    return "stdout" if out.read_s > err.read_s else "stderr"
