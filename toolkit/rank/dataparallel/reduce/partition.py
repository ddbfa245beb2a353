"""Cuts the bytes of an all-reduce into chunks for the shared memory and into shards for the ranks. Pure.

Every cut is a multiple of LINE_BYTES from the start: a cache line, which holds whole elements of every type. Shards
of a chunk differ by at most one line, independent of the sizes of the tensors: that balances the ranks' work.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

LINE_BYTES = 64


def chunks(size_bytes: int, row_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of each chunk of *size_bytes*: the fewest that fit in *row_bytes*, of about equal size."""
    count = max(1, -(-size_bytes // row_bytes))
    return tuple(cut(size_bytes, count, number) for number in range(count))


def cut(size_bytes: int, count: int, number: int) -> tuple[int, int]:
    """Return (start, stop) of piece *number* of *count* equal pieces; the last ones may be empty."""
    lines = -(-size_bytes // LINE_BYTES)
    start, stop = (lines * index // count * LINE_BYTES for index in (number, number + 1))
    return min(start, size_bytes), min(stop, size_bytes)


def pieces(ends: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, from, to, offset): bytes from..to of tensor *number* are at *offset* of the range start..stop.

    The tensors follow one another; *ends* are their ends. Its time does not depend on the number of tensors before the
    range.
    """
    number = bisect_right(ends, start)
    while number < len(ends):
        begin = ends[number - 1] if number else 0
        low, high = max(start, begin), min(stop, ends[number])
        if begin >= stop:
            return
        if low < high:
            yield number, low - begin, high - begin, low - start
        number += 1
