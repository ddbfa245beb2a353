"""AutoGraph: the script's functions are converted, the library's own are not."""

from collections.abc import Callable
from typing import Any

from toolkit.rank.frameworks import tensorflow as private


def leave_unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function* such that AutoGraph converts neither it nor the functions that it calls."""
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def convert_inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, of Keras, so that the users' methods that it calls are converted, as under tf.function."""
    return private.convert_inner(function)


def convert_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, a user's, converted: its `if` and `for` may depend on tensors."""
    import tensorflow as tf

    return private.convert_function(tf, function)
