"""Pure: rules for the parameters of PyTorch's side, beyond their types: what excludes what, what has no effect."""

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism.parameters import VARIABLE, Parameters
from toolkit.parallelism.placement import Placement

SHARDING = {field.name: field.default for field in msgspec.structs.fields(Parameters) if field.name.startswith("sdp_")}
# Choices of AWS's runtime that change no result, with the defaults: how messages go, whether the first trace holds for
# all steps, how parameters are gathered (here the backend's choice).
WITHOUT_EFFECT = {"fast_mode": False, "static_mode": False, "sdp_hierarchical_allgather": True}


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
    for name, default in SHARDING.items():
        if cfg.sharded_data_parallel_degree == 1 and getattr(cfg, name) != default:
            _refuse(f"{name} only with sharded_data_parallel_degree", str(getattr(cfg, name)), "Remove it.")
    return tuple(f"{name} has no effect" for name, usual in WITHOUT_EFFECT.items() if getattr(cfg, name) != usual)


def _refuse(expected: str, found: str, hint: str) -> None:
    raise ContractError(f"expected {expected}, found {found}", where=VARIABLE, hint=hint)
