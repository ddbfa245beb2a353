"""Measures what `train` does before it starts the ranks, for the report's table of the start."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.series.preparation import Preparation, PreparationName


class PreparationTiming:
    """The seconds of each preparation."""

    def __init__(self) -> None:
        self._took_s: dict[PreparationName, float] = {}

    @contextmanager
    def __call__(self, name: PreparationName) -> Iterator[None]:
        """Add the time of the block to that of *name*."""
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self._took_s[name] = self._took_s.get(name, 0.0) + time.monotonic() - begin_s

    def list_preparations(self) -> tuple[Preparation, ...]:
        """Return what was done until now, in its order."""
        return tuple(Preparation(name=name, took_s=took_s) for name, took_s in self._took_s.items())
