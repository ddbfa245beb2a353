"""Runs a module in another mode, by `_compiled_call_impl`, which Module.__call__ uses in place of `_call_impl`.

Module.compile sets the same attribute. Pickling and copying leave it out, the keys of state_dict stay, and what wraps
the module (DistributedDataParallel) or is registered on it goes on as before.
"""

import torch

from ...frameworks.torch import compiler as torch_compiler
from ...frameworks.torch.modules import (
    get_plain_call_impl,
    get_replaced_call,
    list_global_hook_numbers,
    set_call_impl,
)
from .. import handlers
from .budget import CompileBudget, OverBudget
from .module_finder import has_differentiated_input
from .pass_state import PassState
from .precision import in_float32

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


STOPS = torch_compiler.get_recomputation_stops()
# Found once: each call of a module calls them.
_graph_task = torch_compiler.find_graph_task()
_tracing_state = torch_compiler.find_tracing_state()


class Mode:
    """A mode of steps: compiled or not, in bfloat16 or not."""

    def __init__(self, *, compiled: bool = False, bf16: bool = False) -> None:
        self.compiled = compiled
        self.bf16 = bf16
        self.is_plain = not (compiled or bf16)


class SlotState:
    """The state that all slots of a process share. *pass_failed*: called with a module, the mode in which its pass
    failed, and the error, once the pass has run eagerly."""

    def __init__(self, pass_failed: "Callable[[torch.nn.Module, Mode, BaseException], None]") -> None:
        self.mode = Mode()
        """The mode of this step."""
        self.calls = 0
        """Calls in this step that train."""
        self.other_calls = 0
        """Calls in this step that do not (evaluation)."""
        self.is_trial = True
        """The first failure may still come."""
        self.differentiates_inputs = False
        """Inputs that require gradients were seen in the first steps, and no gradients of gradients."""
        self.budget: CompileBudget | None = None
        """Bounds what compiling takes."""
        self.pass_failed = pass_failed


class ForwardSlot:
    """Module.__call__ calls it in place of `_call_impl` of *module*."""

    def __init__(self, module: "torch.nn.Module", slot_state: SlotState) -> None:
        self._module = module
        self._slot_state = slot_state
        self._compiled: Any = None
        self._pass_state = PassState(module)
        self._handlers = handlers.handler_codes()
        self._eager: Callable[..., Any] = get_plain_call_impl(module)
        self._ran: set[tuple[bool, bool]] = set()  # Modes of passes that did not fail: compiled, in bfloat16.
        self._ran_eagerly = False  # The last forward pass.
        self._hooks_of_all: tuple[tuple[int, ...], ...] | None = None  # Those that the compiled code calls.
        self._autocasts_itself = False  # The script, around the last forward pass.
        self._device = next(module.parameters()).device.type

    def install(self) -> None:
        """Have the module run by this."""
        set_call_impl(self._module, self)

    def remove(self) -> None:
        """Have the module run as without this."""
        if get_replaced_call(self._module) is self:
            set_call_impl(self._module, None)

    def __reduce__(self) -> "Any":
        """A copy of the module, or a pickled one, runs its own code."""
        return _nothing, ()

    def __call__(self, *arguments: "Any", **keywords: "Any") -> "Any":
        """Run the module as the step runs; evaluation, tracing and export run it as it is."""
        module, slot_state = self._module, self._slot_state
        is_again = _graph_task() != -1  # In the backward pass: activation checkpointing.
        if is_again and self._ran_eagerly:  # It must compute the same once more, dropout included.
            return self._eager(*arguments, **keywords)
        if not module.training or not torch.is_grad_enabled() or _is_traced():
            self._ran_eagerly = self._ran_eagerly or (module.training and not is_again)
            slot_state.other_calls += 1
            return self._eager(*arguments, **keywords)
        slot_state.calls += 1
        mode = self._pass_mode(is_again=is_again)
        self._ran_eagerly = mode.is_plain
        if mode.is_plain:
            return self._eager(*arguments, **keywords)
        if mode.compiled and not slot_state.differentiates_inputs and has_differentiated_input(arguments, keywords):
            # A gradient penalty, most often, that has come late: it takes gradients of gradients.
            return self._eager(*arguments, **keywords)
        kind = (mode.compiled, mode.bf16)
        self._pass_state.save(with_python=slot_state.is_trial, with_large=kind not in self._ran)
        try:
            output = self._run(mode, arguments, keywords)
            self._ran.add(kind)
            return output
        except STOPS:
            raise
        except OverBudget as error:
            failure: BaseException = error
        except Exception as error:  # noqa: BLE001 - anything may come from a compiler
            failure = error
        if slot_state.budget is not None:
            slot_state.budget.abandon()
        stop = handlers.find_raised(failure, self._handlers)
        if stop is not None:
            raise stop from stop.__cause__
        # Not within `except`: an error of the script's own, which comes again, would have this one as its context.
        if isinstance(failure, torch.OutOfMemoryError):
            failure.__traceback__ = None  # Its frames hold the tensors for which there is no room.
        self._pass_state.restore()
        self._ran_eagerly = True
        output = self._eager(*arguments, **keywords)
        slot_state.pass_failed(module, mode, failure)
        return output

    def _pass_mode(self, *, is_again: bool) -> Mode:
        """Return how this pass runs: as the step does, unless the script has changed what that assumed.

        All else that compiled code assumes of the module (its modules, hooks, forward, attributes, tensors), torch's
        own guards compare, as observing.py has set them.
        """
        mode = self._slot_state.mode
        if mode.compiled:
            hooks_of_all = list_global_hook_numbers()  # No guard compares them (torch 2.13).
            if self._hooks_of_all is None:
                self._hooks_of_all = hooks_of_all
            if hooks_of_all != self._hooks_of_all:
                mode = Mode(bf16=mode.bf16)
        if mode.bf16:
            if not is_again:  # Activation checkpointing enters autocast itself there, as it was the first time.
                self._autocasts_itself = _autocast_depth() > 0
            if self._autocasts_itself:
                mode = Mode(compiled=mode.compiled)
        return mode

    def _run(self, mode: Mode, arguments: "tuple[Any, ...]", keywords: "dict[str, Any]") -> "Any":
        call = self._eager
        if mode.compiled:
            if self._compiled is None:
                self._compiled = torch.compile(torch_compiler.make_traceable(self._module, call))
            call = self._compiled
        if not mode.bf16:
            return call(*arguments, **keywords)
        with torch.autocast(self._device, dtype=torch.bfloat16):
            output = call(*arguments, **keywords)
        return in_float32(output)


def _autocast_depth() -> int:
    """Return how many `torch.autocast` are entered, also those that switch it off."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _nothing() -> None:
    """Replaces a slot in a copied or pickled module."""


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or _tracing_state() is not None
