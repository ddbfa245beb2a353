"""Hands events to the state of the training (state.py): a step has ended, a pass of a module has failed, the script
takes gradients of gradients, the process ends.

An optimizer's step ends a step.
"""

import os
import sys
from _thread import get_ident

import torch

from ...mesh import measuring
from . import module_finder, sentences
from .observing import ObservingState
from .slot import Mode, SlotState
from .state import FailedState, TrainingState
from .step_ends import MainOptimizer
from .training import Training

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

# An optimizer that steps without a pass of the model since its last step does so for another group of parameters
# (DeepSpeed's ZeRO): the job's step goes on. So many times in a row, at most.
MOST_GROUP_STEPS = 1_000


class Controller:
    """Hands the events of this process to the state of its training.

    *settings*: as train/launchers/compiler_variables.py writes them. *own_cache*: TORCHINDUCTOR_CACHE_DIR of the
    script's environment.
    """

    def __init__(self, settings: "dict[str, Any]", own_cache: str) -> None:
        self._pid = os.getpid()
        self._thread = 0
        self._optimizer = MainOptimizer()
        self._group_steps = 0
        self._slot_state = SlotState(self._pass_failed)
        finder = module_finder.ModuleFinder(self._hook_failed, self._second_gradients_taken)
        self._training = Training(settings, finder, self._slot_state)
        self._training.facts_file.write(
            compile=settings["compile"], autocast=settings["autocast"], reason="no model that trains was found"
        )
        self._state: TrainingState = ObservingState(self._training, own_cache, self._process_ends)

    def start(self) -> None:
        """Watch the first steps."""
        self._training.finder.start()

    def optimizer_stepped(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped: torch's hook for all of them."""
        if self._thread != get_ident():
            if self._thread or os.getpid() != self._pid:
                return
            self._thread = get_ident()
        if self._optimizer.counts(id(optimizer)):
            training = self._training
            self._group_steps = 0 if self._slot_state.calls or not training.slots else self._group_steps + 1
            if 0 < self._group_steps <= MOST_GROUP_STEPS:
                return
            training.steps += 1
            try:
                self._state = self._state.step_ended()
            except Exception as error:  # noqa: BLE001 - the script goes on without
                self._hook_failed(error)

    def _hook_failed(self, error: Exception) -> None:
        """An error of this package's own: leave everything as the script wrote it."""
        training = self._training
        self._state = FailedState(training)
        training.finder.stop()
        training.finder.stop_gradients()
        training.remove_slots()
        measuring.end()
        text = "the compiler's hook failed: %s: %s" % (type(error).__name__, error)
        training.facts_file.write(state="eager", reason=text, autocast_state="off")
        sys.stderr.write("[toolkit] compiler: eager: %s\n" % text)

    def _pass_failed(self, module: "torch.nn.Module", mode: Mode, error: BaseException) -> None:
        """A pass of *module* could not run as *mode*, and ran as the script wrote it."""
        training = self._training
        if mode.compiled and training.is_over_budget:
            reason = training.over_budget_reason()
        else:
            is_memory = isinstance(error, torch.OutOfMemoryError)
            name = module_finder.class_names([module])[0]
            reason = sentences.failed_pass(name, error, compiled=mode.compiled, is_memory=is_memory)
        if training.dump is not None and mode.compiled:
            training.dump.write_failure(reason, error)
        self._state.pass_failed(mode, reason)

    def _second_gradients_taken(self) -> None:
        if self._thread == get_ident() and os.getpid() == self._pid:
            self._state.second_gradients_taken()

    def _process_ends(self) -> None:
        if os.getpid() != self._pid:
            return
        training = self._training
        training.log_storms()  # Those of an optimizer whose steps do not count are not logged before.
        measured = training.measured_facts()
        training.facts_file.write(**{**measured, **self._state.facts_at_exit()})
        if training.dump is not None:
            training.dump.end()
