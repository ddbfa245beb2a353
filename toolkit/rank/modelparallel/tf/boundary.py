"""Operations that carry tensors and their gradients between ranks, inside a TensorFlow graph.

Each is a numpy_function over the messenger. TensorFlow knows nothing of an order between them: the step adds control
dependencies when it has been traced (step.py), by the order of schedule.py. Without that they block each other.

A rank's backward pass must reach every operation here, also where no gradient leads to it: a peer waits for what it
sends. So each takes an `anchor`, a zero that depends on something trainable, and gives a `token`, a zero on which the
model's outputs depend (`join`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toolkit.rank.modelparallel.messenger import Messenger
from toolkit.rank.modelparallel.tf.recording import Clock, Spot

KIND = "tf"  # The kind of the messages.


class Address(NamedTuple):
    """Where a tensor goes: the rank *peer*, by the *key* that it expects."""

    peer: int
    key: tuple[int | str, ...]


# Notes the operation of one direction, "forward" or "backward", and its spot in the timeline (None: it has none).
Note = Callable[[str, Any, Spot | None], None]


class Post:
    """What carries tensors to other ranks, by *messenger*; *clock* records when."""

    def __init__(self, messenger: Messenger, clock: Clock) -> None:
        self._messenger = messenger
        self._clock = clock

    def push(self, to: Address, value: Any, note: Note, direction: str) -> Any:
        """Return the operation that sends *value*."""
        import numpy as np

        spot = Spot()

        def push_now(array: Any) -> Any:
            self._clock.enter(spot)
            flat = np.ascontiguousarray(array)
            data = flat.view(np.uint8).reshape(-1) if flat.size else b""
            self._messenger.send(to.peer, KIND, to.key, flat.shape, (data,))
            self._clock.leave()
            return np.bool_(True)

        operation = _called(push_now, [value], "bool").op
        note(direction, operation, spot)
        return operation

    def pull(self, origin: Address, dtype: Any, shape: Any, note: Note, direction: str) -> Any:
        """Return the tensor that comes from *origin*."""
        import numpy as np

        spot, numbers = Spot(), dtype.as_numpy_dtype

        def pull_now() -> Any:
            self._clock.enter(spot)
            message = self._messenger.receive(origin.peer, KIND, origin.key)
            self._clock.leave()
            return np.frombuffer(message.buffers[0], numbers).reshape(message.payload)

        value = _called(pull_now, [], dtype)
        value.set_shape(shape)
        note(direction, value.op, spot)
        return value

    def mark(self, note: Note) -> None:
        """Add an exchange with nobody, which ends what is computed before."""
        import numpy as np

        spot = Spot()

        def mark_now() -> Any:
            self._clock.enter(spot)
            self._clock.leave()
            return np.bool_(True)

        note("backward", _called(mark_now, [], "bool").op, spot)

    def begin(self) -> Any:
        """Return the operation that begins a step."""
        return _done(self._clock.begin)

    def end(self, parameter_bytes: int) -> Any:
        """Return the operation that ends it."""
        return _done(lambda: self._clock.end(parameter_bytes))


def _called(function: Callable[..., Any], inputs: list[Any], dtype: Any) -> Any:
    import tensorflow as tf

    return tf.numpy_function(function, inputs, dtype)


def _done(function: Callable[[], None]) -> Any:
    import numpy as np

    def done() -> Any:
        function()
        return np.bool_(True)

    return _called(done, [], "bool").op


def send(post: Post, to: Address, value: Any, anchor: Any, note: Note) -> tuple[Any, Any]:
    """Return *value* and a token; *value* is sent, and the peer's gradient is added to that of what is returned."""
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def sent(value: Any, anchor: Any) -> Any:
        post.push(to, value, note, "forward")

        def gradient(by_value: Any, _by_token: Any) -> Any:
            origin = Address(to.peer, (*to.key, "gradient"))
            found = post.pull(origin, value.dtype, value.shape, note, "backward")
            with tf.control_dependencies([found]):
                return by_value + found, tf.zeros_like(anchor)

        return (tf.identity(value), tf.zeros_like(anchor)), gradient

    value, token = sent(value, anchor)
    return value, token


def receive(post: Post, origin: Address, dtype: Any, shape: Any, anchor: Any, note: Note) -> tuple[Any, Any]:
    """Return the tensor that comes from *origin* and a token; its gradient is sent back."""
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def received(anchor: Any) -> Any:
        value = post.pull(origin, dtype, shape, note, "forward")

        def gradient(by_value: Any, _by_token: Any) -> Any:
            pushed = post.push(Address(origin.peer, (*origin.key, "gradient")), by_value, note, "backward")
            with tf.control_dependencies([pushed]):
                return tf.zeros_like(anchor)

        return (value, tf.zeros_like(anchor)), gradient

    value, token = received(anchor)
    return value, token


def join(values: Sequence[Any], tokens: Sequence[Any], turn: Callable[[], Note]) -> list[Any]:
    """Return *values*, which lead a backward pass to all *tokens*; *turn* gives the note of each such pass."""
    import tensorflow as tf

    count = len(values)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def joined(*both: Any) -> Any:
        def gradient(*given: Any) -> Any:
            note = turn()
            gate = tf.group(*given)
            note("backward", gate, None)
            with tf.control_dependencies([gate]):
                return [*together(given), *(tf.zeros_like(token) for token in both[count:])]

        return [tf.identity(value) for value in both[:count]], gradient

    return list(joined(*values, *tokens))


def anchor(variable: Any | None) -> Any:
    """Return a zero that depends on *variable* as far as gradients go; it adds zeros to the variable's gradient."""
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


def together(values: Sequence[Any]) -> list[Any]:
    """Return *values* by one operation, which may wait for others.

    No tf.identity: TensorFlow 2.21 moves the identities behind a tf.split before it, with what they wait for, although
    one waits for what is made from another (arithmetic_optimizer.cc): "The graph couldn't be sorted".
    """
    import tensorflow as tf

    return list(tf.identity_n(list(values))) if values else []
