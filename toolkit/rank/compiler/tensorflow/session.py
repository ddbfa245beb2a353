"""The state that all training functions of this process share: the job's settings, the facts, and lines for the log."""

import atexit
import json
import os
import sys
import threading
import weakref

from ..facts_file import FactsFile

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

    from .rank_agreement import Ballot


class Session:
    """The session of this process. *settings*: as train/launchers/compiler_variables.py writes them."""

    def __init__(self, tensorflow: "Any", settings: "dict[str, Any]") -> None:
        self.tensorflow = tensorflow
        self.mode = str(settings.get("compile", "off"))
        self.budget_s: float | None = settings.get("budget_s")
        self.debugs = bool(settings.get("debug"))
        self.dump = str(settings.get("dump", "")) if self.debugs else ""
        self.gradients = 0
        """The number of times that a tape computed gradients: in a tf.function, only while it is traced."""
        self.models = 0
        """The number of calls of a Keras model while a function was traced."""
        self._local = threading.local()
        self.compiles_calls = False
        """The function that is traced has the model's calls compiled."""
        self.ballot: Ballot | None = None
        """The ranks' vote that goes into this trace, None for one rank."""
        self.functions: list[weakref.ref[Any]] = []
        """The process's TrainingFunctions (function.py)."""
        self.deleted: list[tuple[str, dict[str, Any]]] = []
        """The names and facts of TrainingFunctions that are deleted."""
        self._facts_file: FactsFile | None = None
        atexit.register(self._at_end)

    @property
    def last(self) -> "Any":
        """The outermost tf.function that this thread called last."""
        reference = getattr(self._local, "last", None)
        return None if reference is None else reference()

    @last.setter
    def last(self, function: "Any") -> None:
        self._local.last = None if function is None else weakref.ref(function)

    def log_line(self, text: str) -> None:
        """Write one line to the log."""
        sys.stderr.write("[toolkit] compiler: %s\n" % text)
        sys.stderr.flush()

    def write_facts(self) -> None:
        """Write the facts about the training function that has run most steps."""
        functions = [function for reference in self.functions if (function := reference()) is not None]
        facts = [(function.facts.name, function.facts.fields()) for function in functions] + self.deleted
        if not facts:
            return
        _, main = max(facts, key=lambda named_fields: named_fields[1]["steps"])
        if self._facts_file is None:
            self._facts_file = FactsFile("tensorflow")
        self._facts_file.write(
            rank=rank(),
            compile=self.mode,
            modules=list(dict.fromkeys(name for name, fields in facts if fields["state"] != "eager")),
            dump=self.dump,
            **main,
        )

    def _at_end(self) -> None:
        if not self.functions and "torch" not in sys.modules:
            FactsFile("tensorflow").write(
                rank=rank(),
                compile=self.mode,
                state="nothing",
                reason="no tf.function that computes gradients, and no Keras model with an open jit_compile, was run",
            )
        self.write_facts()


def rank() -> int:
    """Return this process's rank, 0 if nothing says it."""
    from ...mesh.position import rank_position

    position = rank_position(os.environ)
    if position.launcher:
        return position.rank
    try:
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        return int(task["index"])
    except (KeyError, ValueError, TypeError):
        return 0


_session: "Session | None" = None


def begin(tensorflow: "Any", settings: "dict[str, Any]") -> Session:
    """Return the session of this process, made at the first call."""
    global _session
    if _session is None:
        _session = Session(tensorflow, settings)
    return _session


def session() -> "Session | None":
    """Return the session of this process, None if TensorFlow is not imported or nothing is compiled."""
    return _session
