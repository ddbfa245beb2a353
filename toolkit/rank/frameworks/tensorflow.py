"""TensorFlow's private names, read in TensorFlow 2.21.0.

Of the module tensorflow itself whoever calls these functions has it: this file imports only parts that TensorFlow has
not made public.
"""

import contextlib
import importlib

from .private_names import MissingNameError, describe_missing, report_missing

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Of a tf.function: make_twin, has_jit_setting and list_traces use them. TensorFlow 2.12 has them as well.
OF_FUNCTION = ("_clone", "_jit_compile", "_list_all_concrete_functions")
# Of a tf.Operation: run_in_order uses them.
OF_OPERATION = ("_add_control_input", "_set_control_flow_context")
XPLANE = ("tensorflow.tsl.profiler.protobuf.xplane_pb2", "tensorflow.core.profiler.protobuf.xplane_pb2")


def check_functions(tensorflow: "Any") -> None:
    """Check that a tf.function has what make_twin, has_jit_setting and list_traces need.

    Raises:
        MissingNameError: it has not.
    """
    _check(tensorflow.function(lambda: None), "Function", OF_FUNCTION)


def make_twin(function: "Any", *, jit: "bool | None") -> "Any":
    """Return a copy of the tf.function *function* with traces of its own. *jit*: as jit_compile of tf.function."""
    twin = function._clone(None)
    twin._jit_compile = jit
    return twin


def has_jit_setting(function: "Any") -> bool:
    """True if the script gave jit_compile when it made the tf.function *function*."""
    return function._jit_compile is not None


def list_traces(function: "Any") -> "list[Any]":
    """Return the traces of the tf.function *function*, as concrete functions, the newest last."""
    return function._list_all_concrete_functions()  # type: ignore[no-any-return]


def find_cross_device_ops(strategy: "Any") -> "Any":
    """Return how *strategy*, a MirroredStrategy, reduces over its devices, None: it has not been said."""
    if not hasattr(strategy.extended, "_cross_device_ops"):
        report_missing("tensorflow", "MirroredExtended._cross_device_ops", "steps on several devices run natively")
        return None
    return strategy.extended._cross_device_ops


def replace_profiler_start(tensorflow: "Any", start: "Callable[..., Any]") -> None:
    """Put *start* in the place of tf.profiler.experimental.start, also for its callers inside TensorFlow."""
    tensorflow.profiler.experimental.start = start
    module = _import_profiler("a profiler session that TensorFlow begins itself fails while a trace is written")
    if module is not None:
        module.start = start


def is_profiling() -> bool:
    """True if a profiler session is open in this process."""
    consequence = "a profiler session of the script is noticed only when TensorFlow refuses a second one"
    module = _import_profiler(consequence)
    if module is None:
        return False
    if not hasattr(module, "_profiler"):
        report_missing("tensorflow.python.profiler.profiler_v2", "_profiler", consequence)
        return False
    return module._profiler is not None


def _import_profiler(consequence: str) -> "Any":
    try:
        return importlib.import_module("tensorflow.python.profiler.profiler_v2")
    except ImportError:
        report_missing("tensorflow", "python.profiler.profiler_v2", consequence)
        return None


def import_xplane() -> "Any":
    """Return the module with the protocol buffer of a profile, XSpace.

    Raises:
        MissingNameError: there is none.
    """
    for name in XPLANE:  # The second before TensorFlow 2.11.
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MissingNameError(describe_missing("tensorflow", XPLANE[0].partition(".")[2]))


def convert_inner(function: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return *function* such that AutoGraph converts the functions that it calls, but not itself."""
    conversion = _conversion()
    if conversion is None:
        return function

    def call(*arguments: "Any", **keywords: "Any") -> "Any":
        with conversion():
            return function(*arguments, **keywords)

    return call


def convert_function(tensorflow: "Any", function: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return *function* as AutoGraph converts it for a tf.function: its `if` and `for` may depend on tensors."""
    conversion = _conversion()
    if conversion is None:
        return function
    return tensorflow.__internal__.autograph.tf_convert(function, conversion())  # type: ignore[no-any-return]


def _conversion() -> "Callable[[], contextlib.AbstractContextManager[Any]] | None":
    """Return a function that makes the context in which AutoGraph converts what is called, None: there is none."""
    try:
        from tensorflow.python.autograph.core import ag_ctx, converter
    except ImportError:
        consequence = "`if` and `for` that depend on tensors are not converted in a step function"
        report_missing("tensorflow", "python.autograph.core", consequence)
        return None
    options = converter.ConversionOptions(recursive=True, user_requested=True)
    return lambda: ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED, options=options)


class _NoControlFlow:
    """A control flow context without control flow.

    TensorFlow runs stateful operations in the order in which they were made (auto_control_deps.py of 2.21), which is
    not the pipeline's order. It leaves out operations with a context.
    """

    outer_context = None

    def IsWhileContext(self) -> bool:  # noqa: N802 - TensorFlow's name
        return False


NO_CONTROL_FLOW = _NoControlFlow()


def check_operations(tensorflow: "Any") -> None:
    """Check that an operation has what run_in_order needs.

    Raises:
        MissingNameError: it has not.
    """
    _check(tensorflow.Operation, "Operation", OF_OPERATION)


def run_in_order(operations: "list[Any]", previous: "Any") -> "Any":
    """Make each of *operations*, of a graph under construction, wait for the one before it, and the first for
    *previous*, if there is one; nothing else orders them. Return the last."""
    for operation in operations:
        operation._set_control_flow_context(NO_CONTROL_FLOW)
        if previous is not None:
            operation._add_control_input(previous)
        previous = operation
    return previous


def _check(holder: "Any", kind: str, names: "tuple[str, ...]") -> None:
    for name in names:
        if not hasattr(holder, name):
            raise MissingNameError(describe_missing("tensorflow", "%s.%s" % (kind, name)))
