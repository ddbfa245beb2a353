"""The comparison of the ranks of all hosts. This monitor and `train`, which has the link, exchange files.

Every monitor writes down the own work of its ranks. The leader's monitor reads that of all other hosts, applies the
rules that compare ranks, and asks for traces of a slow rank and a healthy one, on whichever hosts they run.
"""

from collections.abc import Mapping
from pathlib import Path

from toolkit.diagnosis.exchange import Newest, write
from toolkit.diagnosis.live import next_look_in_s
from toolkit.job.rank_work import OTHERS, OWN, OthersWork, OwnWork, RankWork, TraceAsked


class Across:
    """The files of this monitor in *folder*, the run's."""

    def __init__(self, folder: Path, start_s: float) -> None:
        self._own = folder / OWN
        self._others = Newest(folder / OTHERS, OthersWork)
        self._start_s = start_s
        self._due_s = start_s
        self._ranks: tuple[RankWork, ...] = ()
        self._asked: TraceAsked | None = None

    def is_due(self, now_s: float) -> bool:
        """True if the own work is to be written again: as rarely as a rule looks."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + next_look_in_s(now_s - self._start_s)
        return True

    def own(self, works: Mapping[int, RankWork]) -> None:
        """Write down the own work of this host's ranks.

        Raises:
            OSError: it cannot be written.
        """
        self._ranks = tuple(works.values())
        self._write()

    def ask(self, slow: int, healthy: int) -> None:
        """Ask the ranks *slow* and *healthy* of the job for a trace.

        Raises:
            OSError: it cannot be written.
        """
        self._asked = TraceAsked(
            number=1 if self._asked is None else self._asked.number + 1, slow=slow, healthy=healthy
        )
        self._write()

    def others(self) -> dict[int, RankWork] | None:
        """Return the own work of the ranks of other hosts, by rank, if it has changed."""
        work = self._others.new()
        return None if work is None else {rank_work.rank: rank_work for rank_work in work.ranks}

    def _write(self) -> None:
        write(self._own, OwnWork(ranks=self._ranks, asked=self._asked))
