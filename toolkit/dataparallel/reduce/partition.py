"""Pure: how the bytes of an all-reduce are cut, into chunks for the staging memory and into shards for the ranks.

Every cut lies on a multiple of LINE_BYTES from the start, which holds whole elements of every type and a cache line.
Shards of a chunk differ by one line at most, whatever the sizes of the tensors: that is the balance.
"""

from collections.abc import Iterator, Sequence

LINE_BYTES = 64


def chunks(size_bytes: int, row_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) of each chunk of *size_bytes*: as few as fit a row of *row_bytes*, all of about one size."""
    count = max(1, -(-size_bytes // row_bytes))
    return tuple(cut(size_bytes, count, number) for number in range(count))


def cut(size_bytes: int, count: int, number: int) -> tuple[int, int]:
    """Return (start, stop) of piece *number* of *count* equal ones; pieces at the end may be empty."""
    lines = -(-size_bytes // LINE_BYTES)
    start, stop = (lines * at // count * LINE_BYTES for at in (number, number + 1))
    return min(start, size_bytes), min(stop, size_bytes)


def pieces(sizes: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, from, to, at): bytes of tensor *number* that lie in start..stop, and where there, from 0.

    The tensors, *sizes* bytes each, lie behind one another.
    """
    begin = 0
    for number, size in enumerate(sizes):
        low, high = max(start, begin), min(stop, begin + size)
        if low < high:
            yield number, low - begin, high - begin, low - start
        begin += size
