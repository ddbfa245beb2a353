"""Pure: rules for the parameters of PyTorch's side, beyond their types: conflicts, and parameters without effect."""

from collections.abc import Iterator

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism.parameters import VARIABLE, Parameters
from toolkit.parallelism.placement import Placement

SHARDING = {field.name: field.default for field in msgspec.structs.fields(Parameters) if field.name.startswith("sdp_")}
# Choices of AWS's runtime that change no result, with the defaults: how messages go, whether the first trace holds for
# all steps, how parameters are gathered (here the backend's choice).
WITHOUT_EFFECT = {
    "fast_mode": False,
    "static_mode": False,
    "sdp_hierarchical_allgather": True,
    "checkpoint_attentions": False,  # Of AWS's own attention, to save memory: smp.set_activation_checkpointing does.
    "overlapping_allreduce": True,  # smp.DistributedModel has the argument.
}


def check(cfg: Parameters, placement: Placement, has_cuda: bool) -> tuple[str, ...]:
    """Return notes on parameters that have no effect.

    Raises:
        ContractError: a parameter that PyTorch's side cannot honour, or that needs another one.
    """
    replicas = placement.replicas
    if cfg.horovod:
        _refuse("horovod false under PyTorch", "true", 'It is TensorFlow\'s. Use "ddp": true.')
    if not cfg.contiguous:
        _refuse(
            "contiguous true under PyTorch", "false", "It is TensorFlow's. Partitions of a PyTorch model may be any."
        )
    if not cfg.ddp and replicas * cfg.tensor_parallel_degree > 1:
        _refuse(
            f"ddp true, for {replicas} replicas x tensor_parallel_degree {cfg.tensor_parallel_degree}",
            "false",
            f'Add "ddp": true, or start {cfg.partitions} ranks without tensor parallelism.',
        )
    if cfg.ddp_dist_backend == "nccl" and not has_cuda:
        _refuse("ddp_dist_backend auto without CUDA", "nccl", "auto takes gloo on CPU and NCCL on CUDA.")
    if cfg.fp32_grad_accumulation and (cfg.fp16 or cfg.bf16) and cfg.sharded_data_parallel_degree > 1:
        _refuse(
            "_fp32_grad_accumulation false beside sharded_data_parallel_degree",
            "true",
            "Sharded gradients have the type in which the model works. Remove one of the two.",
        )
    return (*_without_effect(cfg), *_without_sharding(cfg))


def _without_effect(cfg: Parameters) -> Iterator[str]:
    for name, usual in WITHOUT_EFFECT.items():
        if getattr(cfg, name) != usual and (name not in SHARDING or cfg.sharded_data_parallel_degree > 1):
            yield f"{name} has no effect"
    if cfg.fp32_grad_accumulation and not (cfg.fp16 or cfg.bf16):
        yield "_fp32_grad_accumulation has no effect without fp16 or bf16"


def _without_sharding(cfg: Parameters) -> Iterator[str]:
    idle = [name for name, usual in SHARDING.items() if getattr(cfg, name) != usual]
    if idle and cfg.sharded_data_parallel_degree == 1:
        yield f"no effect without sharded_data_parallel_degree: {', '.join(idle)}"


def _refuse(expected: str, actual: str, hint: str) -> None:
    raise ContractError(f"expected {expected}, found {actual}", where=VARIABLE, hint=hint)
