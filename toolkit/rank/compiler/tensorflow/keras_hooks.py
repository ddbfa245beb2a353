"""Compiles the steps of Keras's `fit`: Keras 3 on TensorFlow, and tf_keras. An explicit jit_compile stays as it is.

Keras 3.15's "auto" means no XLA on CPUs and under tf.distribute, tf_keras's None means none at all.
"""

import functools
import inspect
import sys
import warnings

from ...frameworks import keras as private_keras
from ...frameworks import tensorflow as private
from ...frameworks.cpython import is_being_imported
from . import graphs
from .function import TrainingFunction
from .script_step import Candidate
from .session import Session, session

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .rank_agreement import Ballot

OPEN = "_toolkit_jit_is_open"  # An attribute of a model: its compile() did not say jit_compile.
NAMES = ("keras", "tf_keras")


def attach(module: "ModuleType", settings: "dict[str, Any]") -> None:  # noqa: ARG001 - as hooks.attach
    """Attach to the module keras or tf_keras; to Keras on another backend than TensorFlow, not.

    If the script imports TensorFlow first, TensorFlow imports Keras before it is imported itself: then `attach_early`
    attaches to Keras.
    """
    current = session()
    if current is not None:
        _attach(module, current)


def attach_early(session: Session) -> None:
    """Attach to a Keras that was imported before TensorFlow, which is there now."""
    for name in NAMES:
        module = sys.modules.get(name)
        if module is not None and not is_being_imported(module):
            _attach(module, session)


def _attach(module: "ModuleType", session: Session) -> None:
    if module.__name__ == "tf_keras":
        _wrap_compile(module.Model, None)
        _wrap_legacy_trainer(session, module.Model)
        _wrap_models(session, module.Model)
        return
    if not hasattr(module, "config") or module.config.backend() != "tensorflow":
        return
    # Of the class that defines it: Keras takes a model that has another one for a model with a `compile` of its own.
    _wrap_compile(next(kind for kind in module.Model.__mro__ if "compile" in vars(kind)), "auto")
    _wrap_trainer(session, module.Model)
    _wrap_models(session, module.Model)


def _wrap_compile(kind: "Any", default: "Any") -> None:
    """Note which models leave jit_compile open: it is *default*."""
    compiles = kind.compile
    parameters = inspect.signature(compiles)

    @functools.wraps(compiles)
    def compile(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        output = compiles(self, *arguments, **keywords)
        setting = keywords.get("jit_compile", default)
        if "jit_compile" not in keywords and arguments:
            setting = parameters.bind(self, *arguments, **keywords).arguments.get("jit_compile", default)
        object.__setattr__(self, OPEN, setting == default)
        if setting == "auto":
            private_keras.set_saved_jit(self, setting)  # Not as resolved here: a model that is loaded again stays open.
        return output

    kind.compile = compile


def _refusal(strategy: "Any", operations: "frozenset[str]", tensorflow: "Any") -> str:
    """Return why nothing of a step under *strategy* with *operations* is compiled, "" if something may be."""
    distribute = tensorflow.distribute
    if not isinstance(strategy, distribute.MirroredStrategy) or strategy.num_replicas_in_sync == 1:
        return graphs.DEVICES if graphs.DEVICES in operations else ""
    if any("GPU" in device.upper() for device in strategy.extended.worker_devices):
        return "several GPUs in one process, of which TensorFlow takes collectives under XLA: not tried yet"
    cross_device_ops = private.find_cross_device_ops(strategy)
    return "" if isinstance(cross_device_ops, distribute.ReductionToOneDevice) else graphs.REPLICAS


def _is_open(model: "Any") -> bool:
    return bool(getattr(model, OPEN, False)) and not model.run_eagerly


def _supports_jit(model: "Any") -> bool:
    """True if Keras 3 lets *model* be compiled: it refuses a jit_compile that a layer does not support."""
    own_setting = model.jit_compile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns when it refuses.
        model.jit_compile = True
    supports, model.jit_compile = bool(model.jit_compile), own_setting
    return supports


def _wrap_trainer(session: Session, kind: "Any") -> None:
    makes = kind.make_train_function

    @functools.wraps(makes)
    def make_train_function(self: "Any", force: bool = False) -> "Any":
        if self.train_function is not None and not force:
            return makes(self, force)
        function = makes(self, force)
        if not _is_open(self):
            return function
        native = self.train_function

        def step(*, jit: bool) -> "Any":
            own_function, own_setting = self.train_function, self.jit_compile
            self.jit_compile = jit
            try:
                makes(self, True)
                return self.train_function
            finally:
                self.train_function, self.jit_compile = own_function, own_setting

        def candidates(operations: "frozenset[str]") -> "list[Candidate] | str":
            refusal = _refusal(self.distribute_strategy, operations, session.tensorflow)
            if refusal:
                return refusal
            refusing = [] if _supports_jit(self) else ["a layer with supports_jit=False"]
            blocking = refusing + graphs.obstacles(operations, with_input=False)
            if refusing:
                return "the model has %s" % refusing[0]
            possible = []
            if not blocking and self.distribute_strategy.num_replicas_in_sync == 1:
                possible.append(Candidate("the whole step", functools.partial(step, jit=True)))
            calls = functools.partial(step, jit=False)
            return [*possible, Candidate("the model's forward and backward pass", calls, calls=True)]

        make_repeatable = functools.partial(_make_repeatable, session.tensorflow, lambda: self.steps_per_execution)
        if self.jit_compile:  # "auto" is XLA on a GPU: the other one is without.
            native = step(jit=False)
        self.train_function = TrainingFunction(session, "%s.fit" % self.name, native, candidates, make_repeatable)
        return self.train_function

    kind.make_train_function = make_train_function


def _make_repeatable(tensorflow: "Any", steps: "Any", iterator: "Any") -> "Any":
    """Return arguments for one call of Keras's training function that trains the next batches of *iterator*, and a
    function that returns them anew. *steps*: returns the batches of a call.

    Batches of a distributed iterator stay: if they cannot be trained compiled, they are skipped.
    """
    if isinstance(iterator, tensorflow.distribute.DistributedIterator):
        return (iterator,), lambda: (iterator,)
    batches = [batch for _, batch in zip(range(int(steps())), iterator)]  # noqa: B905 - Python 3.8
    if not batches:
        raise StopIteration
    if not isinstance(iterator, tensorflow.data.Iterator):
        return (iter(batches),), lambda: (iter(batches),)
    # Of the same specification: TensorFlow then neither traces nor compiles the step again for the next batch.
    data = tensorflow.data.Dataset.from_generator(lambda: iter(batches), output_signature=iterator.element_spec)
    return (iter(data),), lambda: (iter(data),)


def _wrap_legacy_trainer(session: Session, kind: "Any") -> None:
    makes = kind.make_train_function
    with_coordinator = session.tensorflow.distribute.experimental.ParameterServerStrategy

    @functools.wraps(makes)
    def make_train_function(self: "Any", force: bool = False) -> "Any":
        if self.train_function is not None and not force:
            return makes(self, force)
        native = makes(self, force)
        if isinstance(self.distribute_strategy, with_coordinator):
            return native
        if not _is_open(self) or not private_keras.has_legacy_jit(self):
            return native

        def make(*, jit: bool) -> "Any":
            own_functions = self.train_function, getattr(self, "train_tf_function", None)
            private_keras.set_legacy_jit(self, jit)
            try:
                function = makes(self, True)
            finally:
                self.train_function, self.train_tf_function = own_functions
                private_keras.set_legacy_jit(self, None)

            def step(iterator: "Any") -> "Any":
                private_keras.set_legacy_jit(self, jit or None)  # Read when the step is traced.
                try:
                    return function(iterator)
                finally:
                    private_keras.set_legacy_jit(self, None)

            return step

        def candidates(operations: "frozenset[str]") -> "list[Candidate] | str":
            refusal = _refusal(self.distribute_strategy, operations, session.tensorflow)
            if refusal:
                return refusal
            blocking = graphs.obstacles(operations, with_input=False)
            possible = []
            if not blocking and self.distribute_strategy.num_replicas_in_sync == 1:
                possible.append(Candidate("the whole step", functools.partial(make, jit=True)))
            part = "the model's forward and backward pass"
            return [*possible, Candidate(part, functools.partial(make, jit=False), calls=True)]

        make_repeatable = functools.partial(_make_repeatable, session.tensorflow, lambda: self.steps_per_execution or 1)
        self.train_function = TrainingFunction(session, "%s.fit" % self.name, native, candidates, make_repeatable)
        return self.train_function

    kind.make_train_function = make_train_function


def _wrap_models(session: Session, kind: "Any") -> None:
    """Have the calls of the outermost model compiled, where a function is traced that wants it."""
    calls = kind.__call__
    tensorflow = session.tensorflow

    @functools.wraps(calls)
    def call(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        if tensorflow.executing_eagerly():
            return calls(self, *arguments, **keywords)
        session.models += 1
        if not session.compiles_calls or not getattr(self, "built", True):
            return calls(self, *arguments, **keywords)
        session.compiles_calls = False  # Models in this one are part of it.
        try:
            return _compile_forward(tensorflow, lambda: calls(self, *arguments, **keywords), session.ballot)
        finally:
            session.compiles_calls = True

    kind.__call__ = call


def _compile_forward(tensorflow: "Any", forward: "Any", ballot: "Ballot | None") -> "Any":
    """Return what *forward* returns, computed by compiled code in the graph under construction; so are gradients.

    *ballot*: the ranks' vote on it, None for one rank.

    Keras's masks, attributes of the tensors that XLA's code would drop, go along.
    """
    masked: list[int] = []

    def with_masks() -> "Any":
        output = forward()
        masks = [private_keras.find_mask(tensor) for tensor in tensorflow.nest.flatten(output)]
        masked[:] = [index for index, mask in enumerate(masks) if mask is not None]
        return output, [mask for mask in masks if mask is not None]

    output, masks = tensorflow.function(with_masks, autograph=False, jit_compile=True)()
    if ballot is not None:
        output = ballot.guard(tensorflow, output, 0)
    flat = tensorflow.nest.flatten(output)
    for index, mask in zip(masked, masks):  # noqa: B905 - Python 3.8
        private_keras.set_mask(flat[index], mask)
    return output
