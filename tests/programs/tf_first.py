"""A script that imports TensorFlow first and takes Keras from it, as most do: `fit`, and then a loop."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

random = np.random.default_rng(1)
X, Y = random.normal(size=(96, 16)).astype("float32"), random.integers(0, 4, 96)
layers = [tf.keras.layers.Input((16,)), tf.keras.layers.Dense(32, "gelu"), tf.keras.layers.Dense(4)]
model = tf.keras.Sequential(layers)
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
