"""A module's place for another way to run: `_compiled_call_impl`, which Module.__call__ uses in place of `_call_impl`.

Module.compile sets the same attribute. Pickling and copying leave it out, the keys of state_dict stay, and what wraps
the module (DistributedDataParallel) or is registered on it goes on as before.
"""

import torch
import torch.utils.checkpoint

from .. import handlers
from .budget import Budget, OverBudget
from .finding import has_differentiated_input
from .kept_state import KeptState
from .precision import in_float32

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# By this, activation checkpointing ends a forward pass that it runs once more in the backward pass.
STOPS: "tuple[type[BaseException], ...]" = tuple(
    each for each in (getattr(torch.utils.checkpoint, "_StopRecomputationError", None),) if each is not None
)
# torch numbers hooks in the order in which they are registered, and never gives a number again.
HOOKS_OF_ALL = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


class Way:
    """How steps run: compiled or not, in bfloat16 or not."""

    def __init__(self, *, compiled: bool = False, bf16: bool = False) -> None:
        self.compiled = compiled
        self.bf16 = bf16
        self.is_plain = not (compiled or bf16)


class Watch:
    """What the slots of a process share. `way`: how the step runs. `calls`, `others`: calls in this step that did so,
    and those that were none of training (evaluation). `is_trial`: the first failure may still come.
    `differentiates_inputs`: inputs that require gradients were seen in the first steps, and no gradients of gradients.

    `budget`: bounds what compiling takes. `failed`: called with a module and the error of a pass that runs without
    `way`.
    """

    def __init__(self, failed: "Callable[[torch.nn.Module, Way, BaseException], None]") -> None:
        self.way = Way()
        self.calls = 0
        self.others = 0
        self.is_trial = True
        self.differentiates_inputs = False
        self.budget: Budget | None = None
        self.failed = failed


class Slot:
    """What Module.__call__ calls in place of `_call_impl` of *module*."""

    def __init__(self, module: "torch.nn.Module", watch: Watch) -> None:
        self._module = module
        self._watch = watch
        self._compiled: Any = None
        self._state = KeptState(module)
        self._handlers = handlers.codes()
        self._eager: Callable[..., Any] = module._call_impl
        self._ran: set[tuple[bool, bool]] = set()  # The ways of passes that did not fail: compiled, in bfloat16.
        self._ran_eagerly = False  # The last forward pass.
        self._hooks_of_all: tuple[tuple[int, ...], ...] | None = None  # What the compiled code calls.
        self._autocasts_itself = False  # The script, around the last forward pass.
        self._device = next(module.parameters()).device.type

    def install(self) -> None:
        """Have the module run by this."""
        self._module._compiled_call_impl = self

    def remove(self) -> None:
        """Have the module run as without this."""
        if self._module._compiled_call_impl is self:
            self._module._compiled_call_impl = None

    def __reduce__(self) -> "Any":
        """A copy of the module, or a pickled one, runs its own code."""
        return _nothing, ()

    def __call__(self, *arguments: "Any", **named: "Any") -> "Any":
        """Run the module as the step runs; evaluation, tracing and export run it as it is."""
        module, watch = self._module, self._watch
        is_again = torch._C._current_graph_task_id() != -1  # In the backward pass: activation checkpointing.
        if is_again and self._ran_eagerly:  # It must compute the same once more, dropout included.
            return self._eager(*arguments, **named)
        if not module.training or not torch.is_grad_enabled() or _is_traced():
            self._ran_eagerly = self._ran_eagerly or (module.training and not is_again)
            watch.others += 1
            return self._eager(*arguments, **named)
        watch.calls += 1
        way = self._way(is_again=is_again)
        self._ran_eagerly = way.is_plain
        if way.is_plain:
            return self._eager(*arguments, **named)
        if way.compiled and not watch.differentiates_inputs and has_differentiated_input(arguments, named):
            # A gradient penalty, most often, that has come late: it takes gradients of gradients.
            return self._eager(*arguments, **named)
        kind = (way.compiled, way.bf16)
        self._state.keep(with_python=watch.is_trial, with_large=kind not in self._ran)
        try:
            found = self._run(way, arguments, named)
            self._ran.add(kind)
            return found
        except STOPS:
            raise
        except OverBudget as error:
            failure: BaseException = error
        except Exception as error:  # noqa: BLE001 - anything may come from a compiler
            failure = error
        if watch.budget is not None:
            watch.budget.leave()
        stop = handlers.raised(failure, self._handlers)
        if stop is not None:
            raise stop from stop.__cause__
        # Not within `except`: an error of the script's own, which comes again, would be told with this one behind it.
        if isinstance(failure, torch.OutOfMemoryError):
            failure.__traceback__ = None  # Its frames hold the tensors for which there is no room.
        self._state.restore()
        self._ran_eagerly = True
        found = self._eager(*arguments, **named)
        watch.failed(module, way, failure)
        return found

    def _way(self, *, is_again: bool) -> Way:
        """Return how this pass runs: as the step does, unless the script has changed what that assumed.

        All else that compiled code assumes of the module (its modules, hooks, forward, attributes, tensors), torch's
        own guards compare, as controller.py has set them.
        """
        way = self._watch.way
        if way.compiled:
            hooks_of_all = _hooks_of_all()
            if self._hooks_of_all is None:
                self._hooks_of_all = hooks_of_all
            if hooks_of_all != self._hooks_of_all:
                way = Way(bf16=way.bf16)
        if way.bf16:
            if not is_again:  # Activation checkpointing enters autocast itself there, as it was the first time.
                self._autocasts_itself = _autocast_depth() > 0
            if self._autocasts_itself:
                way = Way(compiled=way.compiled)
        return way

    def _run(self, way: Way, arguments: "tuple[Any, ...]", named: "dict[str, Any]") -> "Any":
        call = self._eager
        if way.compiled:
            if self._compiled is None:
                self._compiled = torch.compile(_traceable(self._module, call))
            call = self._compiled
        if not way.bf16:
            return call(*arguments, **named)
        with torch.autocast(self._device, dtype=torch.bfloat16):
            found = call(*arguments, **named)
        return in_float32(found)


def _traceable(module: "torch.nn.Module", call: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return *call*, `_call_impl` of *module*, so that torch's compiler enters it.

    It begins with the first frame that is no code of torch.nn: the module's `forward`. An nn.Sequential has none, and
    is wrapped, as torch.compile(module) does it (OptimizedModule, torch 2.13).
    """
    from torch._dynamo import external_utils, trace_rules

    return external_utils.wrap_inline(call) if trace_rules.check(module.forward) else call


def _hooks_of_all() -> "tuple[tuple[int, ...], ...]":
    """Return the numbers of the hooks for all modules, which no guard compares (torch 2.13)."""
    module = torch.nn.modules.module
    return tuple(tuple(getattr(module, kind, ())) for kind in HOOKS_OF_ALL)


def _autocast_depth() -> int:
    """Return how many `torch.autocast` are entered, also those that switch it off."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _nothing() -> None:
    """What stands in a copy in a slot's place."""


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
