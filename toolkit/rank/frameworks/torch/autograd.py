"""Private names of torch's autograd graph: its nodes, and the hooks for the tensors that it saves."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd import graph

from ..private_names import find_name, find_or_report, report_missing

# Nodes.


def _node_class(function: type[torch.autograd.Function]) -> Any:
    """Return the class of the autograd nodes of *function*, None: torch does not show it."""
    return getattr(function, "_backward_cls", None)


def is_node_of(node: Any, function: type[torch.autograd.Function]) -> bool:
    """Return whether *node* of an autograd graph is one of *function*'s."""
    node_class = _node_class(function)
    return node_class is not None and isinstance(node, node_class)


def observe_node_hooks(function: type[torch.autograd.Function], note: Callable[[Any, bool], None]) -> bool:
    """Call *note*(node, is_prehook) whenever a hook is registered with a node of *function*.

    A prehook reads the gradients of the node's outputs, any other hook also those of its inputs. Returns False, and
    changes nothing, if one of the methods is missing.
    """
    node_class = _node_class(function)
    # Tensor.register_hook calls the third one for a node's output.
    are_prehooks = {"register_hook": False, "register_prehook": True, "_register_hook_dict": True}
    missing = [name for name in are_prehooks if not hasattr(node_class, name)]
    if missing:
        report_missing(
            "torch", f"autograd.{function.__name__}._backward_cls.{missing[0]}", "gradients pass through partition 0"
        )
        return False
    for name, is_prehook in are_prehooks.items():
        setattr(node_class, name, _observed(getattr(node_class, name), note, is_prehook))
    return True


def _observed(original: Callable[..., Any], note: Callable[[Any, bool], None], is_prehook: bool) -> Callable[..., Any]:
    def register(node: Any, *args: Any) -> Any:
        note(node, is_prehook)
        return original(node, *args)

    return register


def can_number_nodes() -> bool:
    """Return whether torch numbers the nodes of the graph in the order in which they are made."""
    consequence = "the times of modules are estimated by operations"
    return find_or_report(torch, "_C._autograd._get_sequence_nr", consequence) is not None


def get_next_node_number() -> int:
    """Return the number of the next node that this thread makes."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def get_node_number(node: Any) -> int:
    """Return the number of *node*."""
    number: int = node._sequence_nr()
    return number


def is_in_backward() -> bool:
    """Return whether this thread is inside a backward pass; False, where torch does not tell."""
    return _find_current_node()() is not None


@functools.cache
def _find_current_node() -> Callable[[], object]:
    consequence = "recomputed modules count as called twice in the profiling pass"
    return find_or_report(torch, "_C._current_autograd_node", consequence) or _no_node


def _no_node() -> None:
    return None


# Hooks for saved tensors.

_autograd: Any = find_name(torch, "_C._autograd")
_SAVED_TENSOR_HOOKS = (
    "_top_saved_tensors_default_hooks",
    "_pop_saved_tensors_default_hooks",
    "_push_saved_tensors_default_hooks",
)
_original_disable = graph.disable_saved_tensors_hooks


class _Counter:
    """A hook that `_set_counters_aside` may turn off for a while."""

    def __init__(self, pack: Callable[[Any], Any]) -> None:
        self.pack = pack

    def __call__(self, tensor: Any) -> Any:
        return self.pack(tensor)


def count_saved(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> AbstractContextManager[object]:
    """Return saved_tensors_hooks that torch.func accepts: they are off inside its functions."""
    if all(hasattr(_autograd, name) for name in _SAVED_TENSOR_HOOKS):
        if graph.disable_saved_tensors_hooks is not _set_counters_aside:
            graph.disable_saved_tensors_hooks = _set_counters_aside
    else:
        report_missing("torch", f"_C._autograd.{_SAVED_TENSOR_HOOKS[0]}", "torch.func refuses to run inside a step")
    hooks: AbstractContextManager[object] = graph.saved_tensors_hooks(_Counter(pack), unpack)
    return hooks


@contextmanager
def _set_counters_aside(error_message: str) -> Iterator[None]:
    """Replace torch's disable_saved_tensors_hooks, which torch.func calls: it refuses hooks, but not counters."""
    counters = []
    while (top := _autograd._top_saved_tensors_default_hooks(False)) is not None and isinstance(top[0], _Counter):
        counters.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        with _original_disable(error_message):
            yield
    finally:
        for pack, unpack in reversed(counters):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)
