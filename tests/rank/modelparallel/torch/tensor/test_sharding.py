"""The parts of divided parameters, as figures."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_tensor_parallel_ranks_deal_optimizer_state_alike_where_their_parts_differ_in_size() -> None:
    from toolkit.rank.modelparallel.torch.shards import deal_parameters
    from toolkit.rank.modelparallel.torch.tensor.sharding import MARK, Split, split_sizes

    def dealt(rank: int) -> list[list[str]]:
        divided = torch.nn.Parameter(torch.zeros(4, split_sizes(17, 2)[rank]))
        setattr(divided, MARK, Split(1, 17))
        names = {id(divided): "divided"}
        others = [torch.nn.Parameter(torch.zeros(size)) for size in (35, 34)]
        names |= {id(other): f"other {other.numel()}" for other in others}
        return [[names[id(parameter)] for parameter in owned] for owned in deal_parameters([divided, *others], 2)]

    assert dealt(0) == dealt(1) == [["divided"], ["other 35", "other 34"]]
    assert split_sizes(17, 4) == [5, 4, 4, 4]
