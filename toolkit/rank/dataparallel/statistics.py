"""Statistics of a process's collectives; rank 0 prints them in one line when the job ends."""

import sys
import time
from typing import Any, NamedTuple

WAIT_S = 1.0  # for the other ranks' bytes at the end; they end within milliseconds of each other
MIB = 1 << 20


class PathStatistics(NamedTuple):
    """All-reduces over one path (gloo, shared memory): calls, bytes of their tensors, bytes that this rank sent."""

    calls: int
    tensor_bytes: int
    sent_bytes: int


class CollectiveStatistics:
    """The counts of one process. Its rank and the store for the final report are those of its first group.

    Increments are not locked: all-reduces come from one thread at a time (the autograd thread or the script's own).
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.native = ""
        self.calls = 0
        self.tensor_bytes = 0
        self.sent_bytes = 0
        self.others = 0
        self.reducers: list[Any] = []
        self._store: Any = None

    def begin(self, store: Any, rank: int, size: int, native: str) -> None:
        """Use the rank and the store of a group, if it is the first; *native* names its backend, such as "gloo"."""
        if self._store is None:
            self._store, self.rank, self.size, self.native = store, rank, size, native

    def count_native(self, tensor_bytes: int, size: int) -> None:
        """Count an all-reduce handed to the native backend of a group of *size*; a ring sends 2 (n-1)/n of it."""
        self.calls += 1
        self.tensor_bytes += tensor_bytes
        self.sent_bytes += 2 * (size - 1) * tensor_bytes // size

    def by_path(self) -> dict[str, PathStatistics]:
        """Return the counts by the name of the path, the native backend's first."""
        counts = {f"{self.native}": PathStatistics(self.calls, self.tensor_bytes, self.sent_bytes)}
        for reducer in self.reducers:
            for name, path in reducer.by_path().items():
                so_far = counts.get(name, PathStatistics(0, 0, 0))
                counts[name] = PathStatistics(*(first + second for first, second in zip(so_far, path, strict=True)))
        return counts

    def end(self) -> None:
        """Print the line to rank 0's stderr; other ranks put their sent bytes into the store. Waits 1 s at most.

        Never raises. After an unhandled exception it prints nothing: the exception matters more, and peers may be gone.
        """
        store, self._store = self._store, None
        if store is None or hasattr(sys, "last_value"):
            return
        try:
            paths = self.by_path()
            sent = sum(path.sent_bytes for path in paths.values())
            if self.rank != 0:
                store.set(f"sent/{self.rank}", str(sent))
                return
            sent_by_rank = [sent, *_wait_for_reports(store, self.size)]
            sys.stderr.write(f"[toolkit] smddp: {line(self.size, paths, self.others, sent_by_rank)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a lost store or a closed stderr must not fail a job that succeeded
            return


def _wait_for_reports(store: Any, size: int) -> list[int]:
    keys = [f"sent/{rank}" for rank in range(1, size)]
    deadline = time.monotonic() + WAIT_S
    while not all(is_reported := [store.check([key]) for key in keys]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [int(store.get(key)) for key, is_here in zip(keys, is_reported, strict=True) if is_here] if keys else []


def line(size: int, paths: dict[str, PathStatistics], others: int, sent: list[int]) -> str:
    """Return the line's text; *sent* holds the sent bytes of each rank that reported them.

    >>> line(2, {"gloo": PathStatistics(3, 6 * MIB, 6 * MIB)}, 1, [6 * MIB, 6 * MIB])
    '2 ranks; all-reduce: 3 x gloo, 6.0 MiB; other collectives: 1; each rank sent 6.0 MiB (max/mean 1.00)'
    """
    used = [f"{path.calls} x {name}, {_mib(path.tensor_bytes)}" for name, path in paths.items() if path.calls]
    parts = [f"{size} rank{'s' * (size > 1)}", f"all-reduce: {', '.join(used) if used else 'none'}"]
    if others:
        parts.append(f"other collectives: {others}")
    mean = sum(sent) / max(1, len(sent))
    if mean:
        senders = "each rank" if len(sent) == size else f"{len(sent)} of {size} ranks"
        parts.append(f"{senders} sent {_mib(mean)} (max/mean {max(sent) / mean:.2f})")
    return "; ".join(parts)


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
