"""The cutting of bytes into chunks and shards."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as some

from toolkit.rank.dataparallel.reduce.partition import LINE_BYTES, chunks, cut, pieces

SIZES = some.integers(1, 1 << 28)


@given(SIZES, some.sampled_from([LINE_BYTES, 4096, 4 << 20]))
def test_chunks_follow_one_another_and_each_fits_its_row(size: int, row: int) -> None:
    size = min(size, row * 1000)

    parts = chunks(size, row)

    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
    assert parts[-1][1] == size
    assert all(0 < stop - start <= row for start, stop in parts)


@given(SIZES, some.integers(1, 64))
def test_shards_cover_all_and_differ_by_a_line_at_most(size: int, count: int) -> None:
    parts = [cut(size, count, number) for number in range(count)]

    assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
    assert parts[-1][1] == size
    lines = [-(-(stop - start) // LINE_BYTES) for start, stop in parts]
    assert max(lines) - min(lines) <= 1
    assert all(start % LINE_BYTES == 0 for start, stop in parts if start < stop)


@given(some.lists(some.integers(0, 300), min_size=1, max_size=8), some.integers(0, 2000), some.integers(0, 2000))
def test_pieces_are_the_bytes_of_the_tensors_in_their_order(sizes: list[int], first: int, other: int) -> None:
    expected = [(number, byte) for number, size in enumerate(sizes) for byte in range(size)]
    start, stop = sorted((first, other))

    parts = list(pieces(list(accumulate(sizes)), start, stop))

    assert [(number, byte) for number, low, high, _ in parts for byte in range(low, high)] == expected[start:stop]
    assert all(expected[start + offset] == (number, low) for number, low, _, offset in parts)
