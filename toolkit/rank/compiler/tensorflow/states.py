"""The states of a training function. Each is an object that runs steps; the end of a step leads to the next state:

FirstStep         runs natively: it creates what is created once, and its trace shows what XLA would not compile and
                  whether ranks exchange tensors
CompilingStep     the first step of a candidate, which is traced and compiled; if that fails, the same batch is
                  trained natively, and the next candidate follows
InterleavedSteps  with "auto", native and compiled steps take turns (trial.py) until it is clear which are faster
CompiledSteps     settled: compiled to the end, unless XLA refuses a later batch
NativeSteps       settled: native to the end
"""

import re
import time

from ...frameworks import tensorflow as private
from .. import handlers, trial
from . import graphs, rank_agreement
from .script_step import CompiledStep

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .script_step import Arguments, Candidate, ScriptStep

SLOW_TIMES, SLOW_S = 5.0, 0.15  # A compiled step beyond both has compiled for another shape.
MOST_TRIED = 16  # With "auto": each one costs a compilation.
STORM = 8  # Compilations for new shapes, after which a line says what to do.
MISSING = 1e30  # Stands for the times of a pair that a rank could not compare.
UNSUPPORTED = "Detected unsupported operations"
ADVICE = "give all batches one shape (drop_remainder=True, padding to a fixed length), or set TOOLKIT_COMPILE=off"


class StepState:
    """Runs the steps of one state, and chooses the state that follows."""

    def __init__(self, step: "ScriptStep") -> None:
        self._step = step

    def run(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        """Run a step; return what it returns."""
        return self._step.native(*arguments, **keywords)

    def step_ended(self) -> "StepState":
        """Return the state of the next step; *run* has returned."""
        raise NotImplementedError


class FirstStep(StepState):
    """The first step runs natively."""

    def step_ended(self) -> StepState:
        step, session = self._step, self._step.session
        step.facts.steps += 1
        try:
            step.tf_function = session.last
            operations = graphs.operations(step.tf_function) if step.tf_function is not None else frozenset()
            agreement = rank_agreement.find_agreement(session.tensorflow, operations)
            candidates = step.find_candidates(operations)
        except Exception as error:  # noqa: BLE001 - a TensorFlow that looks different from those known must still work
            return settle_native(step, "its trace cannot be read: %s" % _first_line(error))
        if agreement is None:
            collectives = ", ".join(graphs.collectives(operations)) or "unknown"
            reason = "ranks exchange gradients in a way over which they cannot agree (%s)" % collectives
            return settle_native(step, reason)
        step.agree = agreement[0]
        if session.mode == "auto" and len(session.functions) > MOST_TRIED:
            candidates = "%d others of this process were tried before" % MOST_TRIED
        if isinstance(candidates, str):
            return settle_native(step, candidates)
        step.candidates = list(candidates)
        return try_next(step, "")


class CompilingStep(StepState):
    """The first compiled step is traced and compiled. If that fails, the step runs natively."""

    def __init__(self, step: "ScriptStep", candidate: "Candidate") -> None:
        super().__init__(step)
        self._candidate = candidate
        self._compiled: CompiledStep | None = None
        self._failure = ""
        self._took_s = 0.0

    def run(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        step, candidate = self._step, self._candidate
        renewed: Callable[[], Arguments] | None = None
        if step.make_repeatable is not None:
            arguments, renewed = step.make_repeatable(*arguments)
        variables = step.copy_variables() if candidate.calls else []
        ballot = rank_agreement.Ballot(step.agree) if candidate.calls and not step.is_one_rank else None
        start_s = time.perf_counter()
        try:
            compiled = CompiledStep(step.session, candidate, ballot)
            output = compiled.run(arguments, keywords)
        except StopIteration:
            raise
        except Exception as error:  # Whatever it is: if the native step fails as well, it is raised.
            if handlers.find_raised(error, set()) is not None:
                raise
            if ballot is not None and ballot.passed:  # The other ranks go on: this one cannot take the step again.
                raise
            self._failure = _agree_on_failure(ballot, error)
            self._took_s = time.perf_counter() - start_s
            for variable, value in variables:
                variable.assign(value)
            return step.native(*(arguments if renewed is None else renewed()), **keywords)
        self._took_s = time.perf_counter() - start_s
        self._compiled = compiled
        step.synchronize()
        return output

    def step_ended(self) -> StepState:
        step = self._step
        step.facts.steps += 1
        if self._compiled is None:
            step.facts.compile_s += self._took_s
            return try_next(step, "%s cannot be compiled: %s" % (self._candidate.part, self._failure))
        step.facts.count_compilation(self._took_s)
        if step.session.mode == "on":
            return settle_compiled(step, self._compiled, "%s is compiled, as asked" % self._candidate.part)
        return InterleavedSteps(step, self._compiled, self._took_s)


class CompilableSteps(StepState):
    """Steps that may run compiled. If XLA refuses to compile one for a later batch, it and all that follow run
    natively."""

    def __init__(self, step: "ScriptStep", compiled: CompiledStep) -> None:
        super().__init__(step)
        self._compiled = compiled
        self._refusal = ""
        self._took_s = 0.0
        self._was_traced = False

    def _run_compiled(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        try:
            return self._compiled.run(arguments, keywords)
        except Exception as error:
            step, errors = self._step, self._step.session.tensorflow.errors
            # Compiled once, so XLA knows the operations: it refuses a new shape before the step has begun.
            refused = isinstance(error, (errors.InvalidArgumentError, errors.UnimplementedError))
            if step.make_repeatable is not None or not refused or not step.is_one_rank:
                raise
            output = step.native(*arguments, **keywords)
            self._refusal = "%s cannot be compiled for a later batch: %s" % (step.facts.name, _first_line(error))
            return output


class InterleavedSteps(CompilableSteps):
    """Native and compiled steps take turns. *first_s*: what the first compiled step took, which has run already."""

    def __init__(self, step: "ScriptStep", compiled: CompiledStep, first_s: float) -> None:
        super().__init__(step, compiled)
        self._interleaving = trial.Interleaving()
        self._interleaving.step_ended(first_s, compiled=True)
        self._was_candidate = False

    def run(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        step = self._step
        self._was_candidate = self._interleaving.turn == trial.CANDIDATE
        traced = step.session.gradients
        step.synchronize()
        start_s = time.perf_counter()
        run = self._run_compiled if self._was_candidate else super().run
        output = run(arguments, keywords)
        step.synchronize()
        self._took_s = time.perf_counter() - start_s
        self._was_traced = step.session.gradients != traced
        return output

    def step_ended(self) -> StepState:
        step, interleaving = self._step, self._interleaving
        if self._refusal:
            interleaving.end()
            return settle_native(step, self._refusal)
        step.facts.steps += 1
        compiled = self._was_traced and self._was_candidate
        if compiled:
            step.facts.count_compilation(self._took_s)
        interleaving.step_ended(self._took_s, is_clean=not self._was_traced, compiled=compiled)
        if compiled:
            self._check_budget()
        return self._agree_on_decision() if interleaving.due else self

    def _check_budget(self) -> None:
        """End the trial if compiling has taken too long.

        XLA compiles in one call that nothing ends. The first compilation is paid: only one more is too many.
        """
        facts, budget_s = self._step.facts, self._step.session.budget_s
        if facts.compilations > 1 and budget_s is not None and facts.compile_s > budget_s:
            self._interleaving.reason = "%d compilations took %.1f s, more than %g s (TOOLKIT_COMPILE_BUDGET_S)" % (
                facts.compilations,
                facts.compile_s,
                budget_s,
            )

    def _agree_on_decision(self) -> StepState:
        """Decide together with all ranks: a decision is due for all of them by the number of the step."""
        step, interleaving = self._step, self._interleaving
        pair_count = interleaving.due
        values = [float(bool(interleaving.reason))]
        for number in range(pair_count):
            values += interleaving.pairs.get(number, (MISSING, MISSING))
        agreed = step.agree(values)
        pairs = [(agreed[index], agreed[index + 1]) for index in range(1, len(agreed), 2)]
        decision = trial.decide([pair for pair in pairs if max(pair) < MISSING], pair_count)
        if agreed[0]:
            interleaving.end()
            reason = interleaving.reason or "on another rank, compiling takes too long, or comes step after step"
            return settle_native(step, reason)
        if decision is None:
            return self
        interleaving.end()
        if decision.reason:
            return settle_native(step, decision.reason)
        return self._apply(decision)

    def _apply(self, decision: trial.TrialDecision) -> StepState:
        step, facts = self._step, self._step.facts
        facts.decision = decision
        facts.trial_s = trial.cost_s(self._interleaving.spent_s, self._interleaving.steps, decision.eager_s)
        figures = "%s compiled %.2f ms, native %.2f ms (medians of %d pairs of steps; the trial cost %.1f s)" % (
            self._compiled.candidate.part,
            decision.candidate_s * 1e3,
            decision.eager_s * 1e3,
            decision.pairs,
            facts.trial_s,
        )
        if decision.candidate_s > max(SLOW_TIMES * decision.eager_s, SLOW_S):
            figures += ": XLA compiles anew for each new shape of a batch"
        return (
            settle_compiled(step, self._compiled, figures) if decision.keeps_candidate else settle_native(step, figures)
        )


class CompiledSteps(CompilableSteps):
    """All further steps run compiled."""

    def run(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        session = self._step.session
        traced = session.gradients
        start_s = time.perf_counter()
        output = self._run_compiled(arguments, keywords)
        self._took_s = time.perf_counter() - start_s
        self._was_traced = session.gradients != traced
        return output

    def step_ended(self) -> StepState:
        if self._refusal:
            return settle_native(self._step, self._refusal)
        took_s = self._took_s
        if self._was_traced:
            self._count_recompilation(self._changed_argument())
        elif took_s > SLOW_S and self._is_outlier(took_s):
            self._count_recompilation("a batch of another shape, by the step's time")
        self._step.count(took_s)
        return self

    def _is_outlier(self, took_s: float) -> bool:
        times_s = self._step.facts.step_times_s
        return len(times_s) > SLOW_TIMES and took_s > SLOW_TIMES * trial.median(times_s)

    def _count_recompilation(self, reason: str) -> None:
        facts, session = self._step.facts, self._step.session
        facts.count_compilation(self._took_s)
        facts.recompilations[reason] = facts.recompilations.get(reason, 0) + 1
        count = sum(facts.recompilations.values())
        if count in (1, STORM):
            text = "%s was compiled again at step %d, in %.1f s: %s" % (
                facts.name,
                facts.steps + 1,
                self._took_s,
                reason,
            )
            session.log_line(text + (". %d times so far: %s" % (count, ADVICE) if count > 1 else ""))
        session.write_facts()

    def _changed_argument(self) -> str:
        """Return which argument's shape made TensorFlow trace the step again."""
        function = getattr(self._compiled.function, "function", None)
        traces = private.list_traces(function) if function is not None else []
        if len(traces) < 2:
            return "a batch of another shape"
        return graphs.describe_change(traces[-2].function_type, traces[-1].function_type)


class NativeSteps(StepState):
    """All further steps run natively."""

    def __init__(self, step: "ScriptStep") -> None:
        super().__init__(step)
        self._took_s = 0.0

    def run(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        start_s = time.perf_counter()
        output = self._step.native(*arguments, **keywords)
        self._took_s = time.perf_counter() - start_s
        return output

    def step_ended(self) -> StepState:
        self._step.count(self._took_s)
        return self


def try_next(step: "ScriptStep", reason: str) -> StepState:
    """Return the state that tries the next candidate; without one, stay native because of *reason*."""
    if not step.candidates:
        return settle_native(step, reason)
    return CompilingStep(step, step.candidates.pop(0))


def settle_native(step: "ScriptStep", reason: str) -> StepState:
    """Return the state of native steps, after writing *reason*."""
    step.facts.settle("eager", reason)
    step.session.write_facts()  # Before the line: who waits for the line finds the facts.
    step.session.log_line("%s runs natively: %s" % (step.facts.name, reason))
    return NativeSteps(step)


def settle_compiled(step: "ScriptStep", compiled: CompiledStep, reason: str) -> StepState:
    """Return the state of compiled steps, after writing *reason*."""
    step.facts.settle("compiled", reason)
    step.session.write_facts()
    step.session.log_line("%s stays compiled: %s" % (step.facts.name, reason))
    return CompiledSteps(step, compiled)


def _agree_on_failure(ballot: "rank_agreement.Ballot | None", error: Exception) -> str:
    """Return why the step was not compiled; tell the other ranks if they do not know it."""
    if ballot is not None and ballot.refused:
        return rank_agreement.ELSEWHERE
    if ballot is not None:
        ballot.cast(failed=True)
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    """Return the message of *error* in one line of at most 240 characters, without the attributes of TensorFlow's
    nodes."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    text = text[max(text.find(UNSUPPORTED), 0) :]  # Before it come places in Keras.
    text = re.sub(r"\[_XlaMustCompile[^]]*\]", "", text).partition("{{node")[0].rstrip(" ){,;")
    return "%s: %s" % (type(error).__name__, text[:240])
