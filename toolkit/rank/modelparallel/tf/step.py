"""@smp.step: runs the user's function once for each microbatch, and puts the ranks' work into order."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.rank.frameworks import tensorflow as private
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.results import joined
from toolkit.rank.modelparallel.tf import convert
from toolkit.rank.modelparallel.tf.boundary import GraphTransport
from toolkit.rank.modelparallel.tf.outputs import StepOutput
from toolkit.rank.modelparallel.tf.replicas import GRADIENT_AVERAGER
from toolkit.rank.modelparallel.tf.running import PROCESS_STATE
from toolkit.rank.modelparallel.tf.trace import StepTrace


def step(
    function: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    **options: Any,
) -> Any:
    """Return *function* as a step: called with a batch, it runs on each microbatch and returns its tensors as
    StepOutputs.

    *non_split_inputs*: names of arguments that every microbatch gets undivided; *input_split_axes*: name -> axis along
    which a tensor is split (0). *options* are tf.function's, for calls that are not in a tf.function already.

    Raises:
        SMPError: an argument or option that does not exist, or jit_compile.
    """
    if function is None:
        return functools.partial(step, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes, **options)
    return _Step(function, tuple(non_split_inputs), dict(input_split_axes or {}), options).wrap()


class _Step:
    """A step function: *function* with its decorator's arguments."""

    def __init__(
        self, function: Callable[..., Any], non_split: tuple[str, ...], axes: dict[str, int], options: dict[str, Any]
    ) -> None:
        import tensorflow as tf

        self.function = function
        self.non_split = non_split
        self.axes = axes
        self.signature = inspect.signature(function)
        self._check(options)
        self._structure: Any = None
        compiled: dict[str, Any] = {"autograph": False, **options}
        self._compiled = tf.function(self._flat, **compiled)

    def wrap(self) -> Callable[..., Any]:
        """Return the function that the script calls."""
        import tensorflow as tf

        @functools.wraps(self.function)
        def run_step(*args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                return self.trace(args, kwargs)
            flat = self._compiled(*args, **kwargs)
            return self._structure(flat)

        return convert.leave_unconverted(run_step)

    def trace(self, args: Any, kwargs: Any) -> Any:
        """Return the step's result in the graph under construction."""
        current_world = world.current()
        count = current_world.cfg.microbatches
        transport = GraphTransport(current_world.messenger, PROCESS_STATE.clock_of(current_world))
        trace = StepTrace(current_world, PROCESS_STATE.next_trace(), count, transport)
        function = convert.convert_function(self.function)
        results = []
        parts = list(self._split(args, kwargs, count))
        with PROCESS_STATE.tracing(trace), _note_tape_gradients(trace):
            for microbatch, (args_of_microbatch, kwargs_of_microbatch) in enumerate(parts):
                trace.begin(microbatch)
                results.append(function(*args_of_microbatch, **kwargs_of_microbatch))
        operations = trace.order_operations()
        if operations:
            _run_in_order([transport.begin(), *operations, transport.end(trace.parameter_bytes)])
        return _combine(results, trace, GRADIENT_AVERAGER.average)

    def _flat(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tensors of the result, for tf.function, and remember the result's structure."""
        import tensorflow as tf

        result = self.trace(args, kwargs)
        leaves = tf.nest.flatten(result)

        def rebuild(flat: Any) -> Any:
            tensors = iter(flat)
            return tf.nest.pack_sequence_as(
                result,
                [
                    leaf.like([next(tensors) for _ in leaf.outputs]) if isinstance(leaf, StepOutput) else leaf
                    for leaf in leaves
                ],
            )

        self._structure = rebuild
        return [output for leaf in leaves if isinstance(leaf, StepOutput) for output in leaf.outputs]

    def _split(self, args: Any, kwargs: Any, count: int) -> Iterator[tuple[Any, Any]]:
        """Yield each microbatch's arguments."""
        import tensorflow as tf

        bound = self.signature.bind(*args, **kwargs)
        pieces = {}
        for name, value in bound.arguments.items():
            if name not in self.non_split and count > 1:
                flat = [_split_value(name, leaf, self.axes.get(name, 0), count) for leaf in tf.nest.flatten(value)]
                pieces[name] = [
                    tf.nest.pack_sequence_as(value, [leaf[microbatch] for leaf in flat]) for microbatch in range(count)
                ]
        for microbatch in range(count):
            for name, parts in pieces.items():
                bound.arguments[name] = parts[microbatch]
            yield bound.args, bound.kwargs

    def _check(self, options: dict[str, Any]) -> None:
        import tensorflow as tf

        takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in self.signature.parameters.values())
        for name in (*self.non_split, *self.axes):
            if name not in self.signature.parameters and not takes_any:
                raise SMPError(
                    f"smp.step: expected names of {self.function.__name__}'s arguments "
                    f"({', '.join(self.signature.parameters)}), found {name!r}"
                )
        tf_function_arguments = inspect.signature(tf.function).parameters
        for name in options:
            if name not in tf_function_arguments or name == "func":
                raise SMPError(
                    "smp.step: expected non_split_inputs, input_split_axes or an argument of tf.function, "
                    f"found {name!r}"
                )
        if options.get("jit_compile"):
            raise SMPError(
                "smp.step: jit_compile is not possible, because ranks exchange tensors within a step. Compile single "
                "layers instead."
            )


def _split_value(name: str, value: Any, axis: int, count: int) -> list[Any]:
    """Return *count* parts of *value*, an argument or a value inside it."""
    import numpy as np
    import tensorflow as tf

    if hasattr(value, "smp_slice"):
        return [value.smp_slice(count, microbatch, axis) for microbatch in range(count)]
    if not isinstance(value, (tf.Tensor, np.ndarray)):
        return [value] * count
    value = tf.convert_to_tensor(value)
    if value.shape.rank is not None and value.shape.rank <= axis:
        raise SMPError(
            f"smp.step: expected argument {name} with a batch axis {axis}, found shape {tuple(value.shape)}. Name it "
            "in non_split_inputs if every microbatch needs it whole."
        )
    length = value.shape[axis] if value.shape.rank is not None else None
    expectation = (
        f"smp.step: expected a batch that the {count} microbatches divide, for argument {name} (axis {axis}); make the "
        "batch size a multiple of microbatches, and drop the rest of the data (drop_remainder=True)"
    )
    if length is not None and length % count:
        raise SMPError(f"{expectation}. Found {length}.")
    if length is None:
        is_divisible = tf.debugging.assert_equal(tf.shape(value)[axis] % count, 0, expectation)
        with tf.control_dependencies([is_divisible] if is_divisible is not None else []):
            value = tf.identity(value)
    return list(tf.split(value, count, axis))


def _run_in_order(operations: list[Any]) -> None:
    """Make each of *operations* wait for the previous one, and the first for earlier steps in this graph."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    graph._toolkit_smp_last = private.run_in_order(operations, getattr(graph, "_toolkit_smp_last", None))


def _combine(results: list[Any], trace: StepTrace, average: Callable[[Any], Any] | None) -> Any:
    """Return the microbatches' *results* as one value: StepOutputs of tensors, lists of other values, None if
    all are None."""
    import tensorflow as tf

    first = results[0]
    for result in results[1:]:
        tf.nest.assert_same_structure(first, result)

    def of_tensors(tensors: list[Any]) -> Any:
        values = [tf.convert_to_tensor(tensor) if isinstance(tensor, tf.Variable) else tensor for tensor in tensors]
        return StepOutput(values, average if trace.is_gradient(values[0]) else None)

    def is_tensor(value: Any) -> bool:
        return isinstance(value, (tf.Tensor, tf.IndexedSlices, tf.Variable))

    return joined(results, is_tensor, of_tensors, keeps_none=True)  # None: a variable without gradient.


@contextlib.contextmanager
def _note_tape_gradients(trace: StepTrace) -> Iterator[None]:
    """Within the block, note the gradients of GradientTapes in *trace*."""
    import tensorflow as tf

    original = tf.GradientTape.gradient

    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original(self, *args, **kwargs)
        trace.note_gradients([gradient for gradient in tf.nest.flatten(gradients) if gradient is not None])
        return gradients

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original
