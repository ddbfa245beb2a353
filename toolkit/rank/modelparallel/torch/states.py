"""The state of a partitioned model, gathered from its ranks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from toolkit.rank.modelparallel import objects
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import wire
from toolkit.rank.modelparallel.world import World

PART, TAKEN = "smp.state.part", "smp.state.taken"


def select_local(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of *state* whose values are on this rank."""
    return {
        name: value for name, value in state.items() if not (isinstance(value, Tensor) and value.device.type == "meta")
    }


def gather(part: dict[str, Any], this_world: World, *, to_first: bool) -> dict[str, Any] | None:
    """Return the parts of all ranks of the pipeline, which call this together; None where another rank gets them.

    *part* is this rank's. *to_first*: the rank with partition 0 alone gets them, else all do.
    """
    group = this_world.group("pp")
    receivers = group[:1] if to_first else group
    skeleton, tensors = wire.pack(part)
    for rank in receivers:
        if rank != this_world.rank:
            this_world.messenger.send(rank, PART, None, (skeleton, wire.describe(tensors)), wire.get_buffers(tensors))
    state: dict[str, Any] | None = dict(part) if this_world.rank in receivers else None
    if state is not None:
        for rank in group:
            if rank != this_world.rank:
                message = objects.receive(rank, PART, None, "the gathering of a state")
                part_skeleton, metas = message.payload
                part_tensors = wire.rebuild_tensors(metas, message.buffers, torch.device("cpu"))
                state.update(wire.unpack(part_skeleton, part_tensors))
                this_world.messenger.send(rank, TAKEN)
    for rank in receivers:  # Until then the parameters, which are sent from where they are, must not change.
        if rank != this_world.rank:
            this_world.messenger.receive(rank, TAKEN)
    return state


def check(state: Mapping[str, Any], required: Mapping[str, Any], allowed: Mapping[str, Any]) -> None:
    """Check that *state* has all names of *required*, and none that *allowed* has not.

    Raises:
        SMPError: it does not.
    """
    missing, unknown = sorted(required.keys() - state.keys()), sorted(state.keys() - allowed.keys())
    if missing or unknown:
        raise SMPError(
            f"expected the state of this model, found one without {missing[:5] or 'nothing'} and with the unknown "
            f"{unknown[:5] or 'nothing'}: give the state of a model of equal structure, or strict=False"
        )
