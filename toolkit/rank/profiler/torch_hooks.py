"""Attaches the step timer to torch: optimizers, data loaders, backward, saves. No result of any of them changes.

Only public hooks are used where torch has one (optimizers, from torch 2.0 on). Else a function is wrapped: where the
script replaces it later, with or without calling the wrapper, the script's counts.
"""

import functools
import gc
import sys
from time import monotonic_ns

from ..frameworks.torch import profiler as torch_profiler
from .arming import arm
from .import_clock import ATTRIBUTE
from .step_timer import StepTimer, timer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MARK = "_toolkit_times_it"


def attach(torch: "ModuleType") -> None:
    """Attach the step timer of this process to *torch*, once."""
    if getattr(torch, MARK, False):
        return
    setattr(torch, MARK, True)
    step_timer = timer()
    _hook_optimizers(step_timer)
    arm()
    if step_timer.folder or step_timer.on_start is not None:  # Else steps are only counted.
        _time_loaders(torch, step_timer)
    if step_timer.folder:
        from . import torch_calls

        _time_backward(torch, step_timer)
        _time_zeroing(step_timer)
        _time_saves(torch, step_timer)
        _time_groups()
        torch_calls.attach(step_timer)
        gc.callbacks.append(step_timer.collected)


def _hook_optimizers(step_timer: StepTimer) -> None:
    optimizer = sys.modules.get("torch.optim.optimizer")
    register_pre_hook = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    register_post_hook = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register_pre_hook is not None and register_post_hook is not None:
        register_pre_hook(step_timer.optimizer_begins if step_timer.folder else step_timer.counted_begins)
        register_post_hook(step_timer.optimizer_ends if step_timer.folder else step_timer.counted_ends)


def _time_loaders(torch: "ModuleType", step_timer: StepTimer) -> None:
    loading = sys.modules.get("torch.utils.data.dataloader")
    if loading is None:
        return
    is_training: Callable[[], bool] = torch.is_grad_enabled

    def timed(function: "Callable[..., Any]") -> "Callable[..., Any]":
        @functools.wraps(function)
        def wrapper(self: "Any") -> "Any":
            if step_timer.is_elsewhere() or not is_training():
                return function(self)
            begin_ns, aside_ns, cpu_ns = monotonic_ns(), step_timer.aside_ns, step_timer.read_cpu_ns()
            try:
                return function(self)
            finally:
                step_timer.fetched(begin_ns, monotonic_ns(), aside_ns, cpu_ns)

        return wrapper

    iterator, loader = torch_profiler.find_loader_iterator(loading), loading.DataLoader
    if iterator is None:
        return
    iterator.__next__ = timed(iterator.__next__)
    loader.__iter__ = timed(loader.__iter__)  # It starts the workers.


def _time_backward(torch: "ModuleType", step_timer: StepTimer) -> None:
    backward = torch.autograd.backward
    when_computed = _when_computed(torch)
    runs = False

    @functools.wraps(backward)
    def timed_backward(*arguments: "Any", **keywords: "Any") -> "Any":
        nonlocal runs
        if runs or step_timer.is_elsewhere():  # Checkpointed parts of a model go backward inside of backward.
            return backward(*arguments, **keywords)
        runs = True
        computed: list[int] = []
        hook = when_computed(arguments, computed)
        begin_ns, aside_ns = monotonic_ns(), step_timer.aside_ns
        try:
            return backward(*arguments, **keywords)
        finally:
            runs = False
            step_timer.went_backward(begin_ns, monotonic_ns(), aside_ns, *computed[:1])
            if hook is not None:
                hook.remove()

    torch.autograd.backward = timed_backward  # Tensor.backward takes it from here at each call.


def _time_zeroing(step_timer: StepTimer) -> None:
    optimizer = getattr(sys.modules.get("torch.optim.optimizer"), "Optimizer", None)
    if optimizer is None:
        return
    zero_grad = optimizer.zero_grad

    @functools.wraps(zero_grad)
    def timed(self: "Any", *arguments: "Any", **keywords: "Any") -> None:
        begin_ns = monotonic_ns()
        zero_grad(self, *arguments, **keywords)
        step_timer.zeroed(begin_ns)

    optimizer.zero_grad = timed


def _when_computed(torch: "ModuleType") -> "Callable[[Any, list[int]], Any]":
    """Return a function that has the autograd engine note the time at which this process has computed all gradients.

    The engine calls what was queued during backward in this order, once the gradients are there. What waits for other
    ranks (DistributedDataParallel) is queued later than at the loss, so its wait comes after the noted time.
    """
    distributed = torch.distributed
    queue = torch_profiler.find_engine_queue()

    def when_computed(arguments: "Any", computed: "list[int]") -> "Any":
        if queue is None or not distributed.is_available() or not distributed.is_initialized() or not arguments:
            return None
        losses = arguments[0] if isinstance(arguments[0], (list, tuple)) else (arguments[0],)
        loss = next((tensor for tensor in losses if getattr(tensor, "requires_grad", False)), None)
        if loss is None:
            return None
        return loss.register_hook(lambda _: queue(lambda: computed.append(monotonic_ns())))

    return when_computed


def _time_groups() -> None:
    clock = getattr(sys, ATTRIBUTE, None)
    distributed = sys.modules.get("torch.distributed")
    form = getattr(distributed, "init_process_group", None)
    if clock is None or form is None:
        return

    @functools.wraps(form)
    def timed(*arguments: "Any", **keywords: "Any") -> None:
        begin_ns = monotonic_ns()
        try:
            form(*arguments, **keywords)
        finally:
            clock.formed_group(begin_ns)

    for module in (distributed, sys.modules.get("torch.distributed.distributed_c10d")):
        if getattr(module, "init_process_group", None) is form:
            module.init_process_group = timed  # type: ignore[union-attr]


def _time_saves(torch: "ModuleType", step_timer: StepTimer) -> None:
    torch.save = timed_save = time_saving(torch.save, step_timer)  # type: ignore[attr-defined]
    if "torch.serialization" in sys.modules:
        sys.modules["torch.serialization"].save = timed_save  # type: ignore[attr-defined]


def time_saving(function: "Callable[..., Any]", step_timer: StepTimer) -> "Callable[..., Any]":
    """Return *function*, whose time counts as saving a checkpoint; what it saves by other functions counts once."""

    @functools.wraps(function)
    def timed(*arguments: "Any", **keywords: "Any") -> "Any":
        if not step_timer.saving_begins():
            return function(*arguments, **keywords)
        try:
            return function(*arguments, **keywords)
        finally:
            step_timer.saving_ends()

    return timed
