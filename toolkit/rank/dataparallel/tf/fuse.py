"""Fuses arrays: neighbours of one type are sent as one buffer."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from toolkit.rank.dataparallel.tf.transport import wider_type

MIB = 1 << 20
BUCKET_MIB = 25  # As torch's DDP and AWS's library.
# TensorFlow uses an array without a copy if it begins at a multiple of this (EIGEN_MAX_ALIGN_BYTES).
ALIGN_BYTES = 64


class MismatchMark(NamedTuple):
    """An additional element of the first bucket. `value`: this rank's; `clear`: the result if every rank's mark is
    clear."""

    value: int
    clear: int


class MismatchMarked(Exception):  # noqa: N818 - no error
    """A rank's mark was not `clear`."""


def buckets(arrays: list[Any], most_bytes: int) -> Iterator[list[int]]:
    """Yield the indices of *arrays* in order; a bucket ends where the type changes or *most_bytes* would be exceeded.

    Every rank has the same arrays and so the same buckets. A bucket holds at least one array.
    """
    bucket: list[int] = []
    bucket_bytes = 0
    for number, array in enumerate(arrays):
        is_full = bucket_bytes + array.nbytes > most_bytes
        if bucket and (is_full or array.dtype != arrays[bucket[0]].dtype):
            yield bucket
            bucket, bucket_bytes = [], 0
        bucket.append(number)
        bucket_bytes += array.nbytes
    if bucket:
        yield bucket


def fuse_and_move(
    arrays: list[Any],
    most_bytes: int,
    move: Callable[[Any], None],
    direct: Callable[[list[Any], list[Any]], bool] | None = None,
    mark: MismatchMark | None = None,
) -> list[Any]:
    """Return *arrays* after *move* has changed their flat copies in place, bucket by bucket; types and shapes stay.

    *direct* is offered a bucket's arrays, and flat arrays for their results, first; it returns False to leave them to
    *move*. A flat array is the only copy: results are its parts, each at a multiple of ALIGN_BYTES.

    Raises:
        MismatchMarked: with a *mark*, after the first bucket; the others are not moved.
    """
    import numpy as np

    contiguous = [np.asarray(array) for array in arrays]
    results: list[Any] = [None] * len(contiguous)
    for numbers in buckets(contiguous, most_bytes):
        bucket = [contiguous[number] for number in numbers]
        kind, sent = bucket[0].dtype, wider_type(bucket[0])
        if mark is not None:
            bucket.append(np.full(1, mark.value, kind))
        flat, starts = _lay_out([array.size for array in bucket], sent or kind)
        parts = [flat[start : start + array.size] for array, start in zip(bucket, starts, strict=True)]
        if sent or direct is None or not direct(bucket, parts):
            for array, start, end in zip(bucket, starts, [*starts[1:], flat.size], strict=True):
                flat[start : start + array.size] = array.ravel()
                flat[start + array.size : end] = 0
            if flat.size:
                move(flat)
        if mark is not None:
            if parts.pop()[0] != mark.clear:
                raise MismatchMarked
            mark = None
        for number, part in zip(numbers, parts, strict=True):
            results[number] = part.astype(kind, copy=False).reshape(contiguous[number].shape)
    return results


def _lay_out(sizes: list[int], kind: Any) -> tuple[Any, list[int]]:
    """Return a flat array of type *kind* for arrays of *sizes* elements, and the begin of each."""
    import numpy as np

    size_bytes = np.dtype(kind).itemsize
    unit = max(ALIGN_BYTES // size_bytes, 1)
    ends = list(accumulate(-(-size // unit) * unit for size in sizes))
    memory = np.empty((ends[-1] if ends else 0) * size_bytes + ALIGN_BYTES, "u1")
    flat = memory[-memory.ctypes.data % ALIGN_BYTES :][: memory.size - ALIGN_BYTES].view(kind)
    return flat, [0, *ends][: len(sizes)]
