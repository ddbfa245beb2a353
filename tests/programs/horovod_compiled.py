"""Ranks that train a Keras model in a custom loop under Horovod, compiled or not."""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--strings-on", default="", help="ranks whose model XLA does not compile")
words = parser.parse_args()
hvd.init()
rank = hvd.rank()


class Strings(keras.layers.Layer):
    """Returns what it is given, in a way that XLA does not compile."""

    def call(self, x):
        return x + 0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(x)))


keras.utils.set_random_seed(7)
parts = [keras.Input((16,)), keras.layers.Dense(32, "gelu"), keras.layers.Dense(1)]
model = keras.Sequential([*parts, Strings()] if str(rank) in words.strings_on.split(",") else parts)
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(model.trainable_variables)


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(images, training=True) - labels) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    # Horovod 0.28.1 wants variables of TensorFlow, not of Keras 3.
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(loss)


for number in range(words.steps):
    images = tf.random.stateless_normal((32, 16), (number, rank))
    loss = step(images, tf.reduce_sum(images, 1, keepdims=True))
print(f"rank {rank} loss={float(loss):.5f}", flush=True)
