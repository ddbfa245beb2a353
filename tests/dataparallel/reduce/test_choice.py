"""The choice by what was measured."""

import pytest

from toolkit.dataparallel.reduce.choice import Measured, threshold


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
def test_level_1_begins_where_it_is_faster_from_there_on(
    times: list[tuple[float, float]], expected: int | None
) -> None:
    measured = [Measured(1 << number, native, ours) for number, (native, ours) in enumerate(times)]

    assert threshold(measured, 0.9) == expected


def test_the_order_of_measuring_does_not_matter() -> None:
    measured = [Measured(4, 4.0, 1.0), Measured(1, 1.0, 2.0), Measured(2, 2.0, 1.0)]

    assert threshold(measured, 0.9) == 2
