"""The profiling pass: measures each layer, forward and backward, on one microbatch of random values."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.capture import LayerCall, ModelCapture

REPEATS = 3


def measure_layers(captured: ModelCapture, leaves: set[str]) -> dict[str, float]:
    """Return the seconds of all calls of each layer in *leaves* (paths), by path; 0.0 if a layer cannot be measured.

    Layers of the same class, settings, weights and inputs are measured once. The layers' state (moving averages, states
    of random numbers) is restored.
    """
    seconds_by_likeness: dict[str, float] = {}
    totals: dict[str, float] = {}
    for call in captured.calls:
        if call.path in leaves:
            likeness = _likeness(call)
            if likeness not in seconds_by_likeness:
                with _restored_state(call.layer):
                    seconds_by_likeness[likeness] = _measure_call(call)
            totals[call.path] = totals.get(call.path, 0.0) + seconds_by_likeness[likeness]
    return totals


def _measure_call(call: LayerCall) -> float:
    """Return the least time of a few runs of *call* with its gradients."""
    import tensorflow as tf

    with tf.init_scope():
        args, kwargs = tf.nest.map_structure(_random_like, call.arguments)
        float_inputs = [
            value for value in tf.nest.flatten((args, kwargs)) if tf.is_tensor(value) and value.dtype.is_floating
        ]
        sources = [*map(layers.to_tf_variable, call.layer.trainable_variables), *float_inputs]

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def run() -> Any:
            result = [tensor for tensor in tf.nest.flatten(call.layer(*args, **kwargs)) if tf.is_tensor(tensor)]
            floats = [tensor for tensor in result if tensor.dtype.is_floating]
            return result, tf.gradients(floats, sources) if floats and sources else []

        try:
            run()
            times = []
            for _ in range(REPEATS):
                begin_s = time.perf_counter()
                tf.nest.map_structure(_wait_for, run())
                times.append(time.perf_counter() - begin_s)
        except Exception:  # noqa: BLE001 - a layer that refuses random values: its time is unknown
            return 0.0
        return min(times)


def _random_like(value: Any) -> Any:
    import tensorflow as tf

    if not tf.is_tensor(value):
        return value
    shape = [size or 1 for size in value.shape.as_list()] if value.shape.rank is not None else []
    if not value.dtype.is_floating:
        return tf.zeros(shape, value.dtype)
    return tf.random.stateless_normal(shape, (1, 2), dtype=value.dtype)


def _wait_for(value: Any) -> Any:
    return value if value is None else getattr(value, "values", value).numpy()


def _likeness(call: LayerCall) -> str:
    """Return a text that is equal for calls that take the same time."""
    import tensorflow as tf

    config: Any = {}
    with contextlib.suppress(Exception):
        config = call.layer.get_config()
        config.pop("name", None)
    inputs = [
        (tuple(value.shape.as_list()), value.dtype.name) if tf.is_tensor(value) else value
        for value in tf.nest.flatten(call.arguments)
    ]
    weights = [tuple(variable.shape) for variable in layers.variables(call.layer)]
    return repr((type(call.layer), config, weights, inputs))


@contextlib.contextmanager
def _restored_state(layer: Any) -> Iterator[None]:
    import tensorflow as tf

    with tf.init_scope():
        saved_values = [
            (variable, variable.read_value()) for variable in map(layers.to_tf_variable, layer.non_trainable_variables)
        ]
    try:
        yield
    finally:
        with tf.init_scope():
            for variable, value in saved_values:
                variable.assign(value)
