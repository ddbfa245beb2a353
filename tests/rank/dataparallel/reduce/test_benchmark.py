"""The choice by what was measured."""

import pytest

from toolkit.rank.dataparallel.reduce.benchmark import Timing, choose_threshold


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(1.0, 0.5), (2.0, 1.0), (4.0, 2.0)], 1),
        ([(1.0, 1.5), (2.0, 1.0), (4.0, 2.0)], 2),
        # Faster in the middle alone: nobody knows what it is beyond.
        ([(1.0, 0.5), (2.0, 1.0), (4.0, 4.0)], None),
        ([(1.0, 0.5), (2.0, 2.0), (4.0, 2.0)], 4),
        # A difference within what two runs differ by is none.
        ([(1.0, 0.95)], None),
        ([], None),
    ],
)
def test_the_hierarchical_way_begins_where_it_is_faster_from_there_on(
    times: list[tuple[float, float]], expected: int | None
) -> None:
    measured = [Timing(1 << number, native, hierarchical) for number, (native, hierarchical) in enumerate(times)]

    assert choose_threshold(measured, 0.9) == expected


def test_the_order_of_measuring_does_not_matter() -> None:
    measured = [Timing(4, 4.0, 1.0), Timing(1, 1.0, 2.0), Timing(2, 2.0, 1.0)]

    assert choose_threshold(measured, 0.9) == 2
