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
from toolkit.rank.modelparallel.torch.sharded import local
from toolkit.rank.modelparallel.torch.tensor.sharding import whole_shape
from toolkit.rank.modelparallel.world import World


class Shards:
    """The parameters that each rank of *group* updates."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._owned: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size(group))]

    def deal(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Deal out *parameters*, equal on all ranks, and return those of this rank."""
        dealt = deal(parameters, len(self._owned))
        for owned, more in zip(self._owned, dealt, strict=True):
            owned += more
        return dealt[dist.get_rank(self._group)]

    @torch.no_grad()
    def share(self) -> None:
        """Give every rank the parameters that each one updated."""
        running = []
        for owner, parameters in enumerate(self._owned):
            source = dist.get_global_rank(self._group, owner)
            running += [dist.broadcast(each.data, source, group=self._group, async_op=True) for each in parameters]
        for each in running:
            each.wait()


def deal(parameters: Sequence[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Return the parameters of each of *size* ranks, in the given order; the same on all ranks."""
    elements, chosen = [0] * size, dict[int, int]()
    # Whole sizes: tensor parallel ranks, whose parts may differ in size, deal alike.
    whole = [math.prod(whole_shape(each)) for each in parameters]
    for place in sorted(range(len(parameters)), key=lambda each: (-whole[each], each)):
        owner = elements.index(min(elements))
        chosen[place] = owner
        elements[owner] += whole[place]
    return [[each for place, each in enumerate(parameters) if chosen[place] == owner] for owner in range(size)]


def norm_everywhere(
    gradients: Sequence[tuple[nn.Parameter, torch.Tensor]], kind: float, here: World, device: torch.device
) -> float:
    """Return the norm of the whole model's gradients, of which *gradients* are this rank's; all ranks call it.

    *kind* is the order of the norm, also infinity. What several ranks hold counts on one of them.
    """
    own = [
        torch.linalg.vector_norm(_wide(local(gradient)), kind).double()
        for parameter, gradient in gradients
        if _counts(parameter, here)
    ]
    infinite = kind == float("inf")
    total = torch.zeros(1, dtype=torch.float64, device=device)
    if own:
        norms = torch.stack(own)
        total += norms.max() if infinite else norms.pow(kind).sum()
    sharded = here.cfg.shard_optimizer_state or here.cfg.sharded_data_parallel_degree > 1
    group = api.get_world_process_group() if sharded else api.get_mp_process_group()
    dist.all_reduce(total, op=dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM, group=group)
    return float(total.item()) if infinite else float(total.item() ** (1 / kind))


def _wide(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def _counts(parameter: nn.Parameter, here: World) -> bool:
    """Return whether this rank is the first that holds these elements of *parameter*."""
    if here.cfg.sharded_data_parallel_degree > 1:
        replica, place = divmod(here.rank_in("rdp"), here.cfg.sharded_data_parallel_degree)
        return replica == 0 and (place == 0 or is_spread(parameter))
    return here.rank_in("tp") == 0 or is_distributed(parameter)
