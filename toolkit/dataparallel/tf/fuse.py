"""Fuses arrays: neighbours of one type are sent as one buffer."""

from collections.abc import Callable, Iterator
from typing import Any

from toolkit.dataparallel.tf.transport import wide

BUCKET_MIB = 25  # As torch's DDP and AWS's library.


def buckets(arrays: list[Any], most_bytes: int) -> Iterator[list[int]]:
    """Yield the indices of *arrays* in order; a bucket ends where the type changes or *most_bytes* would be exceeded.

    Every rank has the same arrays and so the same buckets. A bucket holds at least one array.
    """
    found: list[int] = []
    held_bytes = 0
    for number, array in enumerate(arrays):
        full = held_bytes + array.nbytes > most_bytes
        if found and (full or array.dtype != arrays[found[0]].dtype):
            yield found
            found, held_bytes = [], 0
        found.append(number)
        held_bytes += array.nbytes
    if found:
        yield found


def through(arrays: list[Any], most_bytes: int, move: Callable[[Any], None]) -> list[Any]:
    """Return *arrays* after *move* has changed their flat copies in place, bucket by bucket; types and shapes stay."""
    import numpy as np

    given = [np.asarray(array) for array in arrays]
    results: list[Any] = [None] * len(given)
    for places in buckets(given, most_bytes):
        kind = given[places[0]].dtype
        flat = np.concatenate([given[place].ravel() for place in places]).astype(wide(given[places[0]]) or kind)
        if flat.size:
            move(flat)
        first = 0
        for place in places:
            size = given[place].size
            results[place] = flat[first : first + size].astype(kind, copy=False).reshape(given[place].shape)
            first += size
    return results
