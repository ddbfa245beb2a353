"""The units of sharded data parallelism, by the parameters that say how large they are."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def group() -> Iterator[object]:
    """A process group of this process alone."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("limits", "units", "unsharded"),
    [
        ({"sdp_param_persistence_threshold": 0}, ["", "0", "1"], set()),
        ({"sdp_param_persistence_threshold": 0, "sdp_max_live_parameters": 200}, ["", "0", "0.0", "0.1", "1"], set()),
        ({"sdp_param_persistence_threshold": 0, "sdp_reduce_bucket_size": 200}, ["", "0", "0.0", "0.1", "1"], set()),
        ({"sdp_param_persistence_threshold": 20}, ["", "0", "1"], {"0.0.bias", "0.1.bias", "1.bias"}),
    ],
)
def test_a_unit_has_at_most_so_many_elements_and_small_parameters_stay_whole(
    group: object, limits: dict[str, float], units: list[str], unsharded: set[str]
) -> None:
    from torch.distributed.fsdp import FSDPModule

    from toolkit.parallelism import parameters
    from toolkit.rank.modelparallel.torch.replicas import is_spread
    from toolkit.rank.modelparallel.torch.sharded import shard

    linear = torch.nn.Linear
    model = torch.nn.Sequential(torch.nn.Sequential(linear(12, 12), linear(12, 12)), linear(12, 12))

    shard(model, parameters.read({"partitions": 1, "ddp": True, **limits}), group, torch.device("cpu"))

    assert [path for path, module in model.named_modules() if isinstance(module, FSDPModule)] == units
    assert {name for name, parameter in model.named_parameters() if not is_spread(parameter)} == unsharded
