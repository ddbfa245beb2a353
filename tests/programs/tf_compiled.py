"""Training loops of many kinds, small, on generated data: each prints its losses. TOOLKIT_COMPILE decides how they run.

tf_compiled.py --cases fit,loop,...
"""

import argparse
import gc
import os
import sys
import tempfile
import weakref
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import tf_keras

ROWS, WIDTH, CLASSES, BATCH = 96, 16, 4, 16
random = np.random.default_rng(1)
X = random.normal(size=(ROWS, WIDTH)).astype("float32")
Y = random.integers(0, CLASSES, ROWS)


def network(library: Any, *more: Any) -> Any:
    """Return a small classifier of Keras 3 or tf_keras, the same at each call."""
    layers = library.layers

    def weights(seed: int) -> Any:
        return library.initializers.GlorotUniform(seed)

    return library.Sequential(
        [
            layers.Input((WIDTH,)),
            layers.Dense(32, "gelu", kernel_initializer=weights(1)),
            layers.BatchNormalization(),
            *more,
            layers.Dense(CLASSES, kernel_initializer=weights(2)),
        ]
    )


def fit(library: Any, *more: Any, epochs: int = 3, batch: int = BATCH, **options: Any) -> list[float]:
    """Return the losses of `fit`, one for each epoch."""
    model = network(library, *more)
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.Adam(1e-2), loss, metrics=["accuracy"], **options)
    return list(model.fit(X, Y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0).history["loss"])


class OwnStep(keras.Model):
    """A model with a train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network(keras)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}


def own_step() -> list[float]:
    model = OwnStep()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return list(model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0).history["mean"])


def saved() -> list[float]:
    """Return the losses of a model that was compiled by Keras, saved, and loaded again."""
    model = network(keras)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    assert isinstance(loaded.optimizer, keras.optimizers.SGD)
    return list(loaded.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"])


def loop(batches: list[int], obstacle: str = "") -> list[float]:
    """Return the losses of a loop with a tf.function, for batches of these sizes."""
    model, optimizer = network(keras), keras.optimizers.SGD(0.1)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(y, model(x, training=True))
            if obstacle == "numpy":
                loss = tf.ensure_shape(tf.numpy_function(lambda value: value, [loss], tf.float32), ()) * 0 + loss
            elif obstacle == "strings":
                loss = loss + 0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(loss)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return [float(step(tf.constant(X[:size]), tf.constant(Y[:size]))) for size in batches]


def dropped() -> list[float]:
    """Return 1 if a model that the script has dropped is freed."""
    model = network(keras)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    reference = weakref.ref(model)
    del model
    keras.utils.clear_session()
    gc.collect()
    return [float(reference() is None)]


def flagged(steps: int) -> list[float]:
    """Return the losses of a loop that logs every 7 steps, which XLA does not compile."""
    weight = tf.Variable(tf.zeros((WIDTH, CLASSES)))

    @tf.function
    def step(x: Any, y: Any, logs: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weight))
            if logs:
                loss = loss + 0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(loss)))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return [float(step(tf.constant(X), tf.constant(Y), number % 7 == 6)) for number in range(steps)]


def plain(batches: list[int], obstacle: str = "") -> list[float]:
    """Return the losses of a loop without Keras."""
    weight = tf.Variable(tf.zeros((WIDTH, CLASSES)))

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weight))
            if obstacle:
                loss = loss + 0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(loss)))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return [float(step(tf.constant(X[:size]), tf.constant(Y[:size]))) for size in batches]


def mirrored(library: Any, ways: Any = None, devices: int = 2) -> list[float]:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"][:devices], ways).scope():
        model = network(library)
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(library.optimizers.SGD(1e-2), loss)
    return list(model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0).history["loss"])


def mirrored_loop() -> list[float]:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model, optimizer = network(keras), keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def of_replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(y, model(x, training=True)) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(of_replica, args=(x, y)), axis=None)

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat(2)
    return [float(step(x, y)) for x, y in strategy.experimental_distribute_dataset(data)]


CASES = {
    "fit": lambda: fit(keras),
    "long": lambda: fit(keras, epochs=40),
    "for_ever": lambda: fit(keras, epochs=10**9),
    "many": lambda: fit(keras, steps_per_execution=4, epochs=4),
    "partial": lambda: fit(keras, batch=36, epochs=4),
    "dropout": lambda: fit(keras, keras.layers.Dropout(0.0)),
    "explicit": lambda: fit(keras, jit_compile=False),
    "own_step": own_step,
    "saved": saved,
    "legacy": lambda: fit(tf_keras),
    "loop": lambda: loop([16] * 12),
    "shapes": lambda: loop([16] * 4 + [8] * 4),
    "numpy": lambda: loop([16] * 8, "numpy"),
    "strings": lambda: loop([16] * 8, "strings"),
    "plain": lambda: plain([16] * 8),
    "hopeless": lambda: plain([16] * 8, "strings"),
    "dropped": dropped,
    "flagged": lambda: flagged(12),
    "flagged_long": lambda: flagged(40),
    "mirrored": lambda: mirrored(keras),
    "mirrored_alone": lambda: mirrored(keras, devices=1),
    "mirrored_legacy": lambda: mirrored(tf_keras),
    "mirrored_to_one": lambda: mirrored(keras, tf.distribute.ReductionToOneDevice()),
    "mirrored_to_one_legacy": lambda: mirrored(tf_keras, tf.distribute.ReductionToOneDevice()),
    "mirrored_loop": mirrored_loop,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=",".join(name for name in CASES if name != "for_ever"))
    words, _ = parser.parse_known_args()
    # All lines go through one pipe, which keeps their order: the compiler's go to stderr.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    for name in words.cases.split(","):
        print(f"case {name}", flush=True)
        losses = CASES[name]()
        print(f"losses {name} {' '.join(f'{loss:.6f}' for loss in losses)}", flush=True)


if __name__ == "__main__":
    main()
