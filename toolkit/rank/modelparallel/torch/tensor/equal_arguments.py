"""Checks that tensor parallel ranks call a step with fitting arguments: unequal shapes would corrupt their exchange."""

import zlib
from typing import Any

import torch
from torch import Tensor

from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel import objects, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import wire


def check_equal_arguments(args: Any, kwargs: Any, *, is_first: bool) -> None:
    """Compare the shapes of a step's arguments with those of the other tensor parallel ranks, which call this, too.

    With prescaled_batch the values must be equal; in the first step they are compared. The random numbers of the step
    are then the first rank's, so that dropout between distributed modules is equal, too.

    Raises:
        SMPError: they differ.
    """
    this_world = world.current()
    if len(this_world.group("tp")) == 1:
        return
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    shapes = [tuple(tensor.shape) for tensor in tensors]
    is_prescaled = this_world.cfg.prescaled_batch
    sums = [zlib.crc32(buffer) for buffer in wire.get_buffers(tensors)] if is_first and is_prescaled else []
    random = _random_states() if is_prescaled else []
    ranks_arguments = objects.allgather((shapes, sums, random), objects.CommGroup.TP_GROUP)
    first = this_world.group("tp")[0]
    for rank, (rank_shapes, rank_sums, _) in zip(this_world.group("tp"), ranks_arguments, strict=True):
        if rank_shapes != ranks_arguments[0][0]:
            raise SMPError(
                f"@smp.step: expected tensors of equal shapes on the ranks of a tensor parallel group, found "
                f"{ranks_arguments[0][0]} on rank {first} and {rank_shapes} on rank {rank}: give all ranks batches of "
                "one size (DataLoader's drop_last=True)"
            )
        if rank_sums != ranks_arguments[0][1]:
            raise SMPError(
                "@smp.step: expected equal samples on the ranks of a tensor parallel group, because prescaled_batch "
                f"is true, found others on rank {rank} than on rank {first}: choose the samples by smp.rdp_rank() and "
                "smp.rdp_size(), or set prescaled_batch to false"
            )
    for number, state in enumerate(ranks_arguments[0][2]):
        _set_random_state(number, state)


def _random_states() -> list[Tensor]:
    """Return the states of the CPU's generator and, if there is one, of this rank's CUDA device's."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]


def _set_random_state(number: int, state: Tensor) -> None:
    (torch.set_rng_state, torch.cuda.set_rng_state)[number](state)
