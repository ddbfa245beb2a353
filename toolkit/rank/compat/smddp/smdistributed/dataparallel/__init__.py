"""smdistributed.dataparallel over the toolkit's open backend (toolkit/rank/dataparallel, docs/smddp.md)."""

from toolkit.rank.dataparallel.module import start_profiler, stop_profiler

__all__ = ["start_profiler", "stop_profiler"]
