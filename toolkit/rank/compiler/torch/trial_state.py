"""The state of the controller in which the job's own steps compare a candidate with how they would run without it."""

from time import monotonic

from ...frameworks.torch.profiler import is_session_open
from ...mesh import measuring
from ..trial import CANDIDATE, WARM_STEPS, Interleaving, TrialDecision, break_even_step, cost_s
from . import agreement, module_finder, sentences
from .agreement import RankAgreement, SoleRank
from .settled import SettledState
from .slot import Mode
from .state import TrainingState
from .training import wait_for_devices

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .training import Training


def next_state(training: "Training") -> TrainingState:
    """Return the next trial, of which a step has begun, or the settled state if none is left."""
    if training.trials:
        return TrialState(training, training.trials.pop(0))
    if training.compiles_after_trials:
        training.mode = Mode(compiled=True, bf16=training.mode.bf16)
    return SettledState(training)


class TrialState(TrainingState):
    """Steps take turns: some run as the best mode so far, some as a candidate. *technique*: "autocast" or "compile"."""

    def __init__(self, training: "Training", technique: str) -> None:
        super().__init__(training)
        mode = training.mode
        self._tries_code = technique == "compile"
        self._candidate = Mode(compiled=mode.compiled or self._tries_code, bf16=mode.bf16 or not self._tries_code)
        self._interleaving = Interleaving()
        self._failure = ""
        self._agreement = RankAgreement(technique) if agreement.is_shared() else SoleRank()
        self._other_calls = 0
        self._compile_count = 0
        self._start_s = 0.0
        measuring.begin()
        training.facts_file.write(**{"state" if self._tries_code else "autocast_state": "trial"})
        self._begin_step(self._candidate)

    def step_ended(self) -> TrainingState:
        wait_for_devices()
        took_s = monotonic() - self._start_s
        interleaving = self._interleaving
        compiled = self._training.compile_count != self._compile_count
        interleaving.step_ended(took_s, is_clean=self._is_comparable(), compiled=compiled)
        self._failure = self._failure or self._new_failure()
        if self._failure or interleaving.reason:
            self._agreement.refuse(self._failure or interleaving.reason)
        elif interleaving.due:
            self._agreement.offer(interleaving.pairs, interleaving.due, took_s)
        decision = self._agreement.decision()
        if decision is not None:
            self._apply(decision)
            return next_state(self._training)
        is_candidate = interleaving.turn == CANDIDATE and not self._failure
        self._begin_step(self._candidate if is_candidate else self._training.mode)
        return self

    def pass_failed(self, mode: Mode, reason: str) -> None:
        if mode is not self._candidate:
            super().pass_failed(mode, reason)
            return
        self._failure = reason
        self._training.slot_state.mode = self._training.mode

    def second_gradients_taken(self) -> None:
        if not self._tries_code:
            super().second_gradients_taken()
            return
        self._failure = self._failure or module_finder.LATE_DOUBLE
        self._training.slot_state.mode = self._training.mode

    def facts_at_exit(self) -> "dict[str, Any]":
        compiles = self._training.compiles
        text = "after %d steps of the job" % self._training.steps
        if self._failure:
            text += "; %s" % self._failure
        if compiles is not None and compiles.count:
            text += "; compiling took %.1f s" % compiles.seconds
        self._training.log_line("the job ended before the trial did, %s" % text)
        return {"reason" if self._tries_code else "autocast_reason": text}

    def _begin_step(self, mode: Mode) -> None:
        self._compile_count = self._training.compile_count
        self._start_s = self._training.begin_step(mode)

    def _is_comparable(self) -> bool:
        """Passes without gradients in each step (pseudo-labels, a GAN's generator) are in both modes alike."""
        slot_state = self._training.slot_state
        is_alike = slot_state.other_calls == self._other_calls
        self._other_calls = slot_state.other_calls
        return slot_state.calls > 0 and is_alike and not is_session_open()

    def _new_failure(self) -> str:
        """Return why the trial is over after this step, "" if it goes on."""
        reason = ""
        if self._tries_code and self._interleaving.steps == WARM_STEPS:
            reason = self._training.no_code_reason()
        if not reason and self._training.is_over_budget:
            reason = self._training.over_budget_reason()
        return reason

    def _apply(self, decision: TrialDecision) -> None:
        """End the trial with *decision*: keep the candidate or not, and write what it has shown."""
        training, interleaving = self._training, self._interleaving
        interleaving.end()
        measuring.end()
        if self._tries_code:
            training.close_budget()
        spent_s = interleaving.spent_s
        trial_s = cost_s(spent_s, interleaving.steps, decision.eager_s) if decision.eager_s else spent_s
        if decision.keeps_candidate:
            training.mode = self._candidate
        cost = "the trial cost %.1f s" % trial_s
        if self._tries_code:
            text, cost = self._write_code_decision(decision, trial_s, cost)
        else:
            text = sentences.decision_figures("bfloat16", "float32", decision, training.class_names())
            training.facts_file.write(
                autocast_state="bf16" if decision.keeps_candidate else "off",
                autocast_reason=text,
                autocast_trial=_trial_facts(decision, trial_s),
            )
        training.log_line("%s; %s" % (text, cost))

    def _write_code_decision(self, decision: TrialDecision, trial_s: float, cost: str) -> "tuple[str, str]":
        """Write the facts; return the sentences of the decision and of its *cost*, with what compiling took."""
        training = self._training
        pays_at = None
        if decision.keeps_candidate:
            pays_at = break_even_step(training.steps, trial_s, decision.eager_s, decision.candidate_s)
        text = sentences.decision_figures("compiled", "eager", decision, training.class_names())
        training.facts_file.write(
            state="compiled" if decision.keeps_candidate else "eager",
            reason=text,
            trial=_trial_facts(decision, trial_s),
            break_even_step=pays_at,
            **training.measured_facts(),
        )
        if training.compiles is not None and training.compiles.count:
            cost += ", %.1f s of it compiling" % training.compiles.seconds
        if pays_at is not None:
            cost += "; it pays off by step %d" % pays_at
        return text, cost


def _trial_facts(decision: TrialDecision, trial_s: float) -> "dict[str, Any] | None":
    """Return the fields of `Trial` in job/compilation.py, None if nothing was compared."""
    if not decision.pairs:
        return None
    return {
        "pairs": decision.pairs,
        "eager_step_ms": round(decision.eager_s * 1000, 3),
        "candidate_step_ms": round(decision.candidate_s * 1000, 3),
        "kept": decision.keeps_candidate,
        "cost_s": round(trial_s, 3),
    }
