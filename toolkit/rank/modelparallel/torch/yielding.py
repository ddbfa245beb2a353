"""Modules yield the execution token to tasks whose answer has arrived.

A rank computes in one thread at a time. While partition 0 runs its own layers, the results of other ranks wait there to
become the next requests, and those ranks wait, too. So a module yields before it begins, and before its backward pass
begins: the wait is then as long as one module, not as all of this rank's modules in a row. (A simulation of four
modules on each of two devices: the step of 16 microbatches takes 2.1 instead of 2.8 s.)

Only a module whose parent has parts on other partitions does so. In such a parent's forward other microbatches continue
at each call of a part on another partition, anyway; a module that lies on one partition whole is not interrupted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from toolkit.rank.frameworks.torch.modules import get_call_impl, set_call_impl
from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel.torch.remote import region
from toolkit.rank.modelparallel.torch.remote_tensor import RemoteTensor

YIELDS = "_smp_yields"


def install_yields(
    module: nn.Module, partitions: Mapping[str, int], own_partition: int, yield_token: Callable[[], None]
) -> None:
    """Let the parts of *module* on *own_partition* call *yield_token*; *partitions*: of every module by path.

    May be called again, when the model has more or other modules.
    """
    spanning = {
        parent
        for path, partition in partitions.items()
        for parent in _parents(path)
        if partition != partitions[parent] == own_partition
    }
    for path, part in module.named_modules():
        is_between = path != "" and path.rpartition(".")[0] in spanning
        yields = getattr(get_call_impl(part), YIELDS, False)
        has_parameters = next(part.parameters(), None) is not None
        if is_between and not yields and partitions[path] == own_partition and has_parameters:
            set_call_impl(part, _yielding(get_call_impl(part), yield_token))


def _parents(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts))]


def _yielding(run: Callable[..., Any], yield_token: Callable[[], None]) -> Callable[..., Any]:
    def before_backward(_gradient: torch.Tensor) -> None:
        yield_token()

    def yield_and_run(*args: Any, **kwargs: Any) -> Any:
        if region.checkpointed:  # It runs again in the backward pass, without any wait.
            return run(*args, **kwargs)
        yield_token()
        output = run(*args, **kwargs)
        if torch.is_grad_enabled():
            for leaf in pytree.tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and not isinstance(leaf, RemoteTensor) and leaf.grad_fn is not None:
                    leaf.register_hook(before_backward)  # type: ignore[no-untyped-call]
                    break
        return output

    setattr(yield_and_run, YIELDS, True)
    return yield_and_run
