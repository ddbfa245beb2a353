"""AutoGraph: the script's functions are converted, the library's own are not."""

from collections.abc import Callable
from typing import Any


def leave_unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function* such that AutoGraph converts neither it nor the functions that it calls."""
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def convert_inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, of Keras, so that the users' methods that it calls are converted, as under tf.function."""
    from tensorflow.python.autograph.core import ag_ctx, converter

    def call(*args: Any, **kwargs: Any) -> Any:
        options = converter.ConversionOptions(recursive=True, user_requested=True)
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED, options=options):
            return function(*args, **kwargs)

    return call


def convert_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, a user's, converted: its `if` and `for` may depend on tensors."""
    import tensorflow as tf
    from tensorflow.python.autograph.core import ag_ctx, converter

    options = converter.ConversionOptions(recursive=True, user_requested=True)
    status = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED, options=options)
    return tf.__internal__.autograph.tf_convert(function, status)  # type: ignore[no-any-return]
