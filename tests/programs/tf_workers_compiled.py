"""Workers of MultiWorkerMirroredStrategy that train a Keras model in a custom loop, compiled or not."""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
parser = argparse.ArgumentParser()
parser.add_argument("--strings-on", default="", help="workers whose model XLA does not compile")
words = parser.parse_args()


class Strings(keras.layers.Layer):
    """Returns what it is given, in a way that XLA does not compile."""

    def call(self, x):
        return x + 0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(x)))


with strategy.scope():
    keras.utils.set_random_seed(7)
    parts = [keras.Input((16,)), keras.layers.Dense(32, "gelu"), keras.layers.Dense(1)]
    model = keras.Sequential([*parts, Strings()] if str(index) in words.strings_on.split(",") else parts)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)


@tf.function
def step(images, labels):
    def replica(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(images, training=True) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("MEAN", strategy.run(replica, (images, labels)), axis=None)


for number in range(200):
    images = tf.random.stateless_normal((32, 16), (number, index))
    loss = step(images, tf.reduce_sum(images, 1, keepdims=True))
print(f"worker {index} loss={float(loss):.5f}", flush=True)
