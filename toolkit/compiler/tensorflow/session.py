"""What is shared by all training functions of this process: what the job asks for, the facts, and lines for the log."""

import atexit
import json
import os
import sys

from ..told import Told

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .ranks import Ballot


class Session:
    """This process's.

    `gradients`: how often gradients were computed by a tape: in a tf.function, only while it is traced.
    `models`: how often a Keras model was called while a function was traced. `last`: the outermost tf.function that was
    called last. `compiles_calls`: the function that is traced has the model's calls compiled. `ballot`: the ranks' vote
    that goes into this trace, None for one rank. `functions`: the process's TrainingFunctions (function.py).
    """

    def __init__(self, tensorflow: "Any", asked: "dict[str, Any]") -> None:
        self.tensorflow = tensorflow
        self.mode = str(asked.get("compile", "off"))
        self.debugs = bool(asked.get("debug"))
        self.dump = str(asked.get("dump", "")) if self.debugs else ""
        self.gradients = 0
        self.models = 0
        self.last: Any = None
        self.compiles_calls = False
        self.ballot: Ballot | None = None
        self.functions: list[Any] = []
        self._told: Told | None = None
        atexit.register(self._at_end)

    def say(self, text: str) -> None:
        """Write one line to the log."""
        sys.stderr.write("[toolkit] compiler: %s\n" % text)
        sys.stderr.flush()

    def tell(self) -> None:
        """Write the facts about the training function that has run most steps."""
        if not self.functions:
            return
        main = max(self.functions, key=lambda each: each.steps)
        if self._told is None:
            self._told = Told("tensorflow")
        self._told.tell(
            rank=rank(),
            compile=self.mode,
            modules=[each.name for each in self.functions if each.state != "eager"],
            dump=self.dump,
            **main.facts(),
        )

    def _at_end(self) -> None:
        if not self.functions and "torch" not in sys.modules:
            Told("tensorflow").tell(
                rank=rank(),
                compile=self.mode,
                state="nothing",
                reason="no tf.function that computes gradients, and no Keras model with an open jit_compile, was run",
            )
        self.tell()


def rank() -> int:
    """Return this process's rank, 0 if nothing says it."""
    from ...ranks.position import rank_position

    here = rank_position(os.environ)
    if here.launcher:
        return here.rank
    try:
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        return int(task["index"])
    except (KeyError, ValueError, TypeError):
        return 0


_session: "Session | None" = None


def begin(tensorflow: "Any", asked: "dict[str, Any]") -> Session:
    """Return the session of this process, made at the first call."""
    global _session
    if _session is None:
        _session = Session(tensorflow, asked)
    return _session


def session() -> "Session | None":
    """Return the session of this process, None if TensorFlow is not imported or nothing is compiled."""
    return _session
