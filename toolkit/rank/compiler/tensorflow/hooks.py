"""Compiles the tf.functions of the script that compute gradients.

Where TensorFlow lacks a private name that this needs, attach() raises, and nothing is compiled.
"""

import functools
import inspect
import os
import sys
from _thread import get_ident

from ...frameworks import tensorflow as private
from . import graphs, keras_hooks
from .function import TrainingFunction
from .script_step import Candidate
from .session import Session, begin

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

PLAN = "_toolkit_training"  # An attribute of a tf.function: its TrainingFunction, or False if it is none.
# Their tf.functions are their own matter: Keras's training function has a hook of its own (keras_hooks.py).
LIBRARIES = ("tensorflow", "keras", "tf_keras", "horovod", "tensorflow_probability", "toolkit", "smdistributed")


def attach(module: "ModuleType", settings: "dict[str, Any]") -> None:
    """Attach to the module tensorflow. *settings*: as train/launchers/compiler_variables.py writes them."""
    if settings.get("compile", "off") == "off":
        return
    if os.environ.get("SM_HP_MP_PARAMETERS"):
        sys.stderr.write("[toolkit] compiler: off: the model parallel library runs the steps of this job\n")
        return
    private.check_functions(module)
    session = begin(module, settings)
    if session.dump:
        os.makedirs(session.dump, exist_ok=True)
        flags = os.environ.get("XLA_FLAGS", "")
        if "--xla_dump_to" not in flags:  # Read when the first function is compiled.
            os.environ["XLA_FLAGS"] = (flags + " --xla_dump_to=" + session.dump).strip()
    _count_gradients(session, module.GradientTape)
    _wrap_calls(session, type(module.function(lambda: None)), module.executing_eagerly)
    keras_hooks.attach_early(session)


def _count_gradients(session: Session, tape: "Any") -> None:
    gradient = tape.gradient

    @functools.wraps(gradient)
    def counted(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        session.gradients += 1
        gradients = gradient(self, *arguments, **keywords)
        if session.compiles_calls and session.ballot is not None:
            return session.ballot.guard(session.tensorflow, gradients, 1)
        return gradients

    tape.gradient = counted


def _wrap_calls(session: Session, function: "Any", is_eager: "Any") -> None:
    calls, run_eagerly = function.__call__, session.tensorflow.config.functions_run_eagerly
    running: set[int] = set()  # Threads that are in a tf.function.

    @functools.wraps(calls)
    def call(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        plan = getattr(self, PLAN, None)
        thread = get_ident()
        if thread in running or not is_eager():
            return calls(self, *arguments, **keywords)
        running.add(thread)
        try:
            if plan:
                return plan(*arguments, **keywords)
            session.last = self
            if plan is False:
                return calls(self, *arguments, **keywords)
            return first(self, arguments, keywords)
        finally:
            running.discard(thread)

    def first(self: "Any", arguments: "Any", keywords: "Any") -> "Any":
        if private.has_jit_setting(self) or run_eagerly() or not _is_of_script(self):
            setattr(self, PLAN, False)
            return calls(self, *arguments, **keywords)
        traced, models = session.gradients, session.models
        output = calls(self, *arguments, **keywords)
        if session.gradients == traced:
            setattr(self, PLAN, False)
            return output
        plan = TrainingFunction(session, _name(self), native(self), candidates(self, session.models > models))
        setattr(self, PLAN, plan)
        plan.step_ended()
        return output

    def native(self: "Any") -> "Any":
        def step(*arguments: "Any", **keywords: "Any") -> "Any":
            session.last = self
            return calls(self, *arguments, **keywords)

        return step

    def candidates(self: "Any", calls_models: bool) -> "Any":
        def find(operations: "frozenset[str]") -> "list[Candidate] | str":
            if graphs.DEVICES in operations:
                return graphs.LOOP
            possible = []
            blocking = graphs.obstacles(operations, with_input=True)
            if not blocking:
                possible.append(Candidate("the whole step", lambda: make_twin(self, jit=True)))
            if calls_models:
                make = functools.partial(make_twin, self, jit=None)
                possible.append(Candidate("the model's forward and backward pass", make, calls=True))
            if possible:
                return possible
            return "XLA cannot compile %s, and no Keras model is called" % ", ".join(blocking)

        return find

    def make_twin(self: "Any", jit: "bool | None") -> "Any":
        twin = private.make_twin(self, jit=jit)
        setattr(twin, PLAN, False)

        def step(*arguments: "Any", **keywords: "Any") -> "Any":
            return calls(twin, *arguments, **keywords)

        step.function = twin  # type: ignore[attr-defined]
        return step

    function.__call__ = call


def _is_of_script(function: "Any") -> bool:
    """True if the code of the tf.function is not that of a library of LIBRARIES."""
    path = getattr(_code(function), "co_filename", "")
    for name in LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and path.startswith(os.path.dirname(file) + os.sep):
            return False
    return True


def _name(function: "Any") -> str:
    code = _code(function)
    path, line = getattr(code, "co_filename", ""), getattr(code, "co_firstlineno", 0)
    name = str(getattr(code, "co_qualname", None) or getattr(function, "name", "") or "a tf.function")
    return "%s (%s:%d)" % (name, os.path.basename(path), line) if path else name


def _code(function: "Any") -> "Any":
    """Return the code object of the Python function that the tf.function *function* traces, None if it has none."""
    python_function = inspect.unwrap(function.python_function)
    return getattr(getattr(python_function, "__func__", python_function), "__code__", None)
