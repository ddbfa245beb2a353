"""Parameters that PyTorch's side refuses, or of which it says that they have no effect."""

from typing import Any

import pytest

from toolkit.errors import ContractError
from toolkit.parallelism import parameters
from toolkit.parallelism.placement import place
from toolkit.rank.modelparallel.torch import parameter_rules


def checked(changes: dict[str, Any], ranks: int, has_cuda: bool = False) -> tuple[str, ...]:
    cfg = parameters.read(changes)
    placement = place(ranks, cfg.partitions, cfg.tensor_parallel_degree, cfg.placement_strategy, "test")
    return parameter_rules.check(cfg, placement, has_cuda)


@pytest.mark.parametrize(
    ("changes", "ranks", "message"),
    [
        (
            {"partitions": 2, "horovod": True},
            2,
            "expected horovod false under PyTorch, found true",
        ),
        ({"partitions": 2, "contiguous": False}, 2, "expected contiguous true under PyTorch, found false"),
        ({"partitions": 2}, 4, "expected ddp true, for 2 replicas x tensor_parallel_degree 1"),
        (
            {"partitions": 2, "tensor_parallel_degree": 2},
            4,
            "expected ddp true, for 1 replicas x tensor_parallel_de",
        ),
        ({"partitions": 2, "ddp_dist_backend": "nccl"}, 2, "expected ddp_dist_backend auto without CUDA, found nccl"),
        (
            {
                "partitions": 1,
                "ddp": True,
                "bf16": True,
                "sharded_data_parallel_degree": 2,
                "_fp32_grad_accumulation": 1,
            },
            2,
            "expected _fp32_grad_accumulation false beside sharded_data_parallel_degree",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_way_out(changes: dict[str, Any], ranks: int, message: str) -> None:
    with pytest.raises(ContractError) as refused:
        checked(changes, ranks)

    assert message in str(refused.value)
    assert refused.value.where == "SM_HP_MP_PARAMETERS"


def test_what_has_no_effect_is_said() -> None:
    assert checked({"partitions": 2, "fast_mode": True, "static_mode": True}, 2) == (
        "fast_mode has no effect",
        "static_mode has no effect",
    )
    assert (
        checked({"partitions": 1, "ddp": True, "sharded_data_parallel_degree": 2, "sdp_gradient_clipping": 2}, 2) == ()
    )
    sharded = {"partitions": 1, "ddp": True, "sharded_data_parallel_degree": 2, "sdp_hierarchical_allgather": False}
    assert checked(sharded, 2) == ("sdp_hierarchical_allgather has no effect",)
    assert checked({"partitions": 2, "ddp": True, "ddp_dist_backend": "nccl"}, 4, has_cuda=True) == ()
    # As AWS's scripts give them, whatever the degree.
    idle = {"sdp_gradient_clipping": 0.5, "sdp_hierarchical_allgather": False, "sdp_reduce_bucket_size": 1000}
    assert checked({"partitions": 2, **idle}, 2) == (
        "no effect without sharded_data_parallel_degree: sdp_reduce_bucket_size, sdp_hierarchical_allgather, "
        "sdp_gradient_clipping",
    )
    assert checked({"partitions": 2, "checkpoint_attentions": True, "_fp32_grad_accumulation": True}, 2) == (
        "checkpoint_attentions has no effect",
        "_fp32_grad_accumulation has no effect without fp16 or bf16",
    )
    assert checked({"partitions": 2, "fp16": True, "_fp32_grad_accumulation": True}, 2) == ()
