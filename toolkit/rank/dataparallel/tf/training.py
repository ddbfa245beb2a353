"""Wrappers for a script's training: tape, optimizer, session hook and Keras callbacks."""

from typing import Any

from toolkit.rank.dataparallel.tf.api import Library, NoCompression, ReduceOp
from toolkit.rank.dataparallel.tf.fuse import BUCKET_MIB

AVERAGES = "_toolkit_smddp_averages"  # Marks the classes and functions with which this module replaces Keras's.


def tape_function(library: Library) -> Any:
    """Return DistributedGradientTape over *library*."""

    def DistributedGradientTape(  # noqa: N802 - the old name
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoCompression,
        op: str = ReduceOp.AVERAGE,
        sparse_as_dense: bool = True,
    ) -> Any:
        """Return *gradtape* with a `gradient` that is averaged over all ranks; it is the same tape otherwise."""
        original = gradtape.gradient

        def gradient(target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
            import tensorflow as tf

            gradients = original(target, sources, *arguments, **options)
            flat = library.reduce_tensors(_flat(gradients), compression, op, names=_names(_flat(sources)))
            return tf.nest.pack_sequence_as(gradients, flat, expand_composites=False)

        gradtape.gradient = gradient
        return gradtape

    return DistributedGradientTape


def _flat(nested: Any) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(nested, expand_composites=False))


def _names(variables: Any) -> list[str]:
    """Return the names of *variables* for errors: Keras 3's paths, else names; "" for tensors of an eager step."""
    names = []
    for variable in variables:
        try:
            names.append(str(getattr(variable, "path", "") or variable.name).removesuffix(":0"))
        except AttributeError:  # Tensor.name means nothing where operations run at once.
            names.append("")
    return names


def optimizer_function(library: Library) -> Any:
    """Return DistributedOptimizer over *library*."""

    def DistributedOptimizer(  # noqa: N802 - the old name
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = NoCompression,
        sparse_as_dense: bool = True,
        op: str = ReduceOp.AVERAGE,
        bucket_cap_mb: float = BUCKET_MIB,
    ) -> Any:
        """Return *optimizer*, changed so that it averages gradients before it applies them.

        Of Keras (2 or 3) or of TensorFlow 1. *bucket_cap_mb* is in MiB; devices and *use_locking* are ignored.
        """

        def average(gradients: Any, variables: Any) -> list[Any]:
            return library.reduce_tensors(list(gradients), compression, op, bucket_cap_mb, _names(variables or ()))

        if hasattr(optimizer, "compute_gradients"):
            return _wrap_tf1_optimizer(optimizer, average)
        return _wrap_keras_optimizer(optimizer, average, library)

    return DistributedOptimizer


def _wrap_tf1_optimizer(optimizer: Any, average: Any) -> Any:
    original = optimizer.compute_gradients

    def compute_gradients(*arguments: Any, **options: Any) -> list[tuple[Any, Any]]:
        pairs = list(original(*arguments, **options))
        averages = average([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(averages, pairs, strict=True)]

    optimizer.compute_gradients = compute_gradients
    return optimizer


def _wrap_keras_optimizer(optimizer: Any, average: Any, library: Library) -> Any:
    kind = type(optimizer)

    if hasattr(kind, "apply"):  # Keras 3: every update calls it.
        _scale_losses_alike(library)

        def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            return kind.apply(self, average(grads, trainable_variables), trainable_variables)

        members: dict[str, Any] = {"apply": apply}
    else:

        def apply_gradients(self: Any, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            pairs = list(grads_and_vars)
            averages = average([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
            averaged_pairs = [(gradient, variable) for gradient, (_, variable) in zip(averages, pairs, strict=True)]
            return kind.apply_gradients(self, averaged_pairs, *arguments, **options)

        members = {"apply_gradients": apply_gradients}
    # The same name and module, so that a saved model can be loaded without this library. The same object, so that its
    # state stays: of an optimizer that was loaded with a model, its moments and its number of steps.
    members |= {"__module__": kind.__module__, AVERAGES: True}
    optimizer.__class__ = type(kind.__name__, (kind,), members)
    return optimizer


def _scale_losses_alike(library: Library) -> None:
    """Make Keras's LossScaleOptimizer around an optimizer of this module skip a step on all ranks or on none.

    `Model.compile` puts it around any optimizer under the policy mixed_float16. It looks for infinite gradients before
    they are averaged: a rank that alone found one would leave out the all-reduce, and the others would average their
    gradients with those of its next step.
    """
    import keras  # tf.keras may be Keras 2.
    import tensorflow as tf

    kind = keras.optimizers.LossScaleOptimizer
    of_keras = kind.check_finite
    if hasattr(of_keras, AVERAGES):
        return

    def check_finite(self: Any, grads: Any) -> Any:
        finite = of_keras(self, grads)
        if not hasattr(self.inner_optimizer, AVERAGES):
            return finite
        on_all = library.oob_allreduce(tf.cast(finite, tf.int32), op=ReduceOp.MIN)
        return tf.cast(on_all, tf.bool)

    setattr(check_finite, AVERAGES, True)
    kind.check_finite = check_finite


def hook_class(library: Library) -> type:
    """Return BroadcastGlobalVariablesHook, for TensorFlow 1's sessions, over *library*."""
    import tensorflow as tf

    class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        """Sets all global variables to rank *root_rank*'s when a session begins."""

        def __init__(self, root_rank: int, device: str = "") -> None:
            super().__init__()
            self.root_rank = root_rank
            self.operation: Any = None

        def begin(self) -> None:
            self.operation = library.broadcast_global_variables(self.root_rank)

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self.operation)

    return BroadcastGlobalVariablesHook


def callback_classes(library: Library) -> tuple[type, type]:
    """Return (BroadcastGlobalVariablesCallback, MetricAverageCallback) for Keras, over *library*."""
    import tensorflow as tf

    class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """Sets all variables to rank *root_rank*'s after the first batch, when the optimizer has made its own."""

        def __init__(self, root_rank: int, device: str = "") -> None:
            super().__init__()
            self.root_rank = root_rank
            self.done = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.done:
                return
            self.done = True
            variables = self.model.optimizer.variables
            of_optimizer = variables() if callable(variables) else variables
            library.broadcast_variables([*self.model.variables, *of_optimizer], self.root_rank)

    class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """Averages the epoch's metrics over all ranks; list it before callbacks that read them."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            for name in sorted(logs or {}):
                logs[name] = float(library.oob_allreduce(tf.constant(logs[name], tf.float64)))

    return BroadcastGlobalVariablesCallback, MetricAverageCallback
