"""Sets of times, compared with sets of whole seconds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from toolkit.traces import intervals
from toolkit.traces.intervals import Span

SPANS = some.lists(
    some.tuples(some.integers(0, 40), some.integers(1, 9)).map(lambda each: (each[0], each[0] + each[1]))
)


def seconds(spans: list[Span]) -> set[int]:
    return {second for start, end in spans for second in range(int(start), int(end))}


@given(SPANS, SPANS)
def test_sets_of_times_behave_as_sets_of_seconds(these: list[Span], those: list[Span]) -> None:
    here, there = intervals.union(these), intervals.union(those)

    assert seconds(here) == seconds(these)
    assert intervals.total_length(here) == len(seconds(these))
    assert seconds(intervals.intersect(here, there)) == seconds(these) & seconds(those)
    assert seconds(intervals.subtract(here, there)) == seconds(these) - seconds(those)
    assert all(first[1] < second[0] for first, second in pairwise(here))


@given(SPANS, some.integers(1, 13))
def test_shares_of_parts_add_up_to_the_whole(these: list[Span], buckets: int) -> None:
    here = intervals.union(these)

    found = intervals.bucket_shares(here, 0, 50, buckets)

    assert len(found) == buckets
    assert all(0 <= share <= 1 for share in found)
    assert sum(found) * 50 / buckets == pytest.approx(intervals.total_length(here))
