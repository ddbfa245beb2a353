"""StepOutput: the values of one tensor of a step's result, one per microbatch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from toolkit.rank.modelparallel.errors import SMPError

METHODS = ("variable", "add_n", "accumulate_n")


class StepOutput:
    """One tensor of the step function's result: `outputs` has its value for each microbatch, in order.

    *average* is applied to the mean of gradients: it averages over the replicas (None: not a gradient).
    """

    def __init__(self, outputs: Sequence[Any], average: Callable[[Any], Any] | None = None) -> None:
        self.outputs = list(outputs)
        self._average = average

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.outputs)

    def __getitem__(self, index: Any) -> Any:
        return self.outputs[index]

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"

    def like(self, outputs: Sequence[Any]) -> "StepOutput":
        """Return *outputs* as an output of the same kind."""
        return StepOutput(outputs, self._average)

    def reduce_mean(self) -> Any:
        """Return the mean over the microbatches."""
        return self._over_replicas(_scale(self._sum(), 1 / len(self.outputs)))

    def reduce_sum(self) -> Any:
        """Return the sum over the microbatches."""
        return self._over_replicas(self._sum())

    def accumulate(self, method: str = "variable", var: Any = None) -> Any:
        """Return the mean over the microbatches, accumulated as they end.

        *method*: "variable" adds one after the other, into the variable *var* if it is given; "add_n" and
        "accumulate_n" use TensorFlow's functions of these names, and no variable.

        Raises:
            SMPError: another method.
        """
        import tensorflow as tf

        if method not in METHODS:
            raise SMPError(f"accumulate: expected method {', '.join(METHODS)}, found {method!r}")
        share = 1 / len(self.outputs)
        if method == "variable" and var is None:
            return self.reduce_mean()
        parts = [tf.convert_to_tensor(output) for output in self.outputs]
        if method == "add_n":
            return self._over_replicas(tf.add_n(parts) * share)
        if method == "accumulate_n":
            return self._over_replicas(tf.math.accumulate_n(parts) * share)
        done = var.assign(parts[0] * share)
        for part in parts[1:]:
            with tf.control_dependencies([done]):
                done = var.assign_add(part * share)
        with tf.control_dependencies([done]):
            return self._over_replicas(tf.identity(var))

    def concat(self) -> Any:
        """Return the microbatches' tensors concatenated along the batch axis."""
        import tensorflow as tf

        return tf.concat(self.outputs, 0)

    def merge(self) -> Any:
        """Return the same as `concat`."""
        return self.concat()

    def stack(self) -> Any:
        """Return the microbatches' tensors along a new first axis."""
        import tensorflow as tf

        return tf.stack(self.outputs)

    def _sum(self) -> Any:
        import tensorflow as tf

        if all(isinstance(output, tf.IndexedSlices) for output in self.outputs):
            first = self.outputs[0]
            values = tf.concat([output.values for output in self.outputs], 0)
            indices = tf.concat([output.indices for output in self.outputs], 0)
            return tf.IndexedSlices(values, indices, first.dense_shape)
        total = self.outputs[0]
        for output in self.outputs[1:]:
            total = total + output
        return tf.convert_to_tensor(total)

    def _over_replicas(self, value: Any) -> Any:
        return value if self._average is None else self._average(value)


def _scale(value: Any, factor: float) -> Any:
    import tensorflow as tf

    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(value.values * tf.cast(factor, value.dtype), value.indices, value.dense_shape)
    if value.dtype.is_floating or value.dtype.is_complex:
        return value * tf.cast(factor, value.dtype)
    return tf.cast(value, tf.float32) * factor
