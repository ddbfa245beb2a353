"""A function that runs one training step, natively or compiled; its states (states.py) try, measure and keep."""

import weakref

from .script_step import Candidate, ScriptStep
from .states import FirstStep, StepState

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .function_facts import FunctionFacts
    from .script_step import Arguments
    from .session import Session


class TrainingFunction:
    """The training function *name* of the script.

    *native*: runs a step. *find_candidates*: from the operations of the native trace, returns the candidates, the best
    first, or why there is none. *make_repeatable*: makes of a step's arguments, which hold an iterator, arguments for a
    step that may be repeated, and a function that returns them anew; None if they can be used twice.
    """

    def __init__(
        self,
        session: "Session",
        name: str,
        native: "Callable[..., Any]",
        find_candidates: "Callable[[frozenset[str]], list[Candidate] | str]",
        make_repeatable: "Callable[..., tuple[Arguments, Callable[[], Arguments]]] | None" = None,
    ) -> None:
        step = ScriptStep(session, name, native, find_candidates, make_repeatable)
        self._session = session
        self.facts: FunctionFacts = step.facts
        self._state: StepState = FirstStep(step)
        session.functions.append(weakref.ref(self))

    def __del__(self) -> None:
        # A script that trains model after model (cross-validation) must not keep them all.
        self._session.deleted.append((self.facts.name, self.facts.fields()))

    def __call__(self, *arguments: "Any", **keywords: "Any") -> "Any":
        state = self._state
        output = state.run(arguments, keywords)
        self._leave(state)
        return output

    def __reduce__(self) -> "Any":
        """A copy of the function that holds this has no compiled twin."""
        return (_nothing, ())

    def step_ended(self) -> None:
        """A step has run: choose the state of the next one. The first step may run before this exists."""
        self._leave(self._state)

    def _leave(self, state: StepState) -> None:
        successor = state.step_ended()
        if successor is not state:  # Else another thread of the script may have set the next state meanwhile.
            self._state = successor


def _nothing() -> None:
    """Stand for a training function in a pickle."""
