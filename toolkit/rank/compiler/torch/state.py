"""The base of the controller's states. Each is an object, and the end of a step leads to the next one:

ObservingState  the first two steps show the modules that train
TrialState      steps take turns: bfloat16 against float32, then compiled code against eager, if the job asks for
                `auto`; the second trial has what the first one keeps
SettledState    the steps run as decided to the end; their times and recompilations are noted
FailedState     the compiler's own code has failed: everything runs as the script wrote it
"""

import sys

from . import module_finder

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .slot import Mode
    from .training import Training


class TrainingState:
    """Handles the end of a step, and other events, in one state of the training."""

    def __init__(self, training: "Training") -> None:
        self._training = training

    def step_ended(self) -> "TrainingState":
        """Return the state of the next step. What a step runs as changes only here."""
        return self

    def pass_failed(self, mode: "Mode", reason: str) -> None:
        """Run eagerly from here on: a pass of a module could not run as *mode*, for *reason*, and ran eagerly."""
        self._fall_back(mode, reason)
        sys.stderr.write("[toolkit] compiler: eager from step %d on: %s\n" % (self._training.steps + 1, reason))

    def second_gradients_taken(self) -> None:
        """Run eagerly from the next step on: the script takes gradients of gradients, later than in the first steps.

        This step goes on as the script asks for; it fails if the pass that it differentiates was compiled.
        """
        training = self._training
        if training.mode.compiled:
            training.log_line("eager from step %d on: %s" % (training.steps + 1, module_finder.LATE_DOUBLE))
            training.run_eagerly(module_finder.LATE_DOUBLE, bf16=training.mode.bf16)

    def facts_at_exit(self) -> "dict[str, Any]":
        """Return the facts of this state that the process leaves when it ends in it."""
        return {}

    def _fall_back(self, mode: "Mode", reason: str) -> None:
        bf16 = mode.bf16 and mode.compiled
        self._training.run_eagerly(reason, bf16=bf16, autocast_state="bf16" if bf16 else "off")


class FailedState(TrainingState):
    """The compiler's own code has failed: it does nothing any more."""
