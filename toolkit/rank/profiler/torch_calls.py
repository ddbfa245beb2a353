"""Finds the modules that a script calls itself, and has the step timer told when it calls them.

With gradients on, the first call of a step is where its forward pass begins; with gradients off, a call is a part of an
evaluation. The outermost modules that are called are found by torch's hooks of all modules, in the first steps and
later in steps after a pause that nothing explains. These hooks end before anything is compiled: compiled code would
hold them.
"""

import functools
from _thread import get_ident

import torch

from ..frameworks.torch.modules import can_replace_calls, observe_all_calls, watch_calls
from ..mesh import measuring
from .pauses import PauseSampler
from .step_timer import StepTimer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FIRST_STEPS = 3
# Searches after pauses that nothing explains, and the shortest such pause.
MOST_SEARCHES = 20
LEAST_PAUSE_NS = 20_000_000


class CallFinder:
    """Watches the calls of the modules that the script calls itself."""

    def __init__(self, step_timer: StepTimer) -> None:
        self._timer = step_timer
        self._end_search: Callable[[], None] | None = None
        self._inside: torch.nn.Module | None = None
        self._depth = 0
        self._returns = False
        self._searches = FIRST_STEPS + MOST_SEARCHES
        self._compiles = False
        self._compiled_later: list[torch.nn.Module] = []

    def start(self) -> None:
        """Find modules from now on."""
        torch.compile = self._watch_compile(torch.compile)
        self._timer.on_pause = self._search
        self._search(LEAST_PAUSE_NS)

    def _search(self, pause_ns: int) -> None:
        """Look for modules until the next step ends. *pause_ns*: what nothing explained in the last step."""
        if not self._timer.is_sampled and self._timer.thread:
            self._timer.is_sampled = True
            self._timer.call_apart(self._start_sampler)
        while self._compiled_later:  # Module.compile has set what it runs by now.
            self._watch(self._compiled_later.pop())
        if self._end_search is not None and self._timer.steps >= FIRST_STEPS:
            self._stop()
        is_worth_it = self._timer.steps < FIRST_STEPS or pause_ns >= LEAST_PAUSE_NS
        if self._compiles or self._end_search is not None or not self._searches or not is_worth_it:
            return
        self._searches -= 1
        self._end_search = observe_all_calls(self._module_enters, self._module_leaves)

    def _start_sampler(self) -> None:
        PauseSampler(self._timer, self._timer.folder).start()

    def _stop(self) -> None:
        if self._end_search is not None:
            self._end_search()
        self._end_search, self._inside = None, None

    def _watch_compile(self, function: "Any") -> "Any":
        @functools.wraps(function)
        def compile(model: "Any" = None, *arguments: "Any", **keywords: "Any") -> "Any":
            self._stop()
            compiled = function(model, *arguments, **keywords)
            if not self._compiles:
                self._compiles = True
                self._time_compilations()
            if isinstance(compiled, torch.nn.Module):
                self._watch(compiled)
            elif isinstance(getattr(model, "__self__", None), torch.nn.Module):
                self._compiled_later.append(model.__self__)
            return compiled

        return compile

    def _time_compilations(self) -> None:
        from ..frameworks.private_names import MissingNameError
        from ..frameworks.torch.compiler import leave_untraced, watch_compilations

        try:
            leave_untraced(__package__)
            leave_untraced(measuring.__name__)
            self._timer.call_apart = torch.compiler.disable(self._timer.call_apart)  # type: ignore[no-untyped-call]
            watch_compilations(self._timer.compilation_begins, self._timer.compilation_ends)
        except (MissingNameError, ImportError):
            pass  # The time of compiling is then not told from the rest of the first step.

    def _module_enters(self, module: "torch.nn.Module", _: "Any") -> None:
        if self._inside is not None:
            self._depth += module is self._inside
        elif not self._timer.is_elsewhere():
            self._inside, self._depth = module, 1
            self._returns = self._watch(module) and self._timer.module_called(torch.is_grad_enabled())

    def _module_leaves(self, module: "torch.nn.Module", *_: "Any") -> None:
        if module is self._inside:
            self._depth -= 1
            if not self._depth:
                self._inside = None
                if self._returns:
                    self._timer.module_returned()

    def _watch(self, module: "torch.nn.Module") -> bool:
        """Watch the calls of *module*; return whether it was not watched before."""
        return watch_calls(module, self._enters, self._timer.module_returned)

    def _enters(self) -> bool:
        timer = self._timer
        if timer.thread != get_ident() and timer.is_elsewhere():
            return False
        return timer.module_called(torch.is_grad_enabled())


def attach(step_timer: StepTimer) -> None:
    """Have *step_timer* told of the modules that the script calls."""
    if can_replace_calls("the time between steps counts as forward"):
        CallFinder(step_timer).start()
