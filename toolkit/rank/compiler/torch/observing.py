"""The first state of the controller: it waits for the modules that train, and decides what is tried."""

import atexit
import os
import sys

import torch

from ...frameworks.torch.compiler import configure_compiler
from . import agreement, cache, precision
from .agreement import RankAgreement, Vote
from .budget import CompileBudget
from .counting import CompileCounter
from .dump import DebugDump
from .slot import ForwardSlot, Mode
from .state import TrainingState
from .trial_state import next_state

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable

    from .training import Training

OBSERVED_STEPS = 2  # A loop with two optimizers (a GAN) has called all its modules by then.


class ObservingState(TrainingState):
    """The first steps run as the script wrote them.

    *own_cache*: TORCHINDUCTOR_CACHE_DIR of the script's environment. *at_exit*: called as the process ends, unless it
    ends in this state.
    """

    def __init__(self, training: "Training", own_cache: str, at_exit: "Callable[[], None]") -> None:
        super().__init__(training)
        self._own_cache = own_cache
        self._at_exit = at_exit

    def step_ended(self) -> TrainingState:
        training, finder = self._training, self._training.finder
        if training.steps < OBSERVED_STEPS and not finder.refusal:
            return self
        finder.stop()
        training.slot_state.differentiates_inputs = finder.differentiates_inputs
        refusal = finder.refusal or _other_compiler()
        atexit.register(self._at_exit)
        if refusal or not finder.modules:
            self._leave_alone(refusal or "no module that trains was seen in the first steps")
        else:
            self._prepare()
        return next_state(training)

    def _leave_alone(self, reason: str) -> None:
        training = self._training
        for technique in ("autocast", "compile"):
            if training.settings[technique] != "off":
                self._refuse_for_all(technique, reason)
        autocast_reason = reason if training.settings["autocast"] != "off" else ""
        training.facts_file.write(state="eager", reason=reason, autocast_reason=autocast_reason)
        training.log_line("eager: %s" % reason)

    def _prepare(self) -> None:
        """Decide what is on without a trial, and what is tried."""
        training, finder = self._training, self._training.finder
        device = next(finder.modules[0].parameters()).device.type
        training.facts_file.write(modules=training.class_names(), state="eager", reason="")
        training.slots = [ForwardSlot(module, training.slot_state) for module in finder.modules]
        for slot in training.slots:
            slot.install()
        bf16 = self._is_on("autocast", precision.refusal(finder.modules, autocasts=finder.autocasts))
        compiled = self._is_on("compile", cache.missing_compiler(device, os.environ))
        if compiled or "compile" in training.trials:
            self._start_compiler(device)
        training.facts_file.write(autocast_state="bf16" if bf16 else "off")
        training.compiles_after_trials = compiled and "autocast" in training.trials
        training.mode = Mode(compiled=compiled and not training.compiles_after_trials, bf16=bf16)

    def _is_on(self, technique: str, refusal: str) -> bool:
        """Return True if *technique* is on without a trial; note one that is to be tried. *refusal*: why it cannot be
        on."""
        training = self._training
        setting = training.settings[technique]
        if setting == "off":
            return False
        if not refusal and setting == "auto":
            refusal = agreement.missing_group(os.environ)
        if refusal:
            is_code = technique == "compile"
            training.facts_file.write(**{"reason" if is_code else "autocast_reason": refusal})
            training.log_line("%s: %s" % ("eager" if is_code else "no bfloat16", refusal))
            self._refuse_for_all(technique, refusal)
        elif setting == "auto":
            training.trials.append(technique)
        return not refusal and setting != "auto"

    def _refuse_for_all(self, technique: str, reason: str) -> None:
        """Tell the other ranks, which may try *technique*, that this one will not: else they wait for it.

        A thread of the agreement does that, beside the training.
        """
        if not agreement.is_shared():
            return
        if self._training.settings[technique] == "auto":
            RankAgreement(technique).refuse(reason)
        elif technique == "compile":
            Vote().refuse(reason)
        # Else nothing is agreed on: bfloat16 of one rank does not concern the others' gradients.

    def _start_compiler(self, device: str) -> None:
        training = self._training
        training.facts_file.write(cache=self._prepare_cache(device))
        limit_s = training.settings.get("budget_s")
        training.slot_state.budget = None if limit_s is None else CompileBudget(limit_s)
        training.compiles = CompileCounter(training.slot_state.budget)
        training.compiles.start()
        configure_compiler()

    def _prepare_cache(self, device: str) -> str:
        """Return the folder for compiled code, "" for torch's own; in debug mode all is compiled anew."""
        training = self._training
        settings = training.settings
        if settings["debug"]:
            training.dump = DebugDump(os.path.join(settings["dump"], "rank-%s" % os.environ.get("RANK", "0")))
            training.dump.start()
            training.facts_file.write(dump=training.dump.folder)
            return self._own_cache
        if self._own_cache:
            return self._own_cache
        folder, problem = cache.use_folder(settings["cache"], torch, device, os.environ)
        if problem:
            training.log_line(problem)
        return folder


def _other_compiler() -> str:
    """Return what in this process takes compiling into its own hands, "" for nothing."""
    xla = sys.modules.get("torch_xla")
    if xla is not None and "/compat/torch_xla/" not in (getattr(xla, "__file__", None) or ""):
        return "torch_xla compiles by itself"
    if "smdistributed.modelparallel" in sys.modules:
        return "model parallel partitions the model, and runs parts of it by itself"
    return ""
