"""The interval that the monitor can afford."""

import pytest

from toolkit.monitor.cost import LONGEST_S, WARM_UP, Cost


@pytest.mark.parametrize(
    ("asked_s", "own_s", "kernel_s", "interval_s"),
    [
        (0.5, 0.0009, 0.001, 0.5),  # Within 1 ms for each sample, and 5 ms with the kernel's part.
        (0.5, 0.004, 0.0, 2.0),
        (0.5, 0.0005, 0.0095, 1.0),
        (0.1, 0.0009, 0.001, 0.1),  # More samples were asked for, each as dear.
        (0.1, 0.002, 0.0, 0.2),
        (5.0, 0.004, 0.0, 5.0),
        (0.5, 1.0, 0.0, LONGEST_S),
        (60.0, 10.0, 0.0, 60.0),
    ],
)
def test_the_interval_is_stretched_rather_than_cost_more(
    asked_s: float, own_s: float, kernel_s: float, interval_s: float
) -> None:
    cost = Cost(asked_s)

    for _ in range(200):
        cost.sample(own_s, kernel_s)

    assert cost.interval_s == pytest.approx(interval_s)


def test_the_first_samples_do_not_count() -> None:
    cost = Cost(0.5)

    for _ in range(WARM_UP - 1):
        cost.sample(0.1, 0.1)

    assert cost.interval_s == 0.5


def test_the_own_share_is_that_of_the_last_second() -> None:
    cost = Cost(0.5)

    cost.whole(1.0, 10.0)
    cost.whole(1.01, 12.0)

    assert cost.percent == pytest.approx(0.5)
