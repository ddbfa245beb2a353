"""Activation checkpointing: a module's activations are dropped after the forward pass, and recomputed in the backward.

torch.utils.checkpoint (not re-entrant) does it. A module that spans partitions is not checkpointed itself, since its
recomputation would call other ranks: its largest parts that lie on one partition are.

With offload_activations the inputs of a checkpointed module, which are all that it keeps, go to the host's memory
(offload.py).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import offload
from toolkit.rank.modelparallel.torch.api import state
from toolkit.rank.modelparallel.torch.remote import region
from toolkit.records import Record

WHERE = "smp.set_activation_checkpointing"
# The attribute of a module that holds its plan, and of a module whose forward is checkpointed.
MARK, DONE = "_smp_checkpointing", "_smp_checkpointed"


class CheckpointPlan(Record, frozen=True, kw_only=True):
    """The options of a checkpointed module. `group_size`: the number of layers in one group, 0: all."""

    preserve_rng_state: bool = True
    pack_args_as_tuple: bool = False
    group_size: int = 1


def set_activation_checkpointing(
    module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False, strategy: str = "each"
) -> None:
    """Checkpoint *module*, a part of the model; an nn.Sequential is cut by *strategy*.

    Of an nn.ModuleList, which has no forward of its own, each module is checkpointed by itself, whatever *strategy*
    says: it groups what is kept, not what is computed.

    `strategy`: "each" layer by itself, "group_N": N consecutive layers together, "contiguous": all consecutive layers
    of one partition together. `preserve_rng_state`: the recomputation draws the same random numbers (dropout).
    `pack_args_as_tuple`: a layer of an nn.Sequential takes a tuple that the layer before returns as one argument;
    without it, as several.

    Raises:
        SMPError: no module, an unknown strategy, or an option of an nn.Sequential for another module.
    """
    if not isinstance(module, nn.Module):
        raise SMPError(
            f"{WHERE}: expected a module of the model, found {type(module).__name__}: for a function call "
            "smp.patches.checkpoint.checkpoint(function, ...) in the model's forward"
        )
    if isinstance(module, nn.ModuleList):
        for child in module:
            set_activation_checkpointing(child, preserve_rng_state=preserve_rng_state)
        return
    if not isinstance(module, nn.Sequential) and (pack_args_as_tuple or strategy != "each"):
        raise SMPError(
            f"{WHERE}: expected strategy and pack_args_as_tuple for an nn.Sequential, found them for "
            f"{type(module).__name__}: leave them out, or give the nn.Sequential in it"
        )
    plan = CheckpointPlan(
        preserve_rng_state=preserve_rng_state, pack_args_as_tuple=pack_args_as_tuple, group_size=_group_size(strategy)
    )
    setattr(module, MARK, plan)


def checkpoint_marked_modules(model: Any) -> None:
    """Checkpoint the marked modules of *model*, a DistributedModel that was just partitioned; offload if configured.

    Raises:
        SMPError: offload_activations without a checkpointed module in the whole model.
    """
    this_world = world.current()
    marked = [(path, module) for path, module in model.module.named_modules() if MARK in vars(module)]
    if this_world.cfg.offload_activations and not marked:
        raise SMPError(
            "expected checkpointed modules beside offload_activations, found none: call "
            "smp.set_activation_checkpointing before the first step, or remove the parameter"
        )
    partition = this_world.rank_in("pp")
    for path, module in marked:
        _apply(path, module, getattr(module, MARK), model.assignment().__getitem__, partition)
    if this_world.cfg.offload_activations:
        offload.start_offloading(model.device, this_world.cfg.activation_loading_horizon)


def checkpoint(function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """Call *function*, dropping what it saves for the backward pass and computing it again there.

    For use in the model's forward (smp.patches.checkpoint.checkpoint). A module that is not whole on this rank's
    partition is called without.
    """
    if isinstance(function, nn.Module) and not _is_local(function):
        return function(*args, **kwargs)
    return _run(function, CheckpointPlan(preserve_rng_state=preserve_rng_state), args, kwargs)


def checkpoint_sequential(
    sequential: nn.Sequential,
    input: Any,
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """Call *sequential* with its layers checkpointed by *strategy*; see set_activation_checkpointing.

    Raises:
        SMPError: an unknown strategy.
    """
    plan = CheckpointPlan(
        preserve_rng_state=preserve_rng_state, pack_args_as_tuple=pack_args_as_tuple, group_size=_group_size(strategy)
    )
    layers = list(sequential)
    return _Groups(plan, layers, {id(layer) for layer in layers})(input)


def group_layers(sequential: nn.Module, layers: Sequence[nn.Module]) -> Callable[[Any], Any]:
    """Return a function that calls *layers*, consecutive ones of *sequential*, by the plan of *sequential*, if any."""
    plan = getattr(sequential, MARK, None)
    if plan is None:
        return _Groups(CheckpointPlan(pack_args_as_tuple=True), layers, set())
    return _Groups(plan, layers, {id(layer) for layer in layers})


class _Groups:
    """Calls *layers* in order; consecutive ones that are in *local* are checkpointed in groups."""

    def __init__(self, plan: CheckpointPlan, layers: Sequence[nn.Module], local: set[int]) -> None:
        self._plan = plan
        self._groups: list[tuple[bool, list[nn.Module]]] = []
        for is_local, run in groupby(layers, key=lambda layer: id(layer) in local):
            run_layers = list(run)
            size = plan.group_size or len(run_layers)
            self._groups += [(is_local, run_layers[begin : begin + size]) for begin in range(0, len(run_layers), size)]

    def __call__(self, value: Any) -> Any:
        for is_local, group in self._groups:
            value = _run(self._call, self._plan, (group, value), {}) if is_local else self._call(group, value)
        return value

    def _call(self, group: Sequence[nn.Module], value: Any) -> Any:
        for layer in group:
            unpacks = isinstance(value, tuple) and not self._plan.pack_args_as_tuple
            value = layer(*value) if unpacks else layer(value)
        return value


def _is_local(module: nn.Module) -> bool:
    model = state.model
    if model is None or not model.partitioned or (path := model.path_of(module)) is None:
        return True
    return _devices(path, module, model.assignment().__getitem__) == {world.current().rank_in("pp")}


def _apply(
    path: str, module: nn.Module, plan: CheckpointPlan, device_of: Callable[[str], int], own_device: int
) -> None:
    """Checkpoint *module*, or the largest parts of it that lie on one partition, if that is *own_device*."""
    children = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
    if isinstance(module, nn.Sequential):
        local = {id(child) for name, child in children if _devices(name, child, device_of) == {own_device}}
        module.forward = _Groups(plan, list(module), local)  # type: ignore[method-assign]
    elif len(_devices(path, module, device_of)) == 1 and not isinstance(module, nn.ModuleList | nn.ModuleDict):
        if device_of(path) == own_device:
            _wrap(module, plan)
        return
    for name, child in children:
        _apply(name, child, plan, device_of, own_device)


def _wrap(module: nn.Module, plan: CheckpointPlan) -> None:
    if DONE in vars(module):
        return
    module.forward = _Checkpointed(module.forward, plan)
    setattr(module, DONE, True)


class _Checkpointed:
    """A module's *forward*, checkpointed by *plan*. A class: a module that is pickled takes it along."""

    def __init__(self, forward: Callable[..., Any], plan: CheckpointPlan) -> None:
        self._forward, self._plan = forward, plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _run(self._forward, self._plan, args, kwargs)


def _devices(path: str, module: nn.Module, device_of: Callable[[str], int]) -> set[int]:
    return {device_of(name) for name, _ in module.named_modules(prefix=path)}


def _run(function: Callable[..., Any], plan: CheckpointPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call *function* checkpointed, or as it is inside another checkpointed function or without gradients."""
    if region.checkpointed or not torch.is_grad_enabled():
        return function(*args, **kwargs)
    calls = itertools.count()

    def run(*args: Any, **kwargs: Any) -> Any:
        with _inside(again=next(calls) > 0):
            return function(*args, **kwargs)

    # torch keeps the inputs as tensors that autograd saves, so hooks for those move them.
    with offload.active.call() if offload.active else nullcontext():
        return torch_checkpoint(run, *args, use_reentrant=False, preserve_rng_state=plan.preserve_rng_state, **kwargs)


@contextmanager
def _inside(again: bool) -> Iterator[None]:
    region.checkpointed, region.again = True, again
    try:
        yield
    finally:
        region.checkpointed = region.again = False


def _group_size(strategy: str) -> int:
    kind, _, number = strategy.partition("_")
    if strategy == "each":
        return 1
    if strategy == "contiguous":
        return 0
    if kind == "group" and number.isdigit() and int(number) > 0:
        return int(number)
    raise SMPError(
        f'{WHERE}: expected strategy "each", "contiguous" or "group_N" with N of 1 or more, found {strategy!r}'
    )
