"""The topology says which ranks share a host."""

import pytest

from toolkit.rank.dataparallel.reduce.topology import Topology, find_topology


@pytest.mark.parametrize(
    ("words", "rank", "expected"),
    [
        ([7, 7], 1, Topology((0, 1), (1,))),
        ([7, 7, 8, 8], 3, Topology((2, 3), (1, 3))),
        # As a launcher that deals the ranks out, one host after the other.
        ([7, 8, 7, 8], 2, Topology((0, 2), (2, 3))),
    ],
)
def test_a_rank_has_local_peers_and_one_peer_on_each_other_host(
    words: list[int], rank: int, expected: Topology
) -> None:
    assert find_topology(words, rank, most=64) == expected


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([7], "each rank is alone on its host"),
        ([7, 8, 9], "each rank is alone on its host"),
        ([7, 7, 8], "hosts have different numbers of ranks (1, 2)"),
        ([7, 7, 0], "a machine does not say which it is"),
        ([7, 7, 7], "more than 2 ranks on a host"),
    ],
)
def test_a_topology_that_is_not_reduced_hierarchically_has_the_same_reason_on_all_ranks(
    words: list[int], reason: str
) -> None:
    assert {find_topology(words, rank, most=2) for rank in range(len(words))} == {reason}
