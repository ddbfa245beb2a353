"""What the backend did, told in one line by rank 0 when the job ends."""

import sys
import time
from typing import Any, NamedTuple

WAIT_S = 1.0  # for the other ranks' word at the end; they end within milliseconds of each other
MIB = 1 << 20


class PathStatistics(NamedTuple):
    """One way that all-reduces went: how many, the bytes handed in, the bytes that this rank sent for them."""

    calls: int
    given_bytes: int
    sent_bytes: int


class CollectiveStatistics:
    """Counts of one process; the first group that is made names its rank and lends its store for the end.

    Increments are not locked: an all-reduce comes from one thread at a time (the autograd thread or the script's own).
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.native = ""
        self.calls = 0
        self.given_bytes = 0
        self.sent_bytes = 0
        self.others = 0
        self.reducers: list[Any] = []
        self._store: Any = None

    def begin(self, store: Any, rank: int, size: int, native: str) -> None:
        """Take the place of the first group that is made; *native* names the backend underneath, "gloo"."""
        if self._store is None:
            self._store, self.rank, self.size, self.native = store, rank, size, native

    def count_native(self, given_bytes: int, size: int) -> None:
        """Count an all-reduce handed to the native backend of a group of *size*; a ring sends 2 (n-1)/n of it."""
        self.calls += 1
        self.given_bytes += given_bytes
        self.sent_bytes += 2 * (size - 1) * given_bytes // size

    def by_path(self) -> dict[str, PathStatistics]:
        """Return the counts by the way's name, the native backend's first."""
        found = {f"{self.native}": PathStatistics(self.calls, self.given_bytes, self.sent_bytes)}
        for reducer in self.reducers:
            for name, way in reducer.by_path().items():
                before = found.get(name, PathStatistics(0, 0, 0))
                found[name] = PathStatistics(*(one + other for one, other in zip(before, way, strict=True)))
        return found

    def end(self) -> None:
        """Tell the line, on rank 0's stderr; the other ranks leave it their number. Never raises, waits 1 s at most.

        A rank that ends by an exception says nothing: the exception is what counts then, and its peers may be gone.
        """
        store, self._store = self._store, None
        if store is None or hasattr(sys, "last_value"):
            return
        try:
            ways = self.by_path()
            sent = sum(way.sent_bytes for way in ways.values())
            if self.rank != 0:
                store.set(f"sent/{self.rank}", str(sent))
                return
            told = [sent, *_reported(store, self.size)]
            sys.stderr.write(f"[toolkit] smddp: {line(self.size, ways, self.others, told)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - whatever became of the store or of stderr, the job has ended well
            return


def _reported(store: Any, size: int) -> list[int]:
    keys = [f"sent/{rank}" for rank in range(1, size)]
    deadline = time.monotonic() + WAIT_S
    while not all(here := [store.check([key]) for key in keys]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [int(store.get(key)) for key, is_here in zip(keys, here, strict=True) if is_here] if keys else []


def line(size: int, ways: dict[str, PathStatistics], others: int, sent: list[int]) -> str:
    """Return the line's text; *sent* holds the bytes of each rank that told them (none: not known).

    >>> line(2, {"gloo": PathStatistics(3, 6 * MIB, 6 * MIB)}, 1, [6 * MIB, 6 * MIB])
    '2 ranks; all-reduce: 3 x gloo, 6.0 MiB; other collectives: 1; each rank sent 6.0 MiB (max/mean 1.00)'
    """
    used = [f"{way.calls} x {name}, {_mib(way.given_bytes)}" for name, way in ways.items() if way.calls]
    parts = [f"{size} rank{'s' * (size > 1)}", f"all-reduce: {', '.join(used) if used else 'none'}"]
    if others:
        parts.append(f"other collectives: {others}")
    mean = sum(sent) / max(1, len(sent))
    if mean:
        whom = "each rank" if len(sent) == size else f"{len(sent)} of {size} ranks"
        parts.append(f"{whom} sent {_mib(mean)} (max/mean {max(sent) / mean:.2f})")
    return "; ".join(parts)


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
