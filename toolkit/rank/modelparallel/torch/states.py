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


def held(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of *state* is on this rank."""
    return {name: one for name, one in state.items() if not (isinstance(one, Tensor) and one.device.type == "meta")}


def gathered(mine: dict[str, Any], here: World, *, to_first: bool) -> dict[str, Any] | None:
    """Return the parts of all ranks of the pipeline, which call this together; None where another rank gets them.

    *mine* is this rank's. *to_first*: the rank with partition 0 alone gets them, else all do.
    """
    group = here.group("pp")
    receivers = group[:1] if to_first else group
    skeleton, tensors = wire.pack(mine)
    for rank in receivers:
        if rank != here.rank:
            here.messenger.send(rank, PART, None, (skeleton, wire.forms(tensors)), wire.buffers(tensors))
    found: dict[str, Any] | None = dict(mine) if here.rank in receivers else None
    if found is not None:
        for rank in group:
            if rank != here.rank:
                message = objects.receive(rank, PART, None, "the gathering of a state")
                its_skeleton, forms = message.payload
                its_tensors = wire.tensors_of(forms, message.buffers, torch.device("cpu"))
                found.update(wire.unpack(its_skeleton, its_tensors))
                here.messenger.send(rank, TAKEN)
    for rank in receivers:  # Until then the parameters, which are sent from where they are, must not change.
        if rank != here.rank:
            here.messenger.receive(rank, TAKEN)
    return found


def check(given: Mapping[str, Any], expected: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """See that the state *given* has all of *expected*, and nothing beside the *whole*.

    Raises:
        SMPError: it does not.
    """
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - whole.keys())
    if missing or unknown:
        raise SMPError(
            f"expected the state of this model, found one without {missing[:5] or 'nothing'} and with the unknown "
            f"{unknown[:5] or 'nothing'}: give the state of a model of equal structure, or strict=False"
        )
