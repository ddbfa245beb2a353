"""Reads the exceptions that ranks recorded: of processes that ended, and of living ones that are about to end."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from toolkit.job.outcome import Exit
from toolkit.status_pages import pages
from toolkit.train.supervise.process import PhaseProcess
from toolkit.train.supervise.relay import Stream

# Two pipes that were read within this time may have been read in the wrong order.
TOGETHER_S = 0.005


class RankRecords:
    """The exceptions that ranks left in the status *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._raised: dict[int, pages.Raised] = {}

    def raised_by(self, pid: int) -> tuple[int | None, int]:
        """Return when the main thread of a process raised the exception it died of (None: the hook saw none), and the
        exit code that follows from it."""
        raised = pages.read_raised(self._folder, pid)
        if raised is None or raised.thread != "main":
            return None, 1
        self._raised[pid] = raised
        return raised.time_ns, raised.code

    def unfinished(self, pid: int) -> bool:
        """True if, as far as the hook saw, a process ended without calling MPI_Finalize."""
        return pid in self._raised and bool(self._raised[pid].unfinished)

    def doomed(self, living: Iterable[PhaseProcess]) -> Iterator[Exit]:
        """Yield the expected ends of ranks that still live, but have raised the exception they will die of."""
        for process in living:
            raised_ns, code = self.raised_by(process.pid)
            if raised_ns is not None and process.rank is not None:
                yield process.exit(code << 8, time.monotonic_ns(), raised_ns)

    def raised(self, exits: Iterable[Exit]) -> dict[str, pages.Raised]:
        """Return the exceptions that processes died of, by process name. The output may not show them: they may not be
        printed yet, `train`'s signal may come first, or a long output is kept only in part."""
        return {end.process: self._raised[end.pid] for end in exits if end.pid in self._raised}

    def raised_by_children(self, exits: Iterable[Exit]) -> tuple[pages.Raised, ...]:
        """Return the exceptions that ended processes which a rank started itself, if one of *exits* failed."""
        ends = list(exits)
        if all(end.ok for end in ends):
            return ()
        return pages.read_raised_by_others(self._folder, {end.pid for end in ends})


def last_on(out: Stream, err: Stream) -> Literal["stderr", "stdout", "both"]:
    """Return to which of its streams a process wrote last."""
    if abs(out.read_s - err.read_s) <= TOGETHER_S:
        return "both"
    return "stdout" if out.read_s > err.read_s else "stderr"
