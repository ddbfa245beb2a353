import random

import pytest

from toolkit.diagnosis.first_steps import first_steps


def waits(steps: int, long: dict[int, float]) -> list[float]:
    """Return the waits of *steps* steps: some 1 ms, and those of *long*."""
    noise = random.Random(steps)
    return [long.get(step, 0.001 * noise.uniform(0.2, 2)) for step in range(steps)]


def every(period: int, steps: int, first: int = 0) -> dict[int, float]:
    noise = random.Random(period)
    return {step: noise.uniform(0.4, 0.7) for step in range(first, steps, period)}


@pytest.mark.parametrize(
    ("period", "steps", "first"),
    [(22, 571, 21), (22, 109, 21), (5, 60, 4), (100, 800, 99)],
)
def test_long_waits_at_regular_distances_have_a_period(period: int, steps: int, first: int) -> None:
    loading = first_steps(waits(steps, every(period, steps, first)))

    assert loading is not None
    assert (loading.period, loading.count) == (period, len(range(first, steps, period)))
    assert 0.7 < loading.share < 1


def test_an_epoch_whose_first_wait_was_short_and_one_that_came_a_step_early_change_nothing() -> None:
    long = every(22, 571)
    del long[220]
    long[307] = long.pop(308)

    loading = first_steps(waits(571, long))

    assert loading is not None
    assert loading.period == 22


@pytest.mark.parametrize(
    "seconds",
    [
        [],
        [0.0] * 50,
        [0.1] * 100,
        waits(100, every(2, 100)),  # Half of the steps wait.
        waits(100, {0: 0.5}),
        waits(100, {40: 0.5, 41: 0.5, 42: 0.5, 43: 0.5, 44: 0.5}),
        waits(300, dict.fromkeys((3, 40, 55, 129, 150, 222, 290), 0.5)),
        [random.Random(7).expovariate(10) for _ in range(300)],
    ],
    ids=["none", "no wait", "all alike", "half", "one", "neighbours", "irregular", "random"],
)
def test_other_waits_have_none(seconds: list[float]) -> None:
    assert first_steps(seconds) is None
