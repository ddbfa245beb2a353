"""The facts about one training function: how it runs, what its trial has shown, and what compiling it took."""

from collections import deque

from .. import trial

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

MOST_TIMES = 501  # The median is that of the last steps.


class FunctionFacts:
    """The facts about the training function *name*."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "trial"
        """As `Compilation` in job/compilation.py has it."""
        self.reason = ""
        """Why it is in this state: one sentence."""
        self.steps = 0
        self.step_times_s: deque[float] = deque(maxlen=MOST_TIMES)
        """Those after the decision."""
        self.compile_s = 0.0
        self.compilations = 0
        self.recompilations: dict[str, int] = {}
        """The number of times that the step was compiled again, by the reason."""
        self.decided_at = 0
        """The step after which it was settled how it runs."""
        self.decision: trial.TrialDecision | None = None
        """None: nothing was compared."""
        self.trial_s = 0.0
        """The cost of the trial."""

    def settle(self, state: str, reason: str) -> None:
        """Set the *state* in which it stays, for *reason*."""
        self.state, self.reason, self.decided_at = state, reason, self.steps

    def count_compilation(self, took_s: float) -> None:
        """Count a compilation of *took_s* seconds."""
        self.compilations += 1
        self.compile_s += took_s

    def fields(self) -> "dict[str, Any]":
        """Return the facts as fields of `Compilation` in job/compilation.py."""
        times_s = self.step_times_s
        return {
            "state": self.state,
            "reason": self.reason,
            "compile_s": round(self.compile_s, 3),
            "compilations": self.compilations,
            "recompilations": [
                {"function": self.name, "reason": reason, "count": count}
                for reason, count in self.recompilations.items()
            ],
            "steps": self.steps,
            "steady_step_ms": trial.median(times_s) * 1e3 if times_s else None,
            "trial": self._trial_fields(),
            "break_even_step": self._break_even_step(),
        }

    def _trial_fields(self) -> "dict[str, Any] | None":
        decision = self.decision
        if decision is None:
            return None
        return {
            "pairs": decision.pairs,
            "eager_step_ms": decision.eager_s * 1e3,
            "candidate_step_ms": decision.candidate_s * 1e3,
            "kept": decision.keeps_candidate,
            "cost_s": self.trial_s,
        }

    def _break_even_step(self) -> "int | None":
        decision = self.decision
        if decision is None or not decision.keeps_candidate:
            return None
        return trial.break_even_step(self.decided_at, self.trial_s, decision.eager_s, decision.candidate_s)
