"""Takes one sample of everything that is measured."""

from collections.abc import Sequence

from toolkit.monitor.cost import Cost
from toolkit.monitor.source import PERCENT, SampleSource, column
from toolkit.series.column import SampleColumn


class Sampler:
    """All *sources* as one row, and what the monitor itself costs."""

    def __init__(self, sources: Sequence[SampleSource], cost: Cost) -> None:
        self._sources = sources
        self._cost = cost
        self._parts: tuple[tuple[SampleColumn, ...], ...] = ()
        self.columns: tuple[SampleColumn, ...] = ()

    def sample(self, now_s: float) -> list[float]:
        """Return a row of values; `columns` says of what, and may have changed."""
        row = [value for source in self._sources for value in source.values(now_s)]
        row += (self._cost.percent, self._cost.interval_s)
        parts = tuple(source.columns for source in self._sources)
        if parts != self._parts:
            self._parts = parts
            self.columns = (*(column for part in parts for column in part), *_SELF)
        return row


_SELF = (column("monitor/self/cpu_percent", PERCENT), column("monitor/self/interval_s", "s"))
