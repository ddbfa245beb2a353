"""Fuses arrays: neighbours of one type are sent as one buffer."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from toolkit.rank.dataparallel.tf.transport import wide

MIB = 1 << 20
BUCKET_MIB = 25  # As torch's DDP and AWS's library.
# TensorFlow takes an array over without a copy if it begins at a multiple of this (EIGEN_MAX_ALIGN_BYTES).
ALIGN_BYTES = 64


class Mark(NamedTuple):
    """One more element of the first bucket: what this rank gives, and what `move` leaves if every rank gave that."""

    own: int
    unset: int


class Marked(Exception):  # noqa: N818 - no error
    """A rank gave another mark than `unset`."""


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


def through(
    arrays: list[Any],
    most_bytes: int,
    move: Callable[[Any], None],
    direct: Callable[[list[Any], list[Any]], bool] | None = None,
    mark: Mark | None = None,
) -> list[Any]:
    """Return *arrays* after *move* has changed their flat copies in place, bucket by bucket; types and shapes stay.

    *direct* is offered a bucket's arrays, and flat arrays for their results, first; it returns False if it left them
    to *move*. A flat array is the only copy: results are its parts, each at a multiple of ALIGN_BYTES.

    Raises:
        Marked: with a *mark*, after the first bucket; the others are not moved.
    """
    import numpy as np

    given = [np.asarray(array) for array in arrays]
    results: list[Any] = [None] * len(given)
    for places in buckets(given, most_bytes):
        bucket = [given[place] for place in places]
        kind, sent = bucket[0].dtype, wide(bucket[0])
        if mark is not None:
            bucket.append(np.full(1, mark.own, kind))
        flat, starts = _laid_out([array.size for array in bucket], sent or kind)
        parts = [flat[start : start + array.size] for array, start in zip(bucket, starts, strict=True)]
        if sent or direct is None or not direct(bucket, parts):
            for array, start, end in zip(bucket, starts, [*starts[1:], flat.size], strict=True):
                flat[start : start + array.size] = array.ravel()
                flat[start + array.size : end] = 0
            if flat.size:
                move(flat)
        if mark is not None:
            if parts.pop()[0] != mark.unset:
                raise Marked
            mark = None
        for place, part in zip(places, parts, strict=True):
            results[place] = part.astype(kind, copy=False).reshape(given[place].shape)
    return results


def _laid_out(sizes: list[int], kind: Any) -> tuple[Any, list[int]]:
    """Return a flat array of type *kind* for arrays of *sizes* elements, and where each begins."""
    import numpy as np

    size_bytes = np.dtype(kind).itemsize
    unit = max(ALIGN_BYTES // size_bytes, 1)
    ends = list(accumulate(-(-size // unit) * unit for size in sizes))
    memory = np.empty((ends[-1] if ends else 0) * size_bytes + ALIGN_BYTES, "u1")
    flat = memory[-memory.ctypes.data % ALIGN_BYTES :][: memory.size - ALIGN_BYTES].view(kind)
    return flat, [0, *ends][: len(sizes)]
