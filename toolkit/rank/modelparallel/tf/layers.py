"""Finds Keras's layers by their paths in the model, and intercepts their calls.

Works with Keras 2 (tf_keras) and Keras 3. Of Keras's own layers only Model, Sequential and Functional may be divided:
a Bidirectional or a MultiHeadAttention computes between its parts.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

# Replaces the call of a layer: (layer, the layer's own __call__, arguments, keyword arguments) -> result.
Handler = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def keras() -> Any:
    """Return the Keras of the script: tf_keras if the script has imported it, else tf.keras."""
    import sys

    import tensorflow as tf

    if "tf_keras" in sys.modules:
        return sys.modules["tf_keras"]
    tf.keras.layers  # noqa: B018 - tf.keras is loaded on its first use
    return tf.keras


def paths(model: Any) -> dict[str, Any]:
    """Return all layers below *model* by their paths, parents first; a layer that is held twice has its first path.

    A path has the names of attributes, and the numbers of items: "encoder.blocks.0.dense". It does not use the layers'
    own names, which Keras numbers over all models of the process.
    """
    layer_by_path: dict[str, Any] = {}
    visited = {id(model)}

    def walk(holder: Any, prefix: str) -> None:
        for name, layer in children(holder):
            if id(layer) not in visited:
                visited.add(id(layer))
                layer_by_path[prefix + name] = layer
                walk(layer, prefix + name + ".")

    walk(model, "")
    return layer_by_path


def is_divisible(layer: Any) -> bool:
    """True if the layers in *layer* may be on several devices: a container, or a user's class without own weights."""
    kind = type(layer)
    is_of_keras = kind.__module__.partition(".")[0] in ("keras", "tf_keras")
    if is_of_keras and not any(name in ("Model", "Sequential", "Functional") for name in (kind.__name__,)):
        return False
    return bool(list(children(layer))) and not own_variables(layer)


def own_variables(layer: Any) -> list[Any]:
    """Return *layer*'s variables that belong to none of its inner layers."""
    inner = {id(variable) for _, child in children(layer) for variable in variables(child)}
    return [variable for variable in variables(layer) if id(variable) not in inner]


def variables(layer: Any) -> list[Any]:
    """Return the variables of *layer* and of the layers in it: each once; seeds of random numbers and metrics, too."""
    return list({id(variable): variable for variable in layer.variables}.values())


def to_tf_variable(variable: Any) -> Any:
    """Return the tf.Variable that holds *variable*'s value: itself, except for Keras 3's variables."""
    return getattr(variable, "value", variable) if type(variable).__module__.startswith("keras") else variable


@contextlib.contextmanager
def intercept_calls(handler: Handler) -> Iterator[None]:
    """Within the block, every call of a Keras layer goes to *handler*, except those by which Keras infers shapes."""
    base = keras().layers.Layer
    original = base.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if _is_symbolic((args, kwargs)):
            return original(self, *args, **kwargs)
        return handler(self, original, args, kwargs)

    base.__call__ = __call__
    try:
        yield
    finally:
        base.__call__ = original


def _is_symbolic(arguments: Any) -> bool:
    """Return whether *arguments* hold Keras's symbolic tensors, as when a Sequential gets a new shape."""
    import tensorflow as tf

    return any(type(value).__name__ == "KerasTensor" for value in tf.nest.flatten(arguments))


def children(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, layer) of the layers that *holder*, a layer, list or dict, holds itself."""
    layer_kind = keras().layers.Layer
    if isinstance(holder, layer_kind) and type(holder).__name__ in ("Sequential", "Functional"):
        for number, layer in enumerate(holder.layers):
            yield str(number), layer
        return
    if isinstance(holder, layer_kind):
        items = list(vars(holder).items())
    elif isinstance(holder, dict):
        items = [(str(key), value) for key, value in holder.items()]
    elif isinstance(holder, (list, tuple)):
        items = [(str(number), value) for number, value in enumerate(holder)]
    else:
        return
    for name, value in items:
        if isinstance(value, layer_kind):
            yield name, value
        elif isinstance(value, (list, tuple, dict)) and not name.startswith("_"):
            for inner_name, layer in children(value):
                yield f"{name}.{inner_name}", layer
