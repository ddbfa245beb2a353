"""Who shares a host with whom."""

import pytest

from toolkit.dataparallel.reduce.places import Party, party


@pytest.mark.parametrize(
    ("words", "rank", "expected"),
    [
        ([7, 7], 1, Party((0, 1), (1,))),
        ([7, 7, 8, 8], 3, Party((2, 3), (1, 3))),
        # As a launcher that deals the ranks out, one host after the other.
        ([7, 8, 7, 8], 2, Party((0, 2), (2, 3))),
    ],
)
def test_a_rank_has_mates_on_its_host_and_one_of_its_place_on_each_other(
    words: list[int], rank: int, expected: Party
) -> None:
    assert party(words, rank, most=64) == expected


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([7], "each rank is alone on its host"),
        ([7, 8, 9], "each rank is alone on its host"),
        ([7, 7, 8], "hosts have different numbers of ranks (1, 2)"),
        ([7, 7, 0], "a machine does not say which it is"),
        ([7, 7, 7], "more than 2 ranks on a host"),
    ],
)
def test_what_level_1_is_not_for_has_a_reason_and_it_is_the_same_on_all(words: list[int], why: str) -> None:
    assert {party(words, rank, most=2) for rank in range(len(words))} == {why}
