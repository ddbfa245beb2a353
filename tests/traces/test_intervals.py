"""Sets of times, compared with sets of whole seconds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from toolkit.traces import intervals
from toolkit.traces.intervals import Span

SPANS = some.lists(
    some.tuples(some.integers(0, 40), some.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
)


def seconds(spans: list[Span]) -> set[int]:
    return {second for start, end in spans for second in range(int(start), int(end))}


@given(SPANS, SPANS)
def test_sets_of_times_behave_as_sets_of_seconds(these: list[Span], those: list[Span]) -> None:
    local, exists = intervals.union(these), intervals.union(those)

    assert seconds(local) == seconds(these)
    assert intervals.total_length(local) == len(seconds(these))
    assert seconds(intervals.intersect(local, exists)) == seconds(these) & seconds(those)
    assert seconds(intervals.subtract(local, exists)) == seconds(these) - seconds(those)
    assert all(first[1] < second[0] for first, second in pairwise(local))


@given(SPANS, some.integers(1, 13))
def test_shares_of_parts_add_up_to_the_whole(these: list[Span], buckets: int) -> None:
    union = intervals.union(these)

    bucket_shares = intervals.bucket_shares(union, 0, 50, buckets)

    assert len(bucket_shares) == buckets
    assert all(0 <= share <= 1 for share in bucket_shares)
    assert sum(bucket_shares) * 50 / buckets == pytest.approx(intervals.total_length(union))
