"""smp.init and partitions for TensorFlow."""

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism.parameters import Parameters
from toolkit.rank.frameworks import tensorflow as private
from toolkit.rank.frameworks.private_names import MissingNameError
from toolkit.rank.mesh.position import rank_position
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf.manual import MANUAL
from toolkit.rank.modelparallel.tf.replicas import GRADIENT_AVERAGER

# The parameters that only PyTorch's half has: in TensorFlow's they must have their defaults.
TORCH_ONLY = (
    "ddp",
    "offload_activations",
    "activation_loading_horizon",
    "tensor_parallel_degree",
    "fp16",
    "fp16_params",
    "bf16",
    "shard_optimizer_state",
    "prescaled_batch",
    "skip_tracing",
    "sharded_data_parallel_degree",
    "sdp_reduce_bucket_size",
    "sdp_param_persistence_threshold",
    "sdp_max_live_parameters",
    "sdp_hierarchical_allgather",
    "sdp_gradient_clipping",
    "ddp_dist_backend",
    "fast_mode",
    "static_mode",
    "delayed_parameter_initialization",
    "match_weights",
    "checkpoint_attentions",
    "fp32_grad_accumulation",
    "overlapping_allreduce",
)


class State:
    """`smp.state`: the values of the library that scripts read."""

    @property
    def cfg(self) -> Parameters:
        """The job's parameters."""
        return world.current().cfg

    @property
    def initialized(self) -> bool:
        """True after smp.init()."""
        return world.is_begun()


state = State()


def init(config: Mapping[str, Any] | None = None) -> None:
    """Connect this rank with the others. All ranks call it, before anything else of the library.

    The parameters are those of the platform (SM_HP_MP_PARAMETERS), completed by *config*. A second call does nothing.
    With parameter horovod, this also starts Horovod, among the ranks that hold the same part of the model.

    Raises:
        ContractError: wrong parameters, one that only PyTorch's half has, a number of ranks that does not fit, or
            replicas without parameter horovod.
        SMPError: the ranks were not started by mpirun, or mpi4py is missing, or TensorFlow lacks a private name.
    """
    from toolkit.rank.modelparallel.tf.gradients import supply_get_gradients, warn_of_norms

    if world.is_begun():
        if config is not None and world.read_parameters(config, os.environ) != world.current().cfg:
            raise SMPError("smp.init() was called before with other parameters: call it once")
        return
    position = rank_position(os.environ)
    world.check(config, position, os.environ)
    _check_parameters(world.read_parameters(config, os.environ), position.size)
    if position.rank == 0:
        sys.stderr.write("".join(f"[toolkit] smp: {note}\n" for note in world.notes(config, os.environ)))
    exchange = _choose_exchange(position.size, position.launcher)
    _check_tensorflow()
    current_world = world.begin(config, position, exchange, os.environ)
    GRADIENT_AVERAGER.connect(current_world)
    supply_get_gradients()
    warn_of_norms()
    atexit.register(shutdown)


def shutdown() -> None:
    """Say goodbye to the other ranks. It also runs at exit."""
    atexit.unregister(shutdown)
    world.end()


def partition(index: int) -> AbstractContextManager[None]:
    """Within the block, the layers that are made or called belong to partition *index* (with auto_partition false)."""
    return MANUAL.within(index)


def _check_parameters(cfg: Parameters, size: int) -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Parameters)}
    for name in TORCH_ONLY:
        if getattr(cfg, name) != defaults[name]:
            raise ContractError(
                f"expected {name} {defaults[name]!r}, found {getattr(cfg, name)!r}: only the PyTorch half has it",
                where="mp_parameters",
                hint="Remove the parameter, or train with PyTorch.",
            )
    if size > cfg.partitions and not cfg.horovod:
        raise ContractError(
            f"expected horovod true, because {size} ranks are {size // cfg.partitions} replicas of the model, which "
            "would train apart",
            where="mp_parameters",
            hint=f"Add it, or start {cfg.partitions} ranks.",
        )


def _check_tensorflow() -> None:
    import tensorflow as tf

    try:
        private.check_operations(tf)
    except MissingNameError as error:
        raise SMPError(
            f"{error}: expected it, because a step orders by it what it sends and receives. Install TensorFlow 2.21."
        ) from error


def _choose_exchange(size: int, launcher: str) -> world.Exchange:
    if size == 1:
        return lambda value: [value]
    if launcher != "mpirun":
        raise SMPError(
            f"smdistributed.modelparallel.tensorflow needs ranks that mpirun started, found {launcher or 'none'}. Ask "
            "for the mpi distribution."
        )
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise SMPError(f"expected the package mpi4py, over which the ranks meet; found: {error}") from error
    exchange: world.Exchange = MPI.COMM_WORLD.allgather
    return exchange
