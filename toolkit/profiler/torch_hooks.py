"""Attaches the step timer to torch: optimizers, data loaders, backward, saves. No result of any of them changes.

Only public hooks are used where torch has one (optimizers, from torch 2.0 on). Else a function is wrapped: where the
script replaces it later, with or without calling ours, the script's counts.
"""

import functools
import sys
from time import monotonic_ns

from .arming import arm
from .steps import StepTimer, timer

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
    ours = timer()
    _optimizers(ours)
    arm()
    if ours.folder or ours.on_start is not None:  # Else steps are only counted.
        _loaders(torch, ours)
    if ours.folder:
        _backward(torch, ours)
        _saves(torch, ours)


def _optimizers(ours: StepTimer) -> None:
    optimizer = sys.modules.get("torch.optim.optimizer")
    before = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    after = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if before is not None and after is not None:
        before(ours.optimizer_begins if ours.folder else ours.counted_begins)
        after(ours.optimizer_ends if ours.folder else ours.counted_ends)


def _loaders(torch: "ModuleType", ours: StepTimer) -> None:
    loading = sys.modules.get("torch.utils.data.dataloader")
    if loading is None:
        return
    is_training: Callable[[], bool] = torch.is_grad_enabled

    def timed(function: "Callable[..., Any]") -> "Callable[..., Any]":
        @functools.wraps(function)
        def wrapper(self: "Any") -> "Any":
            if ours.is_elsewhere() or not is_training():
                return function(self)
            begin_ns = monotonic_ns()
            try:
                return function(self)
            finally:
                ours.fetched(begin_ns, monotonic_ns())

        return wrapper

    iterator, loader = loading._BaseDataLoaderIter, loading.DataLoader
    iterator.__next__ = timed(iterator.__next__)
    loader.__iter__ = timed(loader.__iter__)  # It starts the workers.


def _backward(torch: "ModuleType", ours: StepTimer) -> None:
    backward = torch.autograd.backward
    runs = False

    @functools.wraps(backward)
    def timed_backward(*arguments: "Any", **named: "Any") -> "Any":
        nonlocal runs
        if runs or ours.is_elsewhere():  # Checkpointed parts of a model go backward inside of backward.
            return backward(*arguments, **named)
        runs = True
        begin_ns = monotonic_ns()
        try:
            return backward(*arguments, **named)
        finally:
            runs = False
            ours.went_backward(begin_ns, monotonic_ns())

    torch.autograd.backward = timed_backward  # Tensor.backward takes it from here at each call.


def _saves(torch: "ModuleType", ours: StepTimer) -> None:
    save = torch.save

    @functools.wraps(save)
    def timed_save(*arguments: "Any", **named: "Any") -> "Any":
        if not ours.saving_begins():
            return save(*arguments, **named)
        try:
            return save(*arguments, **named)
        finally:
            ours.saving_ends()

    torch.save = timed_save  # type: ignore[attr-defined]
    if "torch.serialization" in sys.modules:
        sys.modules["torch.serialization"].save = timed_save  # type: ignore[attr-defined]
