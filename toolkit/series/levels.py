"""Buckets of samples: the least, the greatest and the mean value of 1, 10 and 60 seconds, for every column at once.

Rows are combined whole, by map() over C functions: 268 columns of two samples take some 60 us, a loop over columns
takes ten times as long.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable, Sequence
from operator import add, truediv
from typing import NamedTuple

LEVELS = (1, 10, 60)
# Columns compressed together. A reader of one column unpacks this many; fewer compress worse.
GROUP = 32


class Bucket(NamedTuple):
    """The samples of some seconds. `low`, `high` and `total` have a value for each column."""

    start_s: float
    """The first of these seconds."""
    samples: int
    """The number of samples."""
    low: array[float]
    high: array[float]
    total: array[float]
    counts: array[float] | None
    """The number of samples that were measured, for each column; None: `samples` of every one."""


def of_rows(start_s: float, rows: Sequence[array[float]]) -> Bucket:
    """Return the bucket of raw *rows*; NaN is a value that was not measured."""
    total = _sums(rows)
    if not math.isnan(sum(total)):
        return Bucket(start_s, len(rows), _least(rows), _greatest(rows), total, None)
    measured = [array("f", [value == value for value in row]) for row in rows]
    low = _least([_filled(row, math.inf) for row in rows])
    high = _greatest([_filled(row, -math.inf) for row in rows])
    return Bucket(start_s, len(rows), low, high, _sums([_filled(row, 0.0) for row in rows]), _sums(measured))


def of_buckets(start_s: float, buckets: Sequence[Bucket]) -> Bucket:
    """Return the bucket that holds *buckets*, which are shorter."""
    counts = None
    if any(bucket.counts for bucket in buckets):
        counts = _sums([bucket.counts or array("f", [bucket.samples]) * len(bucket.total) for bucket in buckets])
    return Bucket(
        start_s,
        sum(bucket.samples for bucket in buckets),
        _least([bucket.low for bucket in buckets]),
        _greatest([bucket.high for bucket in buckets]),
        _sums([bucket.total for bucket in buckets]),
        counts,
    )


def packed(buckets: Sequence[Bucket]) -> bytes:
    """Return the payload of a block of *buckets*: starts (8 bytes each), counts (4), sizes of the groups (4), groups.

    A group is zlib's of the byte planes of a float32 array [column][mean, low, high][bucket].
    """
    width = len(buckets[0].total)
    mean, low, high = array("f"), array("f"), array("f")
    for bucket in buckets:
        mean.extend(_means(bucket))
        low.extend(_measured(bucket, bucket.low))
        high.extend(_measured(bucket, bucket.high))
    groups = []
    for first in range(0, width, GROUP):
        columns = range(first, min(first + GROUP, width))
        plain = b"".join([part[column::width].tobytes() for column in columns for part in (mean, low, high)])
        # The first bytes of neighbouring floats are alike: planes compress to half of what the floats do.
        groups.append(zlib.compress(b"".join([plain[plane::4] for plane in range(4)]), 1))
    starts = array("d", [bucket.start_s for bucket in buckets])
    counts = array("I", [bucket.samples for bucket in buckets])
    sizes = array("I", map(len, groups))
    return b"".join([starts.tobytes(), counts.tobytes(), sizes.tobytes(), *groups])


def _means(bucket: Bucket) -> Iterable[float]:
    if bucket.counts is None:
        count = bucket.samples
        return [value / count for value in bucket.total]
    return map(truediv, bucket.total, _filled_zero(bucket.counts))


def _measured(bucket: Bucket, values: array[float]) -> Iterable[float]:
    """Return *values*, NaN where the bucket has no sample of a column."""
    if bucket.counts is None:
        return values
    return [value if count else math.nan for value, count in zip(values, bucket.counts, strict=True)]


def _filled_zero(counts: array[float]) -> array[float]:
    return array("f", [count or math.nan for count in counts])


def _filled(row: array[float], value: float) -> array[float]:
    return array("f", [mean if mean == mean else value for mean in row])


def _least(rows: Sequence[array[float]]) -> array[float]:
    return array("f", map(min, *rows)) if len(rows) > 1 else rows[0]


def _greatest(rows: Sequence[array[float]]) -> array[float]:
    return array("f", map(max, *rows)) if len(rows) > 1 else rows[0]


def _sums(rows: Sequence[array[float]]) -> array[float]:
    if len(rows) == 2:
        return array("d", map(add, rows[0], rows[1]))
    return array("d", map(sum, zip(*rows, strict=True)))
