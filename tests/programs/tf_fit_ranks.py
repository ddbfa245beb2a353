"""Keras 3's `fit` on several hosts with the data parallel library: each rank trains its part of each batch."""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
from smdistributed.dataparallel.tensorflow.keras import callbacks

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--strings-on", default="", help="ranks whose model XLA does not compile")
words = parser.parse_args()
epochs = words.epochs
BATCH, BATCHES, WIDTH, CLASSES = 32, 10, 16, 4

sdp.init()
rank, size = sdp.rank(), sdp.size()
random = np.random.default_rng(1)
x = random.normal(size=(BATCHES, size, BATCH // size, WIDTH)).astype("float32")[:, rank].reshape(-1, WIDTH)
y = random.integers(0, CLASSES, (BATCHES, size, BATCH // size))[:, rank].reshape(-1)


class Strings(keras.layers.Layer):
    """Returns what it is given, in a way that XLA does not compile."""

    def call(self, x):
        return x + 0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(x)))


keras.utils.set_random_seed(7)
parts = [keras.Input((WIDTH,)), keras.layers.Dense(32, "gelu"), keras.layers.Dense(CLASSES)]
model = keras.Sequential([*parts, Strings()] if str(rank) in words.strings_on.split(",") else parts)
model.compile(
    optimizer=sdp.DistributedOptimizer(keras.optimizers.Adam(1e-2)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=BATCH // size,
    epochs=epochs,
    shuffle=False,
    verbose=0,
    callbacks=[callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()],
)
print(f"rank {rank} of {size} losses {' '.join(f'{loss:.6f}' for loss in history.history['loss'])}", flush=True)
