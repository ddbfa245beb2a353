"""get_gradients for Keras's optimizers, which no longer have it (Keras 3, and tf_keras's except the legacy ones)."""

from typing import Any

from toolkit.rank.frameworks import keras as private_keras
from toolkit.rank.modelparallel import norms
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import convert, layers
from toolkit.rank.modelparallel.tf.running import PROCESS_STATE


def supply_get_gradients() -> None:
    """Add `get_gradients(loss, params)`, which takes part in the step, to the optimizers of the script's Keras."""
    kinds = [layers.keras().optimizers.Optimizer]
    legacy = getattr(layers.keras().optimizers, "legacy", None)
    if legacy is not None and hasattr(legacy, "Optimizer"):
        kinds.append(legacy.Optimizer)
    for kind in kinds:
        kind.get_gradients = get_gradients


def warn_of_norms() -> None:
    """Warn if the script, or an optimizer with global_clipnorm, clips by the norm of this rank's gradients."""
    import tensorflow as tf

    # tf_keras calls TensorFlow's function, Keras 3 one of its own.
    for owner in (tf, private_keras.find_clipping_module()):
        if hasattr(owner, "clip_by_global_norm"):
            instead = "use tf.clip_by_norm, tf.clip_by_value, or an optimizer's clipnorm or clipvalue"
            norms.notice(owner, "clip_by_global_norm", instead, wrap=convert.leave_unconverted)


def get_gradients(_optimizer: Any, loss: Any, params: Any) -> list[Any]:
    """Return the gradients of *loss* by *params*, a list of variables. Only in a function with @smp.step.

    Raises:
        SMPError: outside a step, or *loss* does not depend on a variable.
    """
    import tensorflow as tf

    trace = PROCESS_STATE.trace
    if trace is None:
        raise SMPError("get_gradients was called outside a step: expected a call in a function with @smp.step")
    variables = [layers.to_tf_variable(variable) for variable in params]
    anchors = [anchor for anchor in trace.anchors if anchor.graph is tf.compat.v1.get_default_graph()]
    gradients = tf.gradients(loss, variables + anchors)[: len(variables)]
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is None:
            raise SMPError(
                f"The loss does not depend on variable {variable.name}: expected only variables that it depends on. "
                "Leave its layer out, or set layer.trainable = False."
            )
    trace.note_gradients(gradients)
    return list(gradients)
