"""A training loop whose handler of SIGTERM raises an error, and a model that takes seconds to compile.

Says `tracing N` when TensorFlow traces the model for the Nth time: natively, then for the compiler.
"""

import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

DEPTH = 60


class Stopped(Exception):
    """The job is to stop."""


class Traced(keras.layers.Layer):
    """Returns what it is given."""

    times = 0

    def call(self, x):
        Traced.times += 1
        print(f"tracing {Traced.times}", flush=True)
        return x


def stop(_number, _frame):
    raise Stopped


signal.signal(signal.SIGTERM, stop)
layers = [keras.layers.Dense(8 + number % 7, "gelu") for number in range(DEPTH)]
model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1), Traced()])
Traced.times = 0
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


done = 0
try:
    while True:
        step(tf.ones((4, 8)))
        done += 1
except Stopped:
    print(f"saved after {done} steps", flush=True)
    sys.exit(0)
