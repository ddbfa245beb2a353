"""The profiling pass: how long each layer computes, forward and backward, on one microbatch of random values."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.capture import Capture, LayerCall

REPEATS = 3


def seconds(found: Capture, leaves: set[str]) -> dict[str, float]:
    """Return the seconds of all calls of each layer in *leaves* (paths), by path; 0.0 where a layer cannot be measured.

    Layers of the same class, settings, weights and inputs are measured once. What the layers keep (moving averages,
    states of random numbers) is put back.
    """
    known: dict[str, float] = {}
    totals: dict[str, float] = {}
    for call in found.calls:
        if call.path in leaves:
            alike = _likeness(call)
            if alike not in known:
                with _put_back(call.layer):
                    known[alike] = _measured(call)
            totals[call.path] = totals.get(call.path, 0.0) + known[alike]
    return totals


def _measured(call: LayerCall) -> float:
    """Return the least time of a few runs of *call* with its gradients."""
    import tensorflow as tf

    with tf.init_scope():
        args, kwargs = tf.nest.map_structure(_random, call.arguments)
        given = [value for value in tf.nest.flatten((args, kwargs)) if tf.is_tensor(value) and value.dtype.is_floating]
        sources = [*map(layers.stored, call.layer.trainable_variables), *given]

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def run() -> Any:
            result = [each for each in tf.nest.flatten(call.layer(*args, **kwargs)) if tf.is_tensor(each)]
            floats = [each for each in result if each.dtype.is_floating]
            return result, tf.gradients(floats, sources) if floats and sources else []

        try:
            run()
            times = []
            for _ in range(REPEATS):
                begin_s = time.perf_counter()
                tf.nest.map_structure(_awaited, run())
                times.append(time.perf_counter() - begin_s)
        except Exception:  # noqa: BLE001 - a layer that refuses random values: its time is unknown
            return 0.0
        return min(times)


def _random(value: Any) -> Any:
    import tensorflow as tf

    if not tf.is_tensor(value):
        return value
    shape = [size or 1 for size in value.shape.as_list()] if value.shape.rank is not None else []
    if not value.dtype.is_floating:
        return tf.zeros(shape, value.dtype)
    return tf.random.stateless_normal(shape, (1, 2), dtype=value.dtype)


def _awaited(value: Any) -> Any:
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
def _put_back(layer: Any) -> Iterator[None]:
    import tensorflow as tf

    with tf.init_scope():
        kept = [(its, its.read_value()) for its in map(layers.stored, layer.non_trainable_variables)]
    try:
        yield
    finally:
        with tf.init_scope():
            for its, value in kept:
                its.assign(value)
