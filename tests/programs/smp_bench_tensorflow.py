"""The program that scripts/benches/modelparallel.py measures of TensorFlow: the network of entrypoints/smp_digits, whole or divided.

Arguments: "whole" or "divided", a folder, options as JSON. "whole" keeps gradients and losses in the folder, "divided"
compares its own with them. Each rank prints a line of JSON for each number of microbatches."""

import json
import pickle
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Conv2D, Dense, Flatten

IS_WHOLE = sys.argv[1] == "whole"
FOLDER, OPTIONS = Path(sys.argv[2]), json.loads(sys.argv[3])
if not IS_WHOLE:
    import smdistributed.modelparallel.tensorflow as smp

tf.config.threading.set_intra_op_parallelism_threads(OPTIONS["threads"])
RNG = np.random.default_rng(3)
IMAGES = tf.constant(RNG.random((64, 28, 28, 1)), tf.float32)
LABELS = tf.constant(RNG.integers(0, 10, 64))
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make(base):
    class Net(base):
        def __init__(self):
            super().__init__()
            self.conv = Conv2D(32, 3, activation="relu", name="conv")
            self.flatten = Flatten()
            self.dense1 = Dense(128, name="dense1")
            self.dense2 = Dense(10, name="dense2")

        def call(self, x):
            return self.dense2(self.dense1(self.flatten(self.conv(x))))

    tf.keras.utils.set_random_seed(1)
    return Net()


def build_whole(count):
    """A step that accumulates *count* microbatches in one graph, as a process alone would."""
    model = make(tf.keras.Model)

    @tf.function
    def forward_backward(images, labels):
        losses, total = [], None
        for some, their in zip(tf.split(images, count), tf.split(labels, count)):
            with tf.GradientTape() as tape:
                losses.append(LOSS(their, model(some, training=True)))
            gradients = tape.gradient(losses[-1], model.trainable_variables)
            total = gradients if total is None else [summed + other for summed, other in zip(total, gradients)]
        return [gradient / count for gradient in total], tf.add_n(losses) / count

    return model, forward_backward


def divided(count):
    smp.init({"partitions": 2, "microbatches": count})
    model = make(smp.DistributedModel)
    optimizer = tf.keras.optimizers.SGD(0.0)

    @smp.step
    def step(images, labels):
        loss = LOSS(labels, model(images, training=True))
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    @tf.function
    def forward_backward(images, labels):
        gradients, loss = step(images, labels)
        return [variable.accumulate() for variable in gradients], loss.reduce_mean()

    return model, forward_backward


def names(model):
    return [variable.name.removesuffix(":0").split("/", 1)[-1] for variable in model.trainable_variables]


def measured(count):
    model, forward_backward = (build_whole if IS_WHOLE else divided)(count)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    apply = tf.function(lambda gradients: optimizer.apply_gradients(zip(gradients, model.trainable_variables)))
    gradients, _ = forward_backward(IMAGES, LABELS)
    first = dict(zip(names(model), [variable.numpy() for variable in gradients]))
    losses, times = [], []
    for _ in range(OPTIONS["steps"]):
        began = time.perf_counter()
        gradients, loss = forward_backward(IMAGES, LABELS)
        apply(gradients)
        losses.append(float(loss))
        times.append(time.perf_counter() - began)
    saved_file = FOLDER / f"whole-{count}.pickle"
    row = {"microbatches": count, "seconds": statistics.median(times[10:])}
    if IS_WHOLE:
        saved_file.write_bytes(pickle.dumps((first, losses)))
    else:
        expected, their_losses = pickle.loads(saved_file.read_bytes())
        row["gradients"] = max(
            float(np.linalg.norm(gradient - expected[name]) / np.linalg.norm(expected[name]))
            for name, gradient in first.items()
        )
        row["losses"] = max(abs(ours / plain_loss - 1) for ours, plain_loss in zip(losses, their_losses))
        row["variables"] = sorted(first)
        smp.barrier()
        smp.shutdown()
    return row


for microbatches in OPTIONS["counts"]:
    print(json.dumps(measured(microbatches)), flush=True)
