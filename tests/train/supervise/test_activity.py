"""Ranks count as moving by the kernel's accounts of them: whole ticks of user's and of system's time."""

import pytest

from toolkit.train.supervise.activity import RankActivity

TICKS_PER_S = 100


def longest_rest_s(share: float, every_s: float, *, for_s: float = 600.0) -> float:
    """Return the longest that a rank seemed to rest which uses *share* of a core all the time, half of it the
    system's."""
    progress = RankActivity(0.0, ticks_per_s=TICKS_PER_S)
    rests_s = []
    for number in range(int(for_s / every_s)):
        now_s = number * every_s
        half = int(share / 2 * now_s * TICKS_PER_S)  # Both counters go up at the same moment.
        rests_s.append(progress.look({1: (0, 2 * half)}, now_s))
    return max(rests_s)


@pytest.mark.parametrize("every_s", [0.1, 0.5, 2.0, 10.0])
def test_threads_that_only_poll_do_not_move_a_rank(every_s: float) -> None:
    """Those of torch and gloo use 0.4 % of a core, in which every five seconds both counters went up at once."""
    assert longest_rest_s(0.004, every_s) >= 600.0 - 2 * every_s


@pytest.mark.parametrize("every_s", [0.1, 0.5, 2.0, 10.0])
def test_a_rank_that_works_a_little_is_never_at_rest_for_long(every_s: float) -> None:
    assert longest_rest_s(0.06, every_s) <= max(2.0, 2 * every_s)


def test_a_line_is_a_movement_whatever_it_cost() -> None:
    progress = RankActivity(0.0)

    assert progress.look({1: (0, 5)}, 0.0) == 0
    assert progress.look({1: (0, 5)}, 7.0) == 7.0
    assert progress.look({1: (1, 5)}, 8.0) == 0


def test_one_rank_that_moves_is_enough() -> None:
    progress = RankActivity(0.0, ticks_per_s=TICKS_PER_S)
    progress.look({1: (0, 0), 2: (0, 0)}, 0.0)

    assert progress.look({1: (0, 0), 2: (0, 100)}, 5.0) == 0
    assert progress.look({1: (0, 0)}, 6.0) == 1.0
