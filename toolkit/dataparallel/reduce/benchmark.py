"""From which size on an all-reduce goes through the shared memory: measured on the group itself, at its first use.

Both levels reduce the same tensors, one after the other, in a few sizes; a try counts as long as its slowest rank, and
the fastest of the tries stands for the level (other work on the machine only ever adds). All ranks come to the same
numbers, and so to the same choice. It takes some 0.1 s on one host.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SIZES_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
TRIES = 7
# What level 1 may take of the native time. On one host it moves fewer bytes whatever else goes on, so little is asked
# for; between hosts, on a busy machine, differences of a tenth come and go with the run.
ON_ONE_HOST = 0.95
BETWEEN_HOSTS = 0.9
# A group on which one try takes longer than this has a slow network, and is not asked about larger sizes.
LONG_S = 0.25


class Timing(NamedTuple):
    """The times of one size."""

    size_bytes: int
    native_s: float
    ours_s: float


def threshold(measured: Sequence[Timing], margin: float) -> int | None:
    """Return the smallest size from which on level 1 took at most *margin* of the native time at every size measured.

    None if it did not at the largest.
    """
    found = None
    for one in sorted(measured, reverse=True):
        if one.ours_s > one.native_s * margin:
            break
        found = one.size_bytes
    return found


def measure(native: Callable[..., Any], ours: Callable[..., Any]) -> tuple[Timing, ...]:
    """Return the times of both ways to start an all-reduce of tensors (they return its Work), the same on all ranks.

    The agreement between ranks goes by *native* too.
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
