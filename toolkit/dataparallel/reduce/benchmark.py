"""The size from which an all-reduce is hierarchical, measured on the group itself at its first use.

The native backend and the hierarchical all-reduce reduce the same tensors in turn, in a few sizes. A try takes as
long as its slowest rank; the fastest try counts, because other work on the machine only adds time. All ranks get the
same numbers and so make the same choice. It takes about 0.1 s on one host.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SIZES_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
TRIES = 7
# The largest share of the native time at which the hierarchical all-reduce is used. On one host it always moves fewer
# bytes, so a small gain suffices; between hosts, on a busy machine, runs differ by a tenth.
ON_ONE_HOST = 0.95
BETWEEN_HOSTS = 0.9
# A try that takes longer shows a slow network: larger sizes are not measured.
LONG_S = 0.25


class Timing(NamedTuple):
    """Both times of one size."""

    size_bytes: int
    native_s: float
    ours_s: float


def threshold(measured: Sequence[Timing], margin: float) -> int | None:
    """Return the smallest size from which our time was at most *margin* of the native time at every size measured.

    None if it was more at the largest.
    """
    found = None
    for one in sorted(measured, reverse=True):
        if one.ours_s > one.native_s * margin:
            break
        found = one.size_bytes
    return found


def measure(native: Callable[..., Any], ours: Callable[..., Any]) -> tuple[Timing, ...]:
    """Return the times of *native* and *ours*, equal on all ranks. Each starts an all-reduce and returns its Work.

    The ranks agree on the times over *native*.
    """
    import torch
    from torch.distributed import AllreduceOptions, ReduceOp

    found: list[Timing] = []
    for size in SIZES_BYTES:
        tensor = torch.zeros(size // 4)
        times = torch.zeros(2, TRIES + 1, dtype=torch.float64)
        for number in range(TRIES + 1):
            for way, start in enumerate((native, ours)):
                began_s = time.perf_counter()
                start([tensor]).wait()
                times[way, number] = time.perf_counter() - began_s
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.MAX  # type: ignore[assignment]
        native([times], options).wait()
        fastest = times[:, 1:].min(dim=1).values.tolist()  # The first try touches memory for the first time.
        found.append(Timing(size, *fastest))
        if max(fastest) > LONG_S:
            break
    return tuple(found)
