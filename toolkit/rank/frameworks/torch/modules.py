"""Private names of torch's modules: what a module holds, its hooks, and what runs when it is called."""

import sys
import weakref

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ..private_names import MissingNameError, describe_missing, find_name, report_missing
from . import tensors

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from torch import Tensor

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_GLOBAL_HOOKS = tuple("_global" + name for name in _HOOKS)
# Of a module without which a model cannot be partitioned.
REQUIRED = ("_parameters", "_buffers", "_modules", "_call_impl", "_compiled_call_impl", *_HOOKS)


def require_partitioning_names() -> None:
    """Look whether torch has all private names without which a model cannot be partitioned.

    Raises:
        MissingNameError: it has not.
    """
    module = nn.Module()
    paths = [f"nn.Module.{name}" for name in REQUIRED if not hasattr(module, name)]
    paths += [f"Tensor.{name}" for name in tensors.REQUIRED if not hasattr(torch.Tensor, name)]
    if paths:
        raise MissingNameError(describe_missing("torch", paths[0]))


def get_own_parameters(module: "nn.Module") -> "dict[str, nn.Parameter]":
    """Return the parameters of *module* itself by name, also those under several names."""
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def get_own_buffers(module: "nn.Module") -> "dict[str, Tensor]":
    """Return the buffers of *module* itself by name."""
    return {name: buffer for name, buffer in module._buffers.items() if buffer is not None}


def get_own_children(module: "nn.Module") -> "dict[str, Any]":
    """Return the modules that *module* itself holds by name, None for a name without a module."""
    return dict(module._modules)


def get_own_values(module: "nn.Module", name: str) -> "list[Any]":
    """Return the module or parameter that *module* itself holds as *name*, None if that is registered."""
    return [holder[name] for holder in (module._modules, module._parameters) if name in holder]


def has_tensor_names(module: "nn.Module") -> bool:
    """Return whether *module* itself has names of parameters or buffers, also of absent ones."""
    return bool(module._parameters or module._buffers)


def set_buffer(module: "nn.Module", name: str, buffer: "Tensor") -> None:
    """Replace the buffer *name* of *module* and nothing else."""
    module._buffers[name] = buffer


def drop_weight_references(rnn: "nn.RNNBase") -> None:
    """Drop the weak references of *rnn* to its parameters, which would hold them."""
    references = getattr(rnn, "_flat_weight_refs", None)
    if references is not None:
        rnn._flat_weight_refs = [None] * len(references)


def copy_versions(source: "Any", target: "Any") -> None:
    """Give the state *target* the versions of the modules in the state *source*."""
    if hasattr(source, "_metadata"):
        target._metadata = source._metadata


# What runs when a module is called: Module.__call__ looks for _compiled_call_impl first, then for _call_impl.


def can_replace_calls(consequence: str) -> bool:
    """Return whether a call of a module can run another function; else a line of the log says what is off."""
    if hasattr(nn.Module, "_compiled_call_impl"):
        return True
    report_missing("torch", "nn.Module._compiled_call_impl", consequence)  # Before 2.1.
    return False


# Of the frame that looks for _compiled_call_impl: its `self` is the module that is called.
_CALL_CODE = getattr(getattr(nn.Module, "_wrapped_call_impl", None), "__code__", None)


class WatchedCall:
    """Runs what a call of *module* runs, between `enters`() and, if that is true, `leaves`().

    Compilers trace the call as if this was not there. Pickles and copies of a module hold None in its place; a module
    that was given the attributes of another one (DataParallel, clones of meta-learning) runs its own function. It does
    not hold the module, which is freed as soon as the script drops it.
    """

    __slots__ = ("_enters", "_leaves", "_module", "replaced")

    def __init__(self, module: "nn.Module", enters: "Callable[[], bool]", leaves: "Callable[[], None]") -> None:
        self.replaced: Callable[..., Any] | None = module._compiled_call_impl
        """What a call runs in place of the module's own function, None: nothing."""
        self._module: Callable[[], Any] = weakref.ref(module)
        self._enters, self._leaves = enters, leaves

    def __call__(self, *arguments: "Any", **keywords: "Any") -> "Any":
        if torch.compiler.is_compiling():
            return (self.replaced or self._module()._call_impl)(*arguments, **keywords)
        call = self.replaced
        if call is None:
            caller = sys._getframe(1)
            module = caller.f_locals["self"] if caller.f_code is _CALL_CODE else self._module()
            call = module._call_impl
        if not self._enters():
            return call(*arguments, **keywords)
        try:
            return call(*arguments, **keywords)
        finally:
            self._leaves()

    def __reduce__(self) -> "tuple[type[None], tuple[()]]":
        return type(None), ()


def watch_calls(module: "nn.Module", enters: "Callable[[], bool]", leaves: "Callable[[], None]") -> bool:
    """Tell *enters* of each later call of *module*, and *leaves* of its end if *enters* returned True.

    Return whether the calls were not watched before.
    """
    if isinstance(module._compiled_call_impl, WatchedCall):
        return False
    not_scripted = find_name(torch, "jit._recursive.ignored_attributes")
    if isinstance(not_scripted, list) and "_compiled_call_impl" not in not_scripted:
        not_scripted.append("_compiled_call_impl")  # Else torch.jit.script fails on a module that has one.
    module._compiled_call_impl = WatchedCall(module, enters, leaves)
    return True


def get_call_impl(module: "nn.Module") -> "Callable[..., Any]":
    """Return the function that a call of *module* runs: its hooks and its forward."""
    call_impl: Callable[..., Any] = getattr(module, "_compiled_call_impl", None) or module._call_impl
    return call_impl


def get_plain_call_impl(module: "nn.Module") -> "Callable[..., Any]":
    """Return the function that a call of *module* runs if no other is set."""
    return module._call_impl


def set_call_impl(module: "nn.Module", call_impl: "Callable[..., Any] | None") -> None:
    """Let a call of *module* run *call_impl*, None: its own function. Who watches the calls goes on to."""
    watched = module._compiled_call_impl
    if isinstance(watched, WatchedCall):
        watched.replaced = call_impl
    else:
        module._compiled_call_impl = call_impl


def get_replaced_call(module: "nn.Module") -> "Any":
    """Return what a call of *module* runs in place of its own function, None: nothing."""
    replaced = module._compiled_call_impl
    return replaced.replaced if isinstance(replaced, WatchedCall) else replaced


# Hooks of modules.


def list_hook_numbers(module: "nn.Module") -> "Hashable":
    """Return the numbers of the hooks of *module*: torch numbers them by registration, and gives no number again."""
    return tuple(tuple(getattr(module, name)) for name in _HOOKS)


def list_global_hook_numbers() -> "tuple[tuple[int, ...], ...]":
    """Return the numbers of the hooks of all modules, without those of `observe_all_calls`."""
    return tuple(_global_hook_numbers(name) for name in _GLOBAL_HOOKS)


def observe_all_calls(enters: "Callable[..., None]", leaves: "Callable[..., None]") -> "Callable[[], None]":
    """Have *enters* and *leaves* called at the beginning and the end of each call of a module; return what ends that.

    They take what torch's global hooks take, change nothing, and do not count as hooks that a script has set.
    """
    hooks = [
        torch_module.register_module_forward_pre_hook(_Observer(enters)),
        torch_module.register_module_forward_hook(_Observer(leaves), always_call=True),
    ]

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end


def has_own_hooks(module: "nn.Module") -> bool:
    """Return whether *module* has hooks of its own."""
    return any(getattr(module, name) for name in _HOOKS)


def has_forward_hooks(module: "nn.Module") -> bool:
    """Return whether *module* has hooks of its own for its forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_global_hooks() -> bool:
    """Return whether there are hooks for all modules, beside those of `observe_all_calls`."""
    return any(map(_global_hook_numbers, _GLOBAL_HOOKS))


class _Observer:
    """A global hook that only looks."""

    __slots__ = ("_function",)

    def __init__(self, function: "Callable[..., None]") -> None:
        self._function = function

    def __call__(self, *arguments: "Any") -> None:
        self._function(*arguments)


def _global_hook_numbers(name: str) -> "tuple[int, ...]":
    hooks = getattr(torch_module, name, {})
    return tuple(number for number, hook in hooks.items() if not isinstance(hook, _Observer))
