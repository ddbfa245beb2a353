"""The models of this process that train: how they run, their measurements, and the facts and lines about them."""

import os
import sys
from time import monotonic

import torch

from ..facts_file import FactsFile
from . import module_finder, sentences
from .counting import advice
from .slot import ForwardSlot, Mode, SlotState
from .step_ends import SteadyTimes

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .counting import CompileCounter
    from .dump import DebugDump


class Training:
    """The training, as all states of the controller (state.py) see it."""

    def __init__(self, settings: "dict[str, Any]", finder: module_finder.ModuleFinder, slot_state: SlotState) -> None:
        self.settings = settings
        """As train/launchers/compiler_variables.py writes them."""
        self.finder = finder
        self.slot_state = slot_state
        self.facts_file = FactsFile("torch")
        self.slots: list[ForwardSlot] = []
        self.mode = Mode()
        """The best one so far: without a trial, or kept by one."""
        self.trials: list[str] = []
        """The techniques to be tried: "autocast", "compile"."""
        self.compiles_after_trials = False
        """Compiled code is asked for without a trial. Code is compiled once: for the precision that is kept."""
        self.steps = 0
        self.steady = SteadyTimes()
        self.compiles: CompileCounter | None = None
        """None: nothing is compiled in this process."""
        self.dump: DebugDump | None = None

    @property
    def compile_count(self) -> int:
        """The number of compilations in this process."""
        return 0 if self.compiles is None else self.compiles.count

    @property
    def is_over_budget(self) -> bool:
        """Compiling has taken longer than it may."""
        return self.slot_state.budget is not None and self.slot_state.budget.is_over

    def begin_step(self, mode: Mode) -> float:
        """Have the next step run as *mode*; return the time at which it begins."""
        slot_state = self.slot_state
        slot_state.mode = mode
        slot_state.calls = slot_state.other_calls = 0
        wait_for_devices()
        return monotonic()

    def run_eagerly(self, reason: str, *, bf16: bool, **facts: "Any") -> None:
        """Compile nothing any more, for *reason*; write that, and *facts*."""
        self.mode = self.slot_state.mode = Mode(bf16=bf16)
        self.facts_file.write(state="eager", reason=reason, **facts, **self.measured_facts())
        if self.mode.is_plain:
            self.remove_slots()

    def remove_slots(self) -> None:
        """Have the modules run as the script wrote them, from here to the end."""
        for slot in self.slots:
            slot.remove()
        self.slots = []
        self.finder.modules = []  # The script may drop its model.
        self.finder.stop_gradients()

    def close_budget(self) -> None:
        """Bound no longer what compiling takes: code for new shapes may take any time."""
        if self.slot_state.budget is not None:
            self.slot_state.budget.close()

    def class_names(self) -> "list[str]":
        """Return the names of the classes of the modules that train."""
        return module_finder.class_names(self.finder.modules)

    def over_budget_reason(self) -> str:
        """Return the sentence for `is_over_budget`."""
        assert self.slot_state.budget is not None
        return sentences.over_budget(self.class_names(), self.slot_state.budget.limit_s)

    def no_code_reason(self) -> str:
        """Return a sentence if the compiler has looked at the modules and made nothing, so that all steps are eager
        ones; else ""."""
        if self.compiles is None or self.compiles.facts()["graphs"] != 0:
            return ""
        return sentences.no_code(self.class_names())

    def measured_facts(self) -> "dict[str, Any]":
        """Return the facts that change with the steps."""
        facts: dict[str, Any] = {"steps": self.steps, "steady_step_ms": self.steady.step_ms()}
        if self.compiles is not None:
            facts.update(self.compiles.facts())
        return facts

    def log_storms(self) -> None:
        """Write a line for each code that was compiled as often as torch allows."""
        if self.compiles is None or not self.mode.compiled:
            return
        for code, guard, limit in self.compiles.pop_storms():
            self.log_line(sentences.storm(code, guard, limit, advice(guard)))

    def log_line(self, text: str) -> None:
        """Write one line, in the first rank: all decide the same."""
        if _is_first_rank():
            sys.stderr.write("[toolkit] compiler: %s\n" % text)


def wait_for_devices() -> None:
    """Wait until the GPUs have done the work of the step, which they do behind the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _is_first_rank() -> bool:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") == "0"
