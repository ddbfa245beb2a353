"""Operations that carry tensors and their gradients between ranks, inside a TensorFlow graph.

Each is a numpy_function over the messenger. TensorFlow knows no order between them: after tracing, the step adds
control dependencies (step.py) in the order of schedule.py. Without them the operations block each other.

A rank's backward pass must reach every operation here, even if no gradient leads to it: a peer waits for its data. So
each takes an `anchor`, a zero that depends on something trainable, and returns a `token`, a zero on which the model's
outputs depend (`join`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolkit.rank.modelparallel.messenger import Messenger
from toolkit.rank.modelparallel.tf.recording import ExchangePoint, StepClock

KIND = "tf"  # The kind of the messages.


class Address(NamedTuple):
    """The address of a tensor: the rank *peer*, and the *key* that it expects."""

    peer: int
    key: tuple[int | str, ...]


# Notes the operation of one direction, "forward" or "backward", and its point in the timeline (None: it has none).
Note = Callable[[str, Any, ExchangePoint | None], None]


class GraphTransport:
    """Carries tensors between ranks by *messenger*; *clock* records the times."""

    def __init__(self, messenger: Messenger, clock: StepClock) -> None:
        self._messenger = messenger
        self._clock = clock

    def push(self, target: Address, value: Any, note: Note, direction: str) -> Any:
        """Return the operation that sends *value*."""
        import numpy as np

        point = ExchangePoint()

        def push_now(array: Any) -> Any:
            self._clock.enter(point)
            flat = np.ascontiguousarray(array)
            data = flat.view(np.uint8).reshape(-1) if flat.size else b""
            self._messenger.send(target.peer, KIND, target.key, flat.shape, (data,))
            self._clock.leave()
            return np.bool_(True)

        operation = _run_in_python(push_now, [value], "bool").op
        note(direction, operation, point)
        return operation

    def pull(self, origin: Address, dtype: Any, shape: Any, note: Note, direction: str) -> Any:
        """Return the tensor that *origin* sends."""
        import numpy as np

        point, numbers = ExchangePoint(), dtype.as_numpy_dtype

        def pull_now() -> Any:
            self._clock.enter(point)
            message = self._messenger.receive(origin.peer, KIND, origin.key)
            self._clock.leave()
            return np.frombuffer(message.buffers[0], numbers).reshape(message.payload)

        value = _run_in_python(pull_now, [], dtype)
        value.set_shape(shape)
        note(direction, value.op, point)
        return value

    def mark(self, note: Note) -> None:
        """Add an exchange without a peer, which ends the computation before it in the timeline."""
        import numpy as np

        point = ExchangePoint()

        def mark_now() -> Any:
            self._clock.enter(point)
            self._clock.leave()
            return np.bool_(True)

        note("backward", _run_in_python(mark_now, [], "bool").op, point)

    def begin(self) -> Any:
        """Return the operation that begins a step."""
        return _run_without_tensors(self._clock.begin)

    def end(self, parameter_bytes: int) -> Any:
        """Return the operation that ends a step."""
        return _run_without_tensors(lambda: self._clock.end(parameter_bytes))


def _run_in_python(function: Callable[..., Any], inputs: list[Any], dtype: Any) -> Any:
    import tensorflow as tf

    return tf.numpy_function(function, inputs, dtype)


def _run_without_tensors(function: Callable[[], None]) -> Any:
    import numpy as np

    def run() -> Any:
        function()
        return np.bool_(True)

    return _run_in_python(run, [], "bool").op


def send(transport: GraphTransport, to: Address, value: Any, anchor: Any, note: Note) -> tuple[Any, Any]:
    """Return *value* and a token; *value* is sent, and the peer's gradient is added to that of the returned
    tensor."""
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def send_value(value: Any, anchor: Any) -> Any:
        transport.push(to, value, note, "forward")

        def gradient(by_value: Any, _by_token: Any) -> Any:
            origin = Address(to.peer, (*to.key, "gradient"))
            from_peer = transport.pull(origin, value.dtype, value.shape, note, "backward")
            with tf.control_dependencies([from_peer]):
                return by_value + from_peer, tf.zeros_like(anchor)

        return (tf.identity(value), tf.zeros_like(anchor)), gradient

    value, token = send_value(value, anchor)
    return value, token


def receive(
    transport: GraphTransport, origin: Address, dtype: Any, shape: Any, anchor: Any, note: Note
) -> tuple[Any, Any]:
    """Return the tensor that *origin* sends, and a token; the tensor's gradient is sent back."""
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def receive_value(anchor: Any) -> Any:
        value = transport.pull(origin, dtype, shape, note, "forward")

        def gradient(by_value: Any, _by_token: Any) -> Any:
            pushed = transport.push(Address(origin.peer, (*origin.key, "gradient")), by_value, note, "backward")
            with tf.control_dependencies([pushed]):
                return tf.zeros_like(anchor)

        return (value, tf.zeros_like(anchor)), gradient

    value, token = receive_value(anchor)
    return value, token


def join(values: Sequence[Any], tokens: Sequence[Any], turn: Callable[[], Note]) -> list[Any]:
    """Return *values*, which lead a backward pass to all *tokens*; *turn* returns the note of each such pass."""
    import tensorflow as tf

    count = len(values)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def join_tensors(*tensors: Any) -> Any:
        def gradient(*gradients: Any) -> Any:
            note = turn()
            gate = tf.group(*gradients)
            note("backward", gate, None)
            with tf.control_dependencies([gate]):
                return [*identities(gradients), *(tf.zeros_like(token) for token in tensors[count:])]

        return [tf.identity(value) for value in tensors[:count]], gradient

    return list(join_tensors(*values, *tokens))


def anchor(variable: Any | None) -> Any:
    """Return a zero that depends on *variable* for gradients only; it adds zeros to the variable's gradient."""
    import tensorflow as tf

    if variable is None:
        return tf.constant(0.0)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def zero(read: Any) -> Any:
        def gradient(by_zero: Any) -> Any:
            with tf.control_dependencies([by_zero]):
                return tf.zeros_like(read)

        return tf.constant(0.0), gradient

    return zero(tf.convert_to_tensor(variable))


def identities(values: Sequence[Any]) -> list[Any]:
    """Return *values* through one operation, which may wait for others.

    It is not tf.identity: TensorFlow 2.21 moves the identities behind a tf.split before it, with their dependencies,
    although one waits for a result of another (arithmetic_optimizer.cc): "The graph couldn't be sorted".
    """
    import tensorflow as tf

    return list(tf.identity_n(list(values))) if values else []
