"""Private names of torch that model parallelism uses, each in a function of its own.

Read in torch 2.9 to 2.13. A function that a feature depends on looks first whether the name is there. If it is missing,
one line of the log says so, once, and the feature is off; without `_compiled_call_impl` a model cannot be partitioned.
"""

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError

__all__ = ["TorchDispatchMode", "pytree"]


@functools.cache
def _report(name: str, consequence: str) -> None:
    if world.is_begun():
        world.say(f"torch {torch.__version__} has no {name}: {consequence}")


# Tensors.


def version_of(tensor: Tensor) -> int:
    """Return the number of changes of *tensor* in place; inference tensors have none."""
    return 0 if tensor.is_inference() else tensor._version


def storage_id(tensor: Tensor) -> int:
    """Return the address of *tensor*'s storage."""
    address: int = tensor.untyped_storage()._cdata
    return address


def is_used(tensor: Tensor) -> bool:
    """Return whether an autograd graph may hold *tensor*: False, where torch does not count its users."""
    count_users = getattr(tensor, "_use_count", None)
    return count_users is not None and count_users() > 1


def swap_tensors(tensor: Tensor, other: Tensor) -> None:
    """Swap the contents and classes of two tensors, also of one that a graph or a weak reference holds.

    torch.utils.swap_tensors does the same, and refuses such a tensor.
    """
    swap_impl = getattr(torch._C, "_swap_tensor_impl", None)
    if swap_impl is None:
        torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
        return
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    swap_impl(tensor, other)


def without_torch_function() -> AbstractContextManager[object]:
    """Return a context in which tensors of subclasses are ordinary tensors for torch's functions."""
    context: AbstractContextManager[object] = torch._C.DisableTorchFunctionSubclass()
    return context


# Modules.


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of *module* itself by name, also those under several names."""
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of *module* itself by name."""
    return {name: buffer for name, buffer in module._buffers.items() if buffer is not None}


def own_children(module: nn.Module) -> dict[str, Any]:
    """Return the modules that *module* itself holds by name, None for a name without a module."""
    return dict(module._modules)


def values_of(module: nn.Module, name: str) -> list[Any]:
    """Return the module or parameter that *module* itself holds as *name*, None if that is registered."""
    return [holder[name] for holder in (module._modules, module._parameters) if name in holder]


def has_tensor_names(module: nn.Module) -> bool:
    """Return whether *module* itself has names of parameters or buffers, also of absent ones."""
    return bool(module._parameters or module._buffers)


def set_buffer(module: nn.Module, name: str, buffer: Tensor) -> None:
    """Replace the buffer *name* of *module* and nothing else."""
    module._buffers[name] = buffer


def get_call_impl(module: nn.Module) -> Callable[..., Any]:
    """Return the function that a call of *module* runs: its hooks and its forward."""
    call_impl: Callable[..., Any] = getattr(module, "_compiled_call_impl", None) or module._call_impl
    return call_impl


def set_call_impl(module: nn.Module, call_impl: Callable[..., Any]) -> None:
    """Let a call of *module* run *call_impl* instead: Module.__call__ looks for _compiled_call_impl first.

    Raises:
        SMPError: this release of torch does not look for it.
    """
    if not hasattr(nn.Module, "_compiled_call_impl"):
        raise SMPError(
            f"expected a torch whose modules have _compiled_call_impl (2.9 to 2.13), found torch {torch.__version__}: "
            "install one of these releases, or set the parameter partitions to 1"
        )
    module._compiled_call_impl = call_impl


def drop_weight_references(rnn: nn.RNNBase) -> None:
    """Drop the weak references of *rnn* to its parameters, which would hold them."""
    references = getattr(rnn, "_flat_weight_refs", None)
    if references is not None:
        rnn._flat_weight_refs = [None] * len(references)


def copy_versions(source: Any, target: Any) -> None:
    """Give the state *target* the versions of the modules in the state *source*."""
    if hasattr(source, "_metadata"):
        target._metadata = source._metadata


# Hooks of modules.

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def hook_numbers(module: nn.Module) -> Hashable:
    """Return the numbers of the hooks of *module*: torch numbers them by registration, and gives no number again."""
    return tuple(tuple(getattr(module, name)) for name in _HOOKS)


def global_hook_numbers() -> Hashable:
    """Return the numbers of the hooks of all modules."""
    return tuple(tuple(getattr(torch_module, f"_global{name}", ())) for name in _HOOKS)


def has_hooks(module: nn.Module) -> bool:
    """Return whether *module* has hooks of its own."""
    return any(getattr(module, name) for name in _HOOKS)


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether *module* has hooks of its own for its forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_global_hooks() -> bool:
    """Return whether there are hooks for all modules."""
    return any(getattr(torch_module, f"_global{name}", ()) for name in _HOOKS)


# The autograd graph.


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
        _report(f"{function.__name__}._backward_cls.{missing[0]}", "gradients pass through partition 0")
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
    if hasattr(torch._C._autograd, "_get_sequence_nr"):
        return True
    _report("_C._autograd._get_sequence_nr", "the times of modules are estimated by operations")
    return False


def next_node_number() -> int:
    """Return the number of the next node that this thread makes."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def node_number(node: Any) -> int:
    """Return the number of *node*."""
    number: int = node._sequence_nr()
    return number


def is_in_backward() -> bool:
    """Return whether this thread is inside a backward pass; False, where torch does not tell."""
    current_node = getattr(torch._C, "_current_autograd_node", None)
    if current_node is None:
        _report("_C._current_autograd_node", "recomputed modules count as called twice in the profiling pass")
        return False
    return current_node() is not None


def operator_of(function: Any) -> Any:
    """Return the operator of *function*, one of its overloads."""
    return getattr(function, "_overloadpacket", function)


# Hooks for saved tensors.

_autograd: Any = torch._C._autograd
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
        _report(f"_C._autograd.{_SAVED_TENSOR_HOOKS[0]}", "torch.func refuses to run inside a step")
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


# torch.distributed.pipelining.


def set_stage_count(schedule: Any, count: int) -> None:
    """Let *schedule* order its work as if there were *count* stages."""
    if hasattr(schedule, "_num_stages"):
        schedule._num_stages = count
