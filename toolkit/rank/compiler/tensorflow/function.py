"""A function that runs one training step, natively or compiled: which of the two is tried, measured and kept.

The first step always runs natively: it creates what is created once, and its trace shows what XLA would not compile and
whether ranks exchange tensors. With "on" the next step is compiled. With "auto" steps take turns (trial.py) until it is
clear which is faster. A step that cannot be compiled runs natively, with the same batch.
"""

import re
import time
import weakref
from collections import deque

from .. import handlers, trial
from . import graphs, ranks

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .session import Session

KEPT = 501  # Steps of which the median is told.
TOLD_AT = 64  # Facts are told again after so many steps, then after twice as many, and so on.
SLOW_TIMES, SLOW_S = 5.0, 0.15  # A compiled step beyond both has compiled for another shape.
MOST_TRIED = 16  # With "auto": each one costs a compilation.
STORM = 8  # Compilations for new shapes, after which a line says what to do.
MISSING = 1e30  # Stands for the times of a pair that a rank could not compare.
UNSUPPORTED = "Detected unsupported operations"
ADVICE = "give all batches one shape (drop_remainder=True, padding to a fixed length), or set TOOLKIT_COMPILE=off"


class Way:
    """One way to compile a step. `what`: the part that is compiled. `make`: returns the compiled function.

    `calls`: the model's calls are compiled, within a step that is not. `is_whole`: the step is, so that it has changed
    nothing if it could not be compiled.
    """

    def __init__(self, what: str, make: "Callable[[], Callable[..., Any]]", *, calls: bool = False) -> None:
        self.what = what
        self.make = make
        self.calls = calls


class TrainingFunction:
    """The training function *name* of the script.

    *native*: runs a step. *ways*: from the operations of the native trace, the ways to compile it, the best first, or
    why there is none. *again*: makes of a step's arguments, which hold an iterator, arguments for a step that may be
    repeated, and a function that returns them anew; None if they can be used twice.
    """

    def __init__(
        self,
        session: "Session",
        name: str,
        native: "Callable[..., Any]",
        ways: "Callable[[frozenset[str]], list[Way] | str]",
        again: "Callable[..., tuple[tuple[Any, ...], Callable[[], tuple[Any, ...]]]] | None" = None,
    ) -> None:
        self._session = session
        self.name = name
        self._native = native
        self._find_ways = ways
        self._again = again
        self.state = "trial"
        self.reason = ""
        self.steps = 0
        self.compile_s = 0.0
        self.compilations = 0
        self.decided_at = 0
        self._recompilations: dict[str, int] = {}
        self._times: deque[float] = deque(maxlen=KEPT)
        self._tell_at = TOLD_AT
        self._ways: list[Way] = []
        self._way: Way | None = None
        self._compiled: Callable[..., Any] | None = None
        self._agree: ranks.Agree = ranks.alone
        self._ballot: ranks.Ballot | None = None
        self._turns = trial.Turns()
        self._decision: trial.Decision | None = None
        self._cost_s = 0.0
        self._run: Callable[..., Any] = self._first
        self._function: Any = None  # The tf.function of the native step, as far as it is known.
        session.functions.append(weakref.ref(self))

    def __del__(self) -> None:
        # A script that trains model after model (cross-validation) must not keep them all.
        self._session.gone.append((self.name, self.state, self.facts()))

    def __call__(self, *arguments: "Any", **named: "Any") -> "Any":
        return self._run(*arguments, **named)

    def __reduce__(self) -> "Any":
        """A copy of the function that holds this has no compiled twin."""
        return (_nothing, ())

    def ran_first(self) -> None:
        """The first step has run, natively: choose what to try."""
        self.steps += 1
        try:
            self._function = self._session.last
            found = graphs.operations(self._function) if self._function is not None else frozenset()
            agreed = ranks.agreement(self._session.tensorflow, found)
            ways = self._find_ways(found)
        except Exception as error:  # noqa: BLE001 - a TensorFlow that looks different from those known must still work
            self._decide_native("its trace cannot be read: %s" % _first_line(error))
            return
        if agreed is None:
            self._decide_native("ranks exchange gradients in a way over which they cannot agree (%s)" % _listed(found))
            return
        self._agree = agreed[0]
        if self._session.mode == "auto" and len(self._session.functions) > MOST_TRIED:
            ways = "%d others of this process were tried before" % MOST_TRIED
        if isinstance(ways, str):
            self._decide_native(ways)
            return
        self._ways = list(ways)
        self._try_next("")

    def _first(self, *arguments: "Any", **named: "Any") -> "Any":
        made = self._native(*arguments, **named)
        self.ran_first()
        return made

    def _try_next(self, why: str) -> None:
        """Make the next way the one that is tried; without one, stay native because of *why*."""
        if not self._ways:
            self._decide_native(why)
            return
        self._way = self._ways.pop(0)
        self._compiled = None
        self._turns = trial.Turns()
        self._run = self._compiling

    def _compiling(self, *arguments: "Any", **named: "Any") -> "Any":
        """Run the first compiled step: it is traced and compiled. If that fails, run it natively."""
        way = self._way
        assert way is not None
        fresh: Callable[[], tuple[Any, ...]] | None = None
        if self._again is not None:
            arguments, fresh = self._again(*arguments)
        kept = self._saved() if way.calls else None
        self._ballot = ranks.Ballot(self._agree) if way.calls and self._agree is not ranks.alone else None
        start_s = time.perf_counter()
        try:
            self._compiled = way.make()
            made = self._called(arguments, named)
        except StopIteration:
            raise
        except Exception as error:  # Whatever it is: if the native step fails as well, it is raised.
            if handlers.raised(error, set()) is not None:
                raise
            why = _first_line(error)
            if self._ballot is not None:
                if self._ballot.passed:  # The other ranks go on: this one cannot take the step again.
                    raise
                if self._ballot.refused:
                    why = ranks.ELSEWHERE
                else:
                    self._ballot.cast(failed=True)
            took_s = time.perf_counter() - start_s
            if kept is not None:
                _restore(kept)
            made = self._native(*(arguments if fresh is None else fresh()), **named)
            self.compile_s += took_s
            self.steps += 1
            self._try_next("%s cannot be compiled: %s" % (way.what, why))
            return made
        took_s = time.perf_counter() - start_s
        self._synchronize()
        self.steps += 1
        self.compilations += 1
        self.compile_s += took_s
        if self._session.mode == "on":
            self._decide("compiled", "%s is compiled, as asked" % way.what)
            return made
        self._end_turn(took_s, compiled=True)
        self._run = self._in_trial
        return made

    def _in_trial(self, *arguments: "Any", **named: "Any") -> "Any":
        is_candidate = self._turns.turn == trial.CANDIDATE
        traced = self._session.gradients
        self._synchronize()
        start_s = time.perf_counter()
        if is_candidate:
            try:
                made = self._called(arguments, named)
            except Exception as error:  # noqa: BLE001 - most are raised again
                return self._refused(error, arguments, named)
        else:
            made = self._native(*arguments, **named)
        self._synchronize()
        took_s = time.perf_counter() - start_s
        self.steps += 1
        compiled = self._session.gradients != traced
        if compiled and is_candidate:
            self.compilations += 1
            self.compile_s += took_s
        self._end_turn(took_s, compiled=compiled and is_candidate, is_clean=not compiled)
        return made

    def _end_turn(self, took_s: float, *, compiled: bool, is_clean: bool = True) -> None:
        """Count a step of the trial. Where a decision is due, as the step's number says, ranks make it together."""
        turns = self._turns
        turns.step_ended(took_s, is_clean=is_clean, compiled=compiled)
        budget_s = self._session.budget_s
        # XLA compiles in one call that nothing ends. What it has cost is paid: only one more compilation is too many.
        if compiled and self.compilations > 1 and budget_s is not None and self.compile_s > budget_s:
            turns.reason = "%d compilations took %.1f s, more than %g s (TOOLKIT_COMPILE_BUDGET_S)" % (
                self.compilations,
                self.compile_s,
                budget_s,
            )
        if not turns.due:
            return
        run = turns.due
        told = [float(bool(turns.reason))]
        for number in range(run):
            told += turns.pairs.get(number, (MISSING, MISSING))
        agreed = self._agree(told)
        pairs = [(agreed[at], agreed[at + 1]) for at in range(1, len(agreed), 2)]
        found = trial.decided([pair for pair in pairs if max(pair) < MISSING], run)
        if agreed[0]:
            turns.end()
            self._decide_native(turns.reason or "on another rank, compiling takes too long, or comes step after step")
        elif found is not None:
            turns.end()
            self._end_trial(found)

    def _end_trial(self, found: trial.Decision) -> None:
        if found.reason:
            self._decide_native(found.reason)
            return
        self._decision = found
        self._cost_s = trial.cost_s(self._turns.spent_s, self._turns.steps, found.eager_s)
        figures = "%s compiled %.2f ms, native %.2f ms (medians of %d pairs of steps; the trial cost %.1f s)" % (
            self._way.what if self._way is not None else "the step",
            found.candidate_s * 1e3,
            found.eager_s * 1e3,
            found.pairs,
            self._cost_s,
        )
        if found.candidate_s > max(SLOW_TIMES * found.eager_s, SLOW_S):
            figures += ": XLA compiles anew for each new shape of a batch"
        self._decide("compiled" if found.kept else "eager", figures)

    def _called(self, arguments: "Sequence[Any]", named: "dict[str, Any]") -> "Any":
        """Run a compiled step. It may be traced: then the model's calls are compiled if this is the way."""
        assert self._compiled is not None and self._way is not None
        if not self._way.calls:
            return self._compiled(*arguments, **named)
        session = self._session
        session.compiles_calls, session.ballot = True, self._ballot
        try:
            return self._compiled(*arguments, **named)
        finally:
            session.compiles_calls, session.ballot = False, None

    def _decide_native(self, why: str) -> None:
        self._decide("eager", why)

    def _decide(self, state: str, why: str) -> None:
        self.state, self.reason, self.decided_at = state, why, self.steps
        self._session.tell()  # Before the line: who waits for the line finds the facts.
        if state == "compiled":
            self._run = self._steady_compiled
            self._session.say("%s stays compiled: %s" % (self.name, why))
        else:
            self._compiled, self._way = None, None
            self._run = self._steady_native
            self._session.say("%s runs natively: %s" % (self.name, why))

    def _steady_native(self, *arguments: "Any", **named: "Any") -> "Any":
        start_s = time.perf_counter()
        made = self._native(*arguments, **named)
        self._count(time.perf_counter() - start_s)
        return made

    def _steady_compiled(self, *arguments: "Any", **named: "Any") -> "Any":
        traced = self._session.gradients
        start_s = time.perf_counter()
        try:
            made = self._called(arguments, named)
        except Exception as error:  # noqa: BLE001 - most are raised again
            return self._refused(error, arguments, named)
        took_s = time.perf_counter() - start_s
        if self._session.gradients != traced:
            self._recompiled(took_s, self._changed())
        elif took_s > SLOW_S and len(self._times) > SLOW_TIMES and took_s > SLOW_TIMES * trial.median(self._times):
            self._recompiled(took_s, "a batch of another shape, by the step's time")
        self._count(took_s)
        return made

    def _refused(self, error: Exception, arguments: "Sequence[Any]", named: "dict[str, Any]") -> "Any":
        """Run a step natively, this one and all that follow, because XLA refused to compile it for a later batch."""
        tensorflow = self._session.tensorflow
        # Compiled once, so XLA knows the operations: it refuses a new shape before the step has begun.
        refused = (tensorflow.errors.InvalidArgumentError, tensorflow.errors.UnimplementedError)
        if self._again is not None or not isinstance(error, refused) or self._agree is not ranks.alone:
            raise error
        made = self._native(*arguments, **named)
        self._turns.end()
        self._decide_native("%s cannot be compiled for a later batch: %s" % (self.name, _first_line(error)))
        return made

    def _recompiled(self, took_s: float, why: str) -> None:
        self.compilations += 1
        self.compile_s += took_s
        self._recompilations[why] = self._recompilations.get(why, 0) + 1
        count = sum(self._recompilations.values())
        if count in (1, STORM):
            self._session.say(
                "%s was compiled again at step %d, in %.1f s: %s%s"
                % (
                    self.name,
                    self.steps + 1,
                    took_s,
                    why,
                    ". %d times so far: %s" % (count, ADVICE) if count > 1 else "",
                )
            )
        self._session.tell()

    def _changed(self) -> str:
        """Return which argument's shape made TensorFlow trace the step again."""
        function = getattr(self._compiled, "function", None)
        traces = function._list_all_concrete_functions() if function is not None else []
        if len(traces) < 2:
            return "a batch of another shape"
        return graphs.changed(traces[-2].function_type, traces[-1].function_type)

    def _count(self, took_s: float) -> None:
        self.steps += 1
        self._times.append(took_s)
        if self.steps >= self._tell_at:
            self._tell_at = self.steps * 2
            self._session.tell()

    def _synchronize(self) -> None:
        """Wait until the GPUs have done their work, so that a time is a step's own. CPUs have when a step returns."""
        tensorflow = self._session.tensorflow
        if tensorflow.config.list_physical_devices("GPU"):
            try:
                tensorflow.test.experimental.sync_devices()
            except (tensorflow.errors.OpError, AttributeError):  # Under MultiWorkerMirroredStrategy it is not possible.
                pass

    def _saved(self) -> "list[tuple[Any, Any]]":
        """Return the variables of the step, each with a copy of its value."""
        function = self._function
        traces = function._list_all_concrete_functions() if function is not None else []
        found = {}
        for variable in traces[-1].graph.variables if traces else ():
            for part in getattr(variable, "values", None) or (variable,):
                found[id(part)] = (part, self._session.tensorflow.identity(part))
        return list(found.values())

    def facts(self) -> "dict[str, Any]":
        """Return what is told of this function; the fields are those of job/compilation.py."""
        decision = self._decision
        told: dict[str, Any] = {
            "state": self.state,
            "reason": self.reason,
            "compile_s": round(self.compile_s, 3),
            "compilations": self.compilations,
            "recompilations": [
                {"what": self.name, "why": why, "count": count} for why, count in self._recompilations.items()
            ],
            "steps": self.steps,
            "steady_step_ms": trial.median(self._times) * 1e3 if self._times else None,
            "trial": None,
            "break_even_step": None,
        }
        if decision is not None:
            told["trial"] = {
                "pairs": decision.pairs,
                "eager_step_ms": decision.eager_s * 1e3,
                "candidate_step_ms": decision.candidate_s * 1e3,
                "kept": decision.kept,
                "cost_s": self._cost_s,
            }
            if decision.kept:
                told["break_even_step"] = trial.break_even_step(
                    self.decided_at, self._cost_s, decision.eager_s, decision.candidate_s
                )
        return told


def _restore(kept: "list[tuple[Any, Any]]") -> None:
    for variable, value in kept:
        variable.assign(value)


def _nothing() -> None:
    """Stand for a training function in a pickle."""


def _listed(found: "frozenset[str]") -> str:
    return ", ".join(graphs.collectives(found)) or "unknown"


def _first_line(error: BaseException) -> str:
    """Return what *error* says, in one line of at most 240 characters, without the attributes of TensorFlow's nodes."""
    text = " ".join(str(getattr(error, "message", "") or error).split())
    text = text[max(text.find(UNSUPPORTED), 0) :]  # Before it come places in Keras.
    text = re.sub(r"\[_XlaMustCompile[^]]*\]", "", text).partition("{{node")[0].rstrip(" ){,;")
    return "%s: %s" % (type(error).__name__, text[:240])
