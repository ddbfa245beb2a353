"""DistributedModel, the base class of users' models."""

from collections.abc import Callable
from typing import Any

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import convert, fitting, layers, saving
from toolkit.rank.modelparallel.tf.partitioned import Partition
from toolkit.rank.modelparallel.tf.running import PROCESS_STATE


def model_class() -> type:
    """Return DistributedModel, a subclass of the script's Keras's Model."""
    base: Any = layers.keras().Model

    class DistributedModel(base):  # type: ignore[misc]
        """A Keras model whose layers are divided between ranks at its first call in a step.

        From then on `variables`, `weights`, `losses` and the like have only this rank's part, and the model may be
        called only in functions with @smp.step.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "smp_partition", Partition())

        @convert.leave_unconverted
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return _call_model(self, super().__call__, args, kwargs)

        def register_post_partition_hook(self, hook: Callable[[], None]) -> None:
            """Call *hook* without arguments when the model has been partitioned; immediately if it already has been."""
            if self.smp_partition.is_settled:
                hook()
            else:
                self.smp_partition.hooks.append(hook)

        def save_model(self, save_path: str = saving.MODEL) -> None:
            """Write the whole model to *save_path* as a SavedModel. All ranks call it; rank 0 writes."""
            saving.save_model(self, save_path)

        def train_step(self, data: Any) -> Any:
            return fitting.train_step(self, data)

        def test_step(self, data: Any) -> Any:
            return fitting.test_step(self, data)

        def predict_step(self, data: Any) -> Any:
            return fitting.predict_step(self, data)

        @property
        def losses(self) -> list[Any]:
            partition = self.smp_partition
            is_whole = PROCESS_STATE.is_whole or not partition.is_settled
            return list(super().losses) if is_whole else [loss for layer in partition.local for loss in layer.losses]

        @property
        def trainable_weights(self) -> list[Any]:
            return self._smp_local(super().trainable_weights)

        @property
        def non_trainable_weights(self) -> list[Any]:
            return self._smp_local(super().non_trainable_weights)

        @property
        def trainable_variables(self) -> list[Any]:
            return self._smp_local(super().trainable_variables)

        @property
        def non_trainable_variables(self) -> list[Any]:
            return self._smp_local(super().non_trainable_variables)

        @property
        def weights(self) -> list[Any]:
            return self._smp_local(super().weights)

        @property
        def variables(self) -> list[Any]:
            return self._smp_local(super().variables)

        def _smp_local(self, weights: Any) -> list[Any]:
            partition = self.__dict__.get("smp_partition")
            return [variable for variable in weights if partition is None or partition.is_local(variable)]

    DistributedModel.__module__ = __name__
    return DistributedModel


def _call_model(model: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    trace = PROCESS_STATE.trace
    if trace is not None:
        return trace.call_model(model, convert.convert_inner(original), args, kwargs)
    if model.smp_partition.is_settled and world.current().cfg.partitions > 1 and not PROCESS_STATE.is_whole:
        raise SMPError(
            "The model was called outside a step: expected a call in a function with @smp.step, since its layers are "
            "on several ranks. Put the call into such a function."
        )
    return original(*args, **kwargs)
