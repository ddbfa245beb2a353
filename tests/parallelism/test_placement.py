import itertools

import pytest

from toolkit.errors import ContractError
from toolkit.parallelism.placement import place

SHAPES = [(1, 1, 1), (4, 2, 1), (8, 2, 2), (8, 4, 1), (12, 3, 2), (16, 2, 4)]
ORDERS = ["cluster", "spread", *("".join(order) for order in itertools.permutations("DPT"))]


def test_cluster_keeps_a_models_ranks_together_and_spread_takes_them_apart() -> None:
    cluster, spread = place(8, 2, 1, "cluster", "x"), place(8, 2, 1, "spread", "x")
    assert [cluster.group("mp", rank) for rank in (0, 2, 4, 6)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [spread.group("mp", rank) for rank in (0, 1, 2, 3)] == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_placement_keeps_the_identities_of_the_groups(shape: tuple[int, int, int], order: str) -> None:
    size, partitions, degree = shape
    placement = place(size, partitions, degree, order, "x")
    for rank in range(size):
        sizes = {kind: len(placement.group(kind, rank)) for kind in ("pp", "tp", "rdp", "mp", "dp", "world")}
        assert (sizes["pp"], sizes["tp"], sizes["world"]) == (partitions, degree, size)
        assert sizes["mp"] == sizes["pp"] * sizes["tp"] and sizes["dp"] == sizes["tp"] * sizes["rdp"]
        assert sizes["pp"] * sizes["dp"] == sizes["mp"] * sizes["rdp"] == size
        for kind in sizes:
            assert placement.group(kind, rank)[placement.rank_in(kind, rank)] == rank
        assert set(placement.group("pp", rank)) & set(placement.group("dp", rank)) == {rank}


def test_a_number_of_ranks_that_does_not_fit_is_refused_with_the_numbers_that_do() -> None:
    with pytest.raises(ContractError, match=r"4 divides \(partitions 2 x tensor_parallel_degree 2\), found 6.*4 or 8"):
        place(6, 2, 2, "cluster", "mp_parameters")


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ContractError, match="found 'DPP'"):
        place(2, 2, 1, "DPP", "mp_parameters")
