"""A training step of the script: how it runs natively, and how it could be compiled."""

from ...frameworks import tensorflow as private
from . import rank_agreement
from .function_facts import FunctionFacts

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import Session

    Arguments = tuple[Any, ...]

FIRST_WRITTEN = 64  # Facts are written after so many steps, then after twice as many, and so on.


class Candidate:
    """A way to compile a step. *part*: of the step, that is compiled, for sentences. *make*: returns the compiled
    function. *calls*: the model's calls are compiled, within a step that is not."""

    def __init__(self, part: str, make: "Callable[[], Callable[..., Any]]", *, calls: bool = False) -> None:
        self.part = part
        self.make = make
        self.calls = calls


class CompiledStep:
    """The step compiled as *candidate*. *ballot*: the ranks' vote on its first run, None for one rank."""

    def __init__(self, session: "Session", candidate: Candidate, ballot: "rank_agreement.Ballot | None") -> None:
        self.candidate = candidate
        self.function = candidate.make()
        self._session = session
        self._ballot = ballot

    def run(self, arguments: "Arguments", keywords: "dict[str, Any]") -> "Any":
        """Run it. It may be traced: then the model's calls are compiled if the candidate says so."""
        if not self.candidate.calls:
            return self.function(*arguments, **keywords)
        session = self._session
        session.compiles_calls, session.ballot = True, self._ballot
        try:
            return self.function(*arguments, **keywords)
        finally:
            session.compiles_calls, session.ballot = False, None


class ScriptStep:
    """The step, as all states of its training function (states.py) see it."""

    def __init__(
        self,
        session: "Session",
        name: str,
        native: "Callable[..., Any]",
        find_candidates: "Callable[[frozenset[str]], list[Candidate] | str]",
        make_repeatable: "Callable[..., tuple[Arguments, Callable[[], Arguments]]] | None",
    ) -> None:
        self.session = session
        self.facts = FunctionFacts(name)
        self.native = native
        """Runs a step natively."""
        self.find_candidates = find_candidates
        """Returns, from the operations of the native trace, the candidates, the best first, or why there is none."""
        self.make_repeatable = make_repeatable
        """Makes of a step's arguments, which hold an iterator, arguments for a step that may be repeated, and a
        function that returns them anew; None if they can be used twice."""
        self.candidates: list[Candidate] = []
        """Those that are still to be tried."""
        self.agree: rank_agreement.Agree = rank_agreement.alone
        """Gives all ranks the largest of their values."""
        self.tf_function: Any = None
        """The tf.function of the native step, as far as it is known."""
        self._writes_at = FIRST_WRITTEN

    @property
    def is_one_rank(self) -> bool:
        """There is nobody to agree with."""
        return self.agree is rank_agreement.alone

    def count(self, took_s: float) -> None:
        """Count a step after the decision, of *took_s* seconds, and write the facts now and then."""
        facts = self.facts
        facts.steps += 1
        facts.step_times_s.append(took_s)
        if facts.steps >= self._writes_at:
            self._writes_at = facts.steps * 2
            self.session.write_facts()

    def synchronize(self) -> None:
        """Wait until the GPUs have done their work, so that a time is a step's own. CPUs have when a step returns."""
        tensorflow = self.session.tensorflow
        if tensorflow.config.list_physical_devices("GPU"):
            try:
                tensorflow.test.experimental.sync_devices()
            except (tensorflow.errors.OpError, AttributeError):  # Under MultiWorkerMirroredStrategy it is not possible.
                pass

    def copy_variables(self) -> "list[tuple[Any, Any]]":
        """Return the variables of the step, each with a copy of its value."""
        function = self.tf_function
        traces = private.list_traces(function) if function is not None else []
        copies = {}
        for variable in traces[-1].graph.variables if traces else ():
            for part in getattr(variable, "values", None) or (variable,):
                copies[id(part)] = (part, self.session.tensorflow.identity(part))
        return list(copies.values())
