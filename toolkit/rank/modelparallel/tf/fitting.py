"""Keras's fit, evaluate and predict over a divided model: each batch is a step.

All ranks of a model pass the same data.
"""

from typing import Any

from toolkit.rank.modelparallel.tf import layers
from toolkit.rank.modelparallel.tf.gradients import get_gradients
from toolkit.rank.modelparallel.tf.step import step


def train_step(model: Any, data: Any) -> Any:
    """Train *model* on the batch *data*; return its metrics by name."""
    x, y, weights = layers.keras().utils.unpack_x_y_sample_weight(data)

    def forward_backward(x: Any, y: Any, weights: Any) -> Any:
        predictions = model(x, training=True)
        loss = _loss(model, x, y, predictions, weights, is_training=True)
        return get_gradients(model.optimizer, loss, model.trainable_variables), loss, predictions

    gradients, loss, predictions = step(forward_backward)(x, y, weights)
    means = [gradient.accumulate() for gradient in gradients]
    model.optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
    return _metrics(model, x, y, _merge_outputs(predictions), weights, loss.reduce_mean())


def test_step(model: Any, data: Any) -> Any:
    """Evaluate *model* on the batch *data*; return its metrics by name."""
    x, y, weights = layers.keras().utils.unpack_x_y_sample_weight(data)

    def forward(x: Any, y: Any, weights: Any) -> Any:
        predictions = model(x, training=False)
        return _loss(model, x, y, predictions, weights, is_training=False), predictions

    loss, predictions = step(forward)(x, y, weights)
    return _metrics(model, x, y, _merge_outputs(predictions), weights, loss.reduce_mean())


def predict_step(model: Any, data: Any) -> Any:
    """Return *model*'s predictions for the batch *data*."""
    x, _, _ = layers.keras().utils.unpack_x_y_sample_weight(data)
    return _merge_outputs(step(lambda x: model(x, training=False))(x))


def _loss(model: Any, x: Any, y: Any, predictions: Any, weights: Any, *, is_training: bool) -> Any:
    arguments = {"x": x, "y": y, "y_pred": predictions, "sample_weight": weights}
    if _is_keras_3():
        return model.compute_loss(**arguments, training=is_training)
    return model.compute_loss(**arguments)


def _metrics(model: Any, x: Any, y: Any, predictions: Any, weights: Any, loss: Any) -> Any:
    if _is_keras_3():
        # The mean of the losses, which compute_metrics leaves out. A script may have `metrics` of its own.
        layers.keras().Model.metrics.fget(model)[0].update_state(loss)
    return model.compute_metrics(x, y, predictions, weights)


def _is_keras_3() -> bool:
    return not layers.keras().__version__.startswith("2.")


def _merge_outputs(predictions: Any) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(lambda prediction: prediction.merge(), predictions)
