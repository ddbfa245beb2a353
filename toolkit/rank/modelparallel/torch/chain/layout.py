"""Finds out whether a model is a chain, and which of its modules belong to each stage.

A chain is an nn.Sequential, alone or inside modules that hold nothing else, whose children lie on devices 0, 1, 2, ...
in this order. Sequentials inside it that are divided between devices count as their children.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from toolkit.rank.frameworks.torch.modules import get_own_children, has_global_hooks, has_tensor_names
from toolkit.rank.modelparallel.torch.chain.structure import has_hooks

NamedModule = tuple[str, Any]
MARK = "_smp_checkpointing"  # activation.py's.


class NotAChainError(Exception):
    """The model is not a chain; the text says why."""


class ChainLink(NamedTuple):
    """A module of the chain, and the Sequential that it is in."""

    path: str
    module: Any
    parent: Any


class Layout(NamedTuple):
    """The modules of a chain.

    `stages[device]`: those of the device, in order. `wrappers`: the (path, module) around the chain, the outermost
    first, the last one the Sequential.
    """

    stages: tuple[tuple[ChainLink, ...], ...]
    wrappers: tuple[NamedModule, ...]

    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Return the paths of each stage's modules."""
        return tuple(tuple(f"{link.path} ({type(link.module).__name__})" for link in stage) for stage in self.stages)


def find_layout(root: Any, device_of: Callable[[str], int], devices: int) -> Layout:
    """Return the layout of *root*, whose module at a path is on device `device_of(path)`, 0 to *devices* - 1.

    Raises:
        NotAChainError: it is none.
    """
    wrappers = [("", root)]
    while not _is_sequential(wrappers[-1][1]):
        wrappers.append(_only_child(*wrappers[-1]))
    if has_global_hooks():
        raise NotAChainError("there are hooks for all modules")
    for path, module in wrappers:
        if has_hooks(module):
            raise NotAChainError(f"{_describe_module(path, module)} has hooks")
    stages: list[list[ChainLink]] = [[] for _ in range(devices)]
    last = 0
    for link in _links(*wrappers[-1], device_of):
        device = device_of(link.path)
        if device < last:
            raise NotAChainError(
                f"{_describe_module(link.path, link.module)} is in partition {device}, after a module of partition "
                f"{last}"
            )
        last = device
        stages[device].append(link)
    for device, stage in enumerate(stages):
        if not stage:
            raise NotAChainError(f"partition {device} has none of the modules of {_describe_module(*wrappers[-1])}")
    return Layout(tuple(map(tuple, stages)), tuple(wrappers))


def _only_child(path: str, module: Any) -> NamedModule:
    children = list(get_own_children(module).items())
    if len(children) != 1 or children[0][1] is None or has_tensor_names(module):
        raise NotAChainError(f"{_describe_module(path, module)} is not a torch.nn.Sequential, nor holds one alone")
    name, child = children[0]
    return _join_path(path, name), child


def _links(path: str, module: Any, device_of: Callable[[str], int]) -> Iterator[ChainLink]:
    for name, child in get_own_children(module).items():
        inside = _join_path(path, name)
        devices = {device_of(below) for below, _ in child.named_modules(prefix=inside, remove_duplicate=False)}
        if len(devices) == 1:
            yield ChainLink(inside, child, module)
        elif _is_sequential(child) and not has_hooks(child):
            yield from _links(inside, child, device_of)
        else:
            raise NotAChainError(f"{_describe_module(inside, child)} is divided between partitions {sorted(devices)}")


def _is_sequential(module: Any) -> bool:
    # Activation checkpointing sets a forward on the Sequential; activation.group_layers takes it into account.
    is_plain = "forward" not in vars(module) or MARK in vars(module)
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and is_plain


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _describe_module(path: str, module: Any) -> str:
    return f"{path or 'the model'} ({type(module).__name__})"
