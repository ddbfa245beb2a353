"""Which stop signals are one wish, and which a second one: by their times alone."""

import pytest

from toolkit.supervise.signals import SAME_WISH_S, Wishes


@pytest.mark.parametrize(
    ("times_s", "new", "insisted"),
    [
        ((5.0,), [True], False),
        ((5.0, 5.0), [True, False], False),
        ((5.0, 5.4, 5.9), [True, False, False], False),
        ((5.0, 5.0 + SAME_WISH_S), [True, True], True),
        ((5.0, 5.9, 6.5, 6.5), [True, False, True, True], True),
        ((0.0, 0.2), [True, False], False),
    ],
)
def test_a_stop_signal_is_a_new_wish_if_it_is_the_first_or_comes_a_second_later(
    times_s: tuple[float, ...], new: list[bool], insisted: bool
) -> None:
    wishes = Wishes()

    assert [wishes.is_new(time_s) for time_s in times_s] == new
    assert wishes.insisted == insisted
