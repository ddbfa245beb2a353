"""A job of Keras' fit over tf.data or a generator, or a loop with GradientTape, measured by a clock of its own."""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
import tensorflow as tf
from clock import Clock, compute

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--data", choices=("tfdata", "generator"), default="tfdata")
parser.add_argument("--data-ms", type=float, default=0.0)
parser.add_argument("--loop", type=int, default=0)
parser.add_argument("--evaluate", type=int, default=0)
options = parser.parse_args()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
clock = Clock()
BATCH = 32
generator = np.random.default_rng(1)


def make_batch(*_):
    with clock.part("data"):
        compute(options.data_ms / 1000)
        return generator.standard_normal((BATCH, 256), dtype=np.float32), generator.integers(0, 10, BATCH)


def generate():
    while True:
        yield make_batch()


model = keras.Sequential(
    [keras.layers.Input((256,)), *(keras.layers.Dense(256, "relu") for _ in range(3)), keras.layers.Dense(10)]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
if options.data == "tfdata":
    signature = (tf.TensorSpec((BATCH, 256), tf.float32), tf.TensorSpec((BATCH,), tf.int64))
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
else:
    data = generate()


class Evaluations(keras.callbacks.Callback):
    def on_test_begin(self, _=None):
        self.part = clock.part("evaluation")
        self.part.__enter__()

    def on_test_end(self, _=None):
        self.part.__exit__(None, None, None)


if options.loop:
    optimizer = keras.optimizers.Adam(1e-4)

    @tf.function
    def train_step(inputs, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(inputs, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return value

    for step, (inputs, labels) in zip(range(options.steps), data, strict=False):
        value = train_step(tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels))
        if step % 20 == 0:
            print(f"step={step} loss={float(value):.4f}", flush=True)
else:
    model.compile(keras.optimizers.Adam(1e-4), loss)
    held_out = (generator.standard_normal((640, 256), dtype=np.float32), generator.integers(0, 10, 640))
    model.fit(
        data,
        steps_per_epoch=options.steps // options.epochs,
        epochs=options.epochs,
        validation_data=held_out if options.evaluate else None,
        callbacks=[Evaluations()],
        verbose=2,
    )
clock.write()
