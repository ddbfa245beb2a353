"""Fuses arrays: neighbours of one type are sent as one buffer."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from toolkit.dataparallel.tf.transport import wide

BUCKET_MIB = 25  # As torch's DDP and AWS's library.
# TensorFlow takes an array over without a copy if it begins at a multiple of this (EIGEN_MAX_ALIGN_BYTES).
ALIGN_BYTES = 64


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
    """Return *arrays* after *move* has changed their flat copies in place, bucket by bucket; types and shapes stay.

    This is the only copy: results are parts of the flat arrays, each at a multiple of ALIGN_BYTES, with zeros between.
    """
    import numpy as np

    given = [np.asarray(array) for array in arrays]
    results: list[Any] = [None] * len(given)
    for places in buckets(given, most_bytes):
        kind = given[places[0]].dtype
        flat, starts = _packed([given[place] for place in places], wide(given[places[0]]) or kind)
        if flat.size:
            move(flat)
        for place, start in zip(places, starts, strict=True):
            part = flat[start : start + given[place].size]
            results[place] = part.astype(kind, copy=False).reshape(given[place].shape)
    return results


def _packed(arrays: list[Any], kind: Any) -> tuple[Any, list[int]]:
    """Return *arrays* in one flat array of type *kind*, and where each begins."""
    import numpy as np

    size_bytes = np.dtype(kind).itemsize
    unit = max(ALIGN_BYTES // size_bytes, 1)
    ends = list(accumulate(-(-array.size // unit) * unit for array in arrays))
    starts = [0, *ends][: len(arrays)]
    memory = np.empty((ends[-1] if ends else 0) * size_bytes + ALIGN_BYTES, "u1")
    flat = memory[-memory.ctypes.data % ALIGN_BYTES :][: memory.size - ALIGN_BYTES].view(kind)
    for array, start, end in zip(arrays, starts, ends, strict=True):
        flat[start : start + array.size] = array.ravel()
        flat[start + array.size : end] = 0
    return flat, starts
