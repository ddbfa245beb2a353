"""shard_optimizer_state: each replica holds the optimizer state of some parameters and updates those for all.

Whole parameters are dealt out, the largest first, to the replica with the fewest elements so far. That works with every
optimizer, also with one that looks at a whole parameter (LAMB).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from toolkit.rank.modelparallel.torch import api
from toolkit.rank.modelparallel.torch.replicas import is_distributed, is_spread
from toolkit.rank.modelparallel.torch.sharded import local_part
from toolkit.rank.modelparallel.torch.tensor.sharding import whole_shape
from toolkit.rank.modelparallel.world import World


class Shards:
    """The parameters that each rank of *group* updates."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._owned: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size(group))]

    def deal(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Deal out *parameters*, equal on all ranks, and return those of this rank."""
        dealt = deal_parameters(parameters, len(self._owned))
        for owned, more in zip(self._owned, dealt, strict=True):
            owned += more
        return dealt[dist.get_rank(self._group)]

    @torch.no_grad()
    def share(self) -> None:
        """Give every rank the parameters that each one updated."""
        running = []
        for owner, parameters in enumerate(self._owned):
            source = dist.get_global_rank(self._group, owner)
            running += [
                dist.broadcast(parameter.data, source, group=self._group, async_op=True) for parameter in parameters
            ]
        for broadcast in running:
            broadcast.wait()


def deal_parameters(parameters: Sequence[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Return the parameters of each of *size* ranks, in the given order; the same on all ranks."""
    elements, chosen = [0] * size, dict[int, int]()
    # Whole sizes: tensor parallel ranks, whose parts may differ in size, deal alike.
    element_counts = [math.prod(whole_shape(parameter)) for parameter in parameters]
    for index in sorted(range(len(parameters)), key=lambda index: (-element_counts[index], index)):
        owner = elements.index(min(elements))
        chosen[index] = owner
        elements[owner] += element_counts[index]
    return [
        [parameter for index, parameter in enumerate(parameters) if chosen[index] == owner] for owner in range(size)
    ]


def compute_global_norm(
    gradients: Sequence[tuple[nn.Parameter, torch.Tensor]], kind: float, this_world: World, device: torch.device
) -> float:
    """Return the norm of the whole model's gradients, of which *gradients* are this rank's; all ranks call it.

    *kind* is the order of the norm, also infinity. What several ranks hold counts on one of them.
    """
    norms_of_parts = [
        torch.linalg.vector_norm(_wide(local_part(gradient)), kind).double()
        for parameter, gradient in gradients
        if _counts(parameter, this_world)
    ]
    infinite = kind == float("inf")
    total = torch.zeros(1, dtype=torch.float64, device=device)
    if norms_of_parts:
        norms = torch.stack(norms_of_parts)
        total += norms.max() if infinite else norms.pow(kind).sum()
    sharded = this_world.cfg.shard_optimizer_state or this_world.cfg.sharded_data_parallel_degree > 1
    group = api.get_world_process_group() if sharded else api.get_mp_process_group()
    dist.all_reduce(total, op=dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=group)
    return float(total.item()) if infinite else float(total.item() ** (1 / kind))


def _wide(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def _counts(parameter: nn.Parameter, this_world: World) -> bool:
    """Return whether this rank is the first that holds these elements of *parameter*."""
    if this_world.cfg.sharded_data_parallel_degree > 1:
        replica, shard = divmod(this_world.rank_in("rdp"), this_world.cfg.sharded_data_parallel_degree)
        return replica == 0 and (shard == 0 or is_spread(parameter))
    return this_world.rank_in("tp") == 0 or is_distributed(parameter)
