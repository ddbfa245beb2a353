"""Measures on a group, at its first use, the size from which its all-reduces are hierarchical.

The native backend and the hierarchical all-reduce reduce the same tensors in turn, in a few sizes. A try takes as
long as its slowest rank; the fastest try counts, because other work on the machine only adds time. All ranks get the
same times and so make the same choice. It takes about 0.1 s on one host.
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
    """The times of one size."""

    size_bytes: int
    native_s: float
    hierarchical_s: float


def choose_threshold(measured: Sequence[Timing], margin: float) -> int | None:
    """Return the smallest size from which the hierarchical time was at most *margin* of the native time.

    None if it was more at the largest size.
    """
    smallest_bytes = None
    for timing in sorted(measured, reverse=True):
        if timing.hierarchical_s > timing.native_s * margin:
            break
        smallest_bytes = timing.size_bytes
    return smallest_bytes


def measure(
    make: Callable[[int], Any],
    native: Callable[[Any], None],
    hierarchical: Callable[[Any], None],
    slowest: Callable[[list[float]], list[float]],
) -> tuple[Timing, ...]:
    """Return the times of *native* and *hierarchical*, equal on all ranks. Each reduces the tensors that *make* returns
    for a size.

    *slowest*: returns the largest of each time over all ranks.
    """
    timings: list[Timing] = []
    for size in SIZES_BYTES:
        tensors = make(size)
        times_s: list[float] = []
        for _ in range(TRIES + 1):
            for reduce in (native, hierarchical):
                began_s = time.perf_counter()
                reduce(tensors)
                times_s.append(time.perf_counter() - began_s)
        agreed_s = slowest(times_s)[2:]  # The first try touches memory for the first time.
        timings.append(Timing(size, min(agreed_s[::2]), min(agreed_s[1::2])))
        if max(timings[-1][1:]) > LONG_S:
            break
    return tuple(timings)
