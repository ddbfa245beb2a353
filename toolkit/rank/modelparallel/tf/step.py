"""@smp.step: runs the user's function once for each microbatch, and puts the ranks' work into order."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.results import joined
from toolkit.rank.modelparallel.tf import convert
from toolkit.rank.modelparallel.tf.boundary import Post
from toolkit.rank.modelparallel.tf.outputs import StepOutput
from toolkit.rank.modelparallel.tf.replicas import REPLICAS
from toolkit.rank.modelparallel.tf.running import RUNNING
from toolkit.rank.modelparallel.tf.trace import Trace


def step(
    function: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    **options: Any,
) -> Any:
    """Return *function* as a step: called with a batch, it runs on each microbatch, and its tensors are StepOutputs.

    *non_split_inputs*: names of arguments that every microbatch gets whole; *input_split_axes*: name -> axis along
    which a tensor is split (0). *options* are tf.function's, for calls that are not in a tf.function already.

    Raises:
        SMPError: an argument or option that does not exist, or jit_compile.
    """
    if function is None:
        return functools.partial(step, non_split_inputs=non_split_inputs, input_split_axes=input_split_axes, **options)
    return _Step(function, tuple(non_split_inputs), dict(input_split_axes or {}), options).wrapped()


class _Step:
    """A step function: *function* with its decorator's arguments."""

    def __init__(
        self, function: Callable[..., Any], whole: tuple[str, ...], axes: dict[str, int], options: dict[str, Any]
    ) -> None:
        import tensorflow as tf

        self.function = function
        self.whole = whole
        self.axes = axes
        self.signature = inspect.signature(function)
        self._check(options)
        self._structure: Any = None
        compiled: dict[str, Any] = {"autograph": False, **options}
        self._compiled = tf.function(self._flat, **compiled)

    def wrapped(self) -> Callable[..., Any]:
        """Return the function that the script calls."""
        import tensorflow as tf

        @functools.wraps(self.function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                return self.traced(args, kwargs)
            flat = self._compiled(*args, **kwargs)
            return self._structure(flat)

        return convert.not_converted(called)

    def traced(self, args: Any, kwargs: Any) -> Any:
        """Return the step's result in the graph under construction."""
        here = world.current()
        count = here.cfg.microbatches
        post = Post(here.messenger, RUNNING.clock_of(here))
        trace = Trace(here, RUNNING.next_trace(), count, post)
        function = convert.converted(self.function)
        results = []
        parts = list(self._split(args, kwargs, count))
        with RUNNING.traced(trace), _tapes_noted(trace):
            for microbatch, (its_args, its_kwargs) in enumerate(parts):
                trace.begin(microbatch)
                results.append(function(*its_args, **its_kwargs))
        ordered = trace.ordered()
        if ordered:
            _run_in_order([post.begin(), *ordered, post.end(trace.parameter_bytes)])
        return _combined(results, trace, REPLICAS.average)

    def _flat(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tensors of the result, for tf.function, and remember how they are put together."""
        import tensorflow as tf

        result = self.traced(args, kwargs)
        leaves = tf.nest.flatten(result)

        def together(flat: Any) -> Any:
            found = iter(flat)
            return tf.nest.pack_sequence_as(
                result,
                [
                    leaf.like([next(found) for _ in leaf.outputs]) if isinstance(leaf, StepOutput) else leaf
                    for leaf in leaves
                ],
            )

        self._structure = together
        return [output for leaf in leaves if isinstance(leaf, StepOutput) for output in leaf.outputs]

    def _split(self, args: Any, kwargs: Any, count: int) -> Iterator[tuple[Any, Any]]:
        """Yield each microbatch's arguments."""
        import tensorflow as tf

        bound = self.signature.bind(*args, **kwargs)
        pieces = {}
        for name, value in bound.arguments.items():
            if name not in self.whole and count > 1:
                flat = [_pieces(name, leaf, self.axes.get(name, 0), count) for leaf in tf.nest.flatten(value)]
                pieces[name] = [
                    tf.nest.pack_sequence_as(value, [leaf[microbatch] for leaf in flat]) for microbatch in range(count)
                ]
        for microbatch in range(count):
            for name, its in pieces.items():
                bound.arguments[name] = its[microbatch]
            yield bound.args, bound.kwargs

    def _check(self, options: dict[str, Any]) -> None:
        import tensorflow as tf

        takes_any = any(each.kind == each.VAR_KEYWORD for each in self.signature.parameters.values())
        for name in (*self.whole, *self.axes):
            if name not in self.signature.parameters and not takes_any:
                raise SMPError(
                    f"smp.step: expected names of {self.function.__name__}'s arguments "
                    f"({', '.join(self.signature.parameters)}), found {name!r}"
                )
        known = inspect.signature(tf.function).parameters
        for name in options:
            if name not in known or name == "func":
                raise SMPError(
                    "smp.step: expected non_split_inputs, input_split_axes or an argument of tf.function, "
                    f"found {name!r}"
                )
        if options.get("jit_compile"):
            raise SMPError(
                "smp.step: jit_compile is not possible, because ranks exchange tensors within a step. Compile single "
                "layers instead."
            )


def _pieces(name: str, value: Any, axis: int, count: int) -> list[Any]:
    """Return *count* parts of *value*, an argument or what is inside it."""
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
    said = (
        f"smp.step: expected a batch that the {count} microbatches divide, for argument {name} (axis {axis}); make the "
        "batch size a multiple of microbatches, and drop the rest of the data (drop_remainder=True)"
    )
    if length is not None and length % count:
        raise SMPError(f"{said}. Found {length}.")
    if length is None:
        whole = tf.debugging.assert_equal(tf.shape(value)[axis] % count, 0, said)
        with tf.control_dependencies([whole] if whole is not None else []):
            value = tf.identity(value)
    return list(tf.split(value, count, axis))


class _Apart:
    """A control flow context of no control flow. TensorFlow runs operations without state of a variable in the order
    in which they were made (auto_control_deps.py of 2.21), which is not the pipeline's; it leaves out those with a
    context."""

    outer_context = None

    def IsWhileContext(self) -> bool:  # noqa: N802 - TensorFlow's name
        return False


APART = _Apart()


def _run_in_order(operations: list[Any]) -> None:
    """Make each of *operations* wait for the one before it, the first for those of earlier steps in this graph."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    before = getattr(graph, "_toolkit_smp_last", None)
    for operation in operations:
        operation._set_control_flow_context(APART)
        if before is not None:
            operation._add_control_input(before)
        before = operation
    graph._toolkit_smp_last = before


def _combined(results: list[Any], trace: Trace, averaged: Callable[[Any], Any] | None) -> Any:
    """Return the microbatches' *results* as one value: StepOutputs of tensors, lists of all else but None."""
    import tensorflow as tf

    first = results[0]
    for result in results[1:]:
        tf.nest.assert_same_structure(first, result)

    def of_tensors(tensors: list[Any]) -> Any:
        values = [tf.convert_to_tensor(each) if isinstance(each, tf.Variable) else each for each in tensors]
        return StepOutput(values, averaged if trace.is_gradient(values[0]) else None)

    def is_tensor(value: Any) -> bool:
        return isinstance(value, (tf.Tensor, tf.IndexedSlices, tf.Variable))

    return joined(results, is_tensor, of_tensors, keeps_none=True)  # None: a variable without gradient.


@contextlib.contextmanager
def _tapes_noted(trace: Trace) -> Iterator[None]:
    """Within the block, *trace* learns of the gradients that GradientTapes give."""
    import tensorflow as tf

    original = tf.GradientTape.gradient

    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        trace.differentiated([each for each in tf.nest.flatten(found) if each is not None])
        return found

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original
