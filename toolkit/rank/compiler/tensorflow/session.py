"""What is shared by all training functions of this process: what the job asks for, the facts, and lines for the log."""

import atexit
import json
import os
import sys
import threading
import weakref

from ..told import Told

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .ranks import Ballot


class Session:
    """This process's.

    `gradients`: how often gradients were computed by a tape: in a tf.function, only while it is traced.
    `models`: how often a Keras model was called while a function was traced. `compiles_calls`: the function that is
    traced has the model's calls compiled. `ballot`: the ranks' vote that goes into this trace, None for one rank.
    `functions`: weak references to the process's TrainingFunctions
    (function.py); of those that are gone, `gone` has what is told of them.
    """

    def __init__(self, tensorflow: "Any", asked: "dict[str, Any]") -> None:
        self.tensorflow = tensorflow
        self.mode = str(asked.get("compile", "off"))
        self.budget_s: float | None = asked.get("budget_s")
        self.debugs = bool(asked.get("debug"))
        self.dump = str(asked.get("dump", "")) if self.debugs else ""
        self.gradients = 0
        self.models = 0
        self._local = threading.local()
        self.compiles_calls = False
        self.ballot: Ballot | None = None
        self.functions: list[weakref.ref[Any]] = []
        self.gone: list[tuple[str, str, dict[str, Any]]] = []
        self._told: Told | None = None
        atexit.register(self._at_end)

    @property
    def last(self) -> "Any":
        """The outermost tf.function that this thread called last."""
        known = getattr(self._local, "last", None)
        return None if known is None else known()

    @last.setter
    def last(self, function: "Any") -> None:
        self._local.last = None if function is None else weakref.ref(function)

    def say(self, text: str) -> None:
        """Write one line to the log."""
        sys.stderr.write("[toolkit] compiler: %s\n" % text)
        sys.stderr.flush()

    def tell(self) -> None:
        """Write the facts about the training function that has run most steps."""
        known = [(each.name, each.state, each.facts()) for ref in self.functions if (each := ref()) is not None]
        known += self.gone
        if not known:
            return
        _, _, main = max(known, key=lambda each: each[2]["steps"])
        if self._told is None:
            self._told = Told("tensorflow")
        self._told.tell(
            rank=rank(),
            compile=self.mode,
            modules=list(dict.fromkeys(name for name, state, _ in known if state != "eager")),
            dump=self.dump,
            **main,
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
    from ...mesh.position import rank_position

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
