"""Finds the modules that train: the outermost ones that are called with gradients on in the first steps.

Wrappers that call one module of theirs (DistributedDataParallel, LightningModule, ...) are passed over: the module
inside is compiled, and the wrapper goes on to do its work around it. Of FSDP2 the innermost sharded units are compiled,
as torch's documentation advises: their parameters are gathered by hooks around them.

Whatever shows that the script compiles for itself, or does what compiled code cannot, is a reason to leave it alone.
"""

import functools
import os
import sys
from _thread import get_ident

import torch

from ...frameworks.torch.compiler import find_graph_task
from ...frameworks.torch.modules import get_replaced_call

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any

MOST_MODULES = 16
# Classes by the end of their names: what calls the module that trains, and has no computation of its own.
WRAPPERS = (
    "DistributedDataParallel",
    "LightningModule",
    "DeepSpeedEngine",
    "DataParallel",
)
OWN_COMPILATION = "the script uses torch.compile itself"
DOUBLE = "the script takes gradients of gradients (create_graph=True), which compiled code does not support"
LATE_DOUBLE = DOUBLE + "; if that step fails, set TOOLKIT_COMPILE=off"
_graph_task = find_graph_task()


class ModuleFinder:
    """Watches the first steps for the modules that train, and for reasons not to compile."""

    def __init__(self, failed: "Callable[[Exception], None]", doubles: "Callable[[], None]") -> None:
        """*failed* is called with an error of this, which must not reach the script; *doubles* when the script takes
        gradients of gradients after `stop`."""
        self._failed = failed
        self._doubles = doubles
        self.differentiates_inputs = False
        """An input was a leaf that requires a gradient."""
        self.modules: list[torch.nn.Module] = []
        """The outermost modules that train, in the order of their first calls."""
        self.refusal = ""
        """Why nothing of this script should be compiled, "" if it may be."""
        self.autocasts = False
        """The script uses autocast."""
        self._thread = 0
        self._inside: torch.nn.Module | None = None
        self._depth = 0
        self._outermost = 0
        self._hooks: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._undo_gradients: list[Callable[[], None]] = []

    def start(self) -> None:
        """Watch modules, torch.compile, and gradients of gradients, until `stop`."""
        hooks = torch.nn.modules.module
        self._hooks = [
            hooks.register_module_forward_pre_hook(self._module_enters),
            hooks.register_module_forward_hook(self._module_leaves, always_call=True),
        ]
        self._undo = [
            _replace(torch, "compile", self._watch_compile(torch.compile)),
            # A script may enter it inside of a module's forward, where `_module_enters` has looked already.
            _replace(torch.autocast, "__enter__", self._watch_autocast(torch.autocast.__enter__)),
        ]
        self._undo_gradients = [
            _replace(torch.autograd, "backward", self._watch_gradients(torch.autograd.backward, 3)),
            _replace(torch.autograd, "grad", self._watch_gradients(torch.autograd.grad, 4)),
        ]

    def stop(self) -> None:
        """Watch modules and torch.compile no longer; `modules` and the rest stay."""
        for hook in self._hooks:
            hook.remove()
        for undo in self._undo:
            undo()
        self._hooks, self._undo, self._inside = [], [], None

    def stop_gradients(self) -> None:
        """Watch gradients of gradients no longer: nothing is compiled."""
        for undo in self._undo_gradients:
            undo()
        self._undo_gradients = []

    def _watch_compile(self, function: "Callable[..., Any]") -> "Callable[..., Any]":
        @functools.wraps(function)
        def compile(model: "Any" = None, *arguments: "Any", **keywords: "Any") -> "Any":
            owner = getattr(model, "__self__", model)
            if self._hooks and (isinstance(owner, torch.nn.Module) or _is_of_a_script(sys._getframe(1).f_code)):
                self.refusal = OWN_COMPILATION
                self.stop()  # Compiled code would trace our hooks.
            return function(model, *arguments, **keywords)

        return compile

    def _watch_autocast(self, enter: "Callable[..., Any]") -> "Callable[..., Any]":
        @functools.wraps(enter)
        def entered(autocast: "Any") -> "Any":
            entered_autocast = enter(autocast)
            self.autocasts = self.autocasts or _autocast_is_on()
            return entered_autocast

        return entered

    def _watch_gradients(self, function: "Callable[..., Any]", position: int) -> "Callable[..., Any]":
        """Return *function* with a watch on create_graph, its argument at *position*: Tensor.backward names none."""

        @functools.wraps(function)
        def gradients(*arguments: "Any", **keywords: "Any") -> "Any":
            if keywords.get("create_graph") or (len(arguments) > position and arguments[position]):
                if self._hooks:
                    self.refusal = DOUBLE
                else:
                    self._doubles()
            return function(*arguments, **keywords)

        return gradients

    def _module_enters(self, module: "torch.nn.Module", inputs: "tuple[Any, ...]") -> None:
        if self._inside is not None:
            self._depth += module is self._inside
            return
        try:
            self._note_module(module)
            self.differentiates_inputs = self.differentiates_inputs or has_differentiated_input(inputs, {})
        except Exception as error:  # noqa: BLE001 - the script goes on, whatever it has for modules
            self._failed(error)

    def _note_module(self, module: "torch.nn.Module") -> None:
        if not module.training or not torch.is_grad_enabled() or (self._thread and self._thread != get_ident()):
            return
        if _is_wrapper(module) or not any(weight.requires_grad for weight in module.parameters()):
            return
        self._thread = get_ident()
        self._inside, self._depth = module, 1
        self.autocasts = self.autocasts or _autocast_is_on()
        new = [target for target in _targets(module) if all(target is not earlier for earlier in self.modules)]
        if not new or _graph_task() != -1:  # There, activation checkpointing computes something once more.
            return
        self._outermost += 1
        if self._outermost > MOST_MODULES:
            self.refusal = "a step calls more than %d modules one by one" % MOST_MODULES
            return
        for target in new:
            self._add(target)

    def _module_leaves(self, module: "torch.nn.Module", *_: "Any") -> None:
        if module is self._inside and self._thread == get_ident():
            self._depth -= 1
            if self._depth == 0:
                self._inside = None

    def _add(self, module: "torch.nn.Module") -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self.refusal = "the model is a TorchScript module"
        elif any(_is_compiled(inner) for inner in module.modules()):
            self.refusal = OWN_COMPILATION
        else:
            self.modules.append(module)


def has_differentiated_input(arguments: "tuple[Any, ...]", keywords: "dict[str, Any]") -> bool:
    """True if an argument is a leaf that requires a gradient, as for a gradient penalty or an attack on the model."""
    return any(
        isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
        for value in (*arguments, *keywords.values())
    )


def _replace(owner: "Any", name: str, function: "Callable[..., Any]") -> "Callable[[], None]":
    """Set `owner.name` to *function*; return the function that sets it back."""
    original = getattr(owner, name)
    setattr(owner, name, function)

    def undo() -> None:
        if getattr(owner, name) is function:  # Else somebody has wrapped ours, and ours lets everything pass.
            setattr(owner, name, original)

    return undo


def class_names(modules: "list[torch.nn.Module]") -> "list[str]":
    """Return the names of the classes of *modules*, each once, as the script wrote them."""
    return list(dict.fromkeys(_class_name(module) for module in modules))


def _class_name(module: "torch.nn.Module") -> str:
    name = type(module).__name__
    return name[4:] if name.startswith("FSDP") and _is_sharded(module) else name


def _targets(module: "torch.nn.Module") -> "Iterator[torch.nn.Module]":
    """Yield the parts of an outermost module that are compiled: itself, or the innermost units of FSDP2."""
    if not _is_sharded(module):
        yield module
        return
    for unit in module.modules():
        if _is_sharded(unit) and not any(_is_sharded(inner) for inner in unit.modules() if inner is not unit):
            yield unit


def _is_sharded(module: "torch.nn.Module") -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _is_wrapper(module: "torch.nn.Module") -> bool:
    return any(kind.__name__ in WRAPPERS for kind in type(module).__mro__)


def _is_compiled(module: "torch.nn.Module") -> bool:
    return get_replaced_call(module) is not None or type(module).__name__ == "OptimizedModule"


def _autocast_is_on() -> bool:
    try:
        return any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    except TypeError:  # Before torch 2.4.
        return torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()


def _is_of_a_script(code: "CodeType") -> bool:
    """True for code that is no installed package's: what a package compiles for itself is no reason to stay away."""
    folders = code.co_filename.split(os.sep)
    return "site-packages" not in folders and "dist-packages" not in folders
