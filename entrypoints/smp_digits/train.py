"""Train a small convolutional network on handwritten-like digits, its layers divided between two ranks.

A script for SageMaker's model parallel library as one wrote it in December 2020 for TensorFlow 2.3: a subclass of
smp.DistributedModel, a training and a test function with @smp.step, optimizer.get_gradients, accumulate. TensorFlow
itself has changed since: Keras 2 is the package tf-keras, which `tf.keras` is under TF_USE_LEGACY_KERAS=1 (job.toml).

Data: `mnist.npz` (arrays x_train, y_train, x_test, y_test; images n x 28 x 28, 0 to 255) in the channel `train`;
without it digits of 14 x 14 pixels that the script draws itself: strokes, shifted, scaled, slanted and with noise.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from tensorflow.keras.layers import Conv2D, Dense, Flatten

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64, help="images a step of each replica of the model")
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--train-images", type=int, default=4096, help="digits to draw, where there is no mnist.npz")
parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN"))
parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
args, _ = parser.parse_known_args()

tf.keras.utils.set_random_seed(1)
smp.init()

# The strokes of digits as (x, y, x, y) in a box of 2 x 4: top, upper left, upper right, middle, lower left, lower right
# and bottom.
STROKES = [(0, 0, 2, 0), (0, 0, 0, 2), (2, 0, 2, 2), (0, 2, 2, 2), (0, 2, 0, 4), (2, 2, 2, 4), (0, 4, 2, 4)]
DIGITS = ["012456", "25", "02346", "02356", "1235", "01356", "013456", "025", "0123456", "012356"]


def drawn(count, seed):
    """Return `count` images (n x 14 x 14, 0 to 255) and their digits."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = np.zeros((count, 14, 14), np.float32)
    part = np.linspace(0, 1, 12)
    for image, label in zip(images, labels):
        left, top, unit, slant = rng.uniform((2, 1, 1.6, -0.15), (6, 4, 2.3, 0.15))
        for stroke in DIGITS[label]:
            x0, y0, x1, y1 = STROKES[int(stroke)]
            y = top + unit * (y0 + part * (y1 - y0))
            x = left + unit * (x0 + part * (x1 - x0)) + slant * (7 - y)
            image[y.astype(int), np.clip(x, 0, 13).astype(int)] = 255
    return np.clip(images + rng.normal(0, 60, images.shape), 0, 255), labels


def load():
    if args.train and (args.train / "mnist.npz").exists():
        with np.load(args.train / "mnist.npz") as arrays:
            return (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])
    return drawn(args.train_images, 1), drawn(1024, 2)


(x_train, y_train), (x_test, y_test) = load()
x_train, x_test = (images[..., None].astype("float32") / 255 for images in (x_train, x_test))

# Each replica has its share of the images; the ranks of one replica read the same.
x_train, y_train = x_train[smp.rdp_rank() :: smp.rdp_size()], y_train[smp.rdp_rank() :: smp.rdp_size()]
train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(10000, seed=1)
train_ds = train_ds.batch(args.batch_size, drop_remainder=True)
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(128, drop_remainder=True)


class MyModel(smp.DistributedModel):
    def __init__(self):
        super(MyModel, self).__init__()
        self.conv = Conv2D(32, 3, activation="relu")
        self.flatten = Flatten()
        self.dense1 = Dense(128)
        self.dense2 = Dense(10)

    def call(self, x):
        x = self.conv(x)
        x = self.flatten(x)
        x = self.dense1(x)
        return self.dense2(x)


model = MyModel()
loss_obj = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(args.learning_rate)
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@smp.step
def forward_backward(images, labels):
    predictions = model(images, training=True)
    loss = loss_obj(labels, predictions)
    grads = optimizer.get_gradients(loss, model.trainable_variables)
    return grads, loss, predictions


@tf.function
def train_step(images, labels):
    gradients, loss, predictions = forward_backward(images, labels)
    gradients = [gradient.accumulate() for gradient in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_accuracy.update_state(labels, predictions.merge())
    return loss.reduce_mean()


@smp.step
def forward(images, labels):
    predictions = model(images, training=False)
    return loss_obj(labels, predictions), predictions


@tf.function
def test_step(images, labels):
    loss, predictions = forward(images, labels)
    test_accuracy.update_state(labels, predictions.merge())
    return loss.reduce_mean()


def say(text):
    if smp.rank() == 0:
        print(text, flush=True)


step = 0
for epoch in range(1, args.epochs + 1):
    train_accuracy.reset_state()
    test_accuracy.reset_state()
    begin = time.perf_counter()
    for images, labels in train_ds:
        step += 1
        loss = train_step(images, labels)
        if step % 10 == 0:
            say(f"epoch={epoch} step={step} loss={float(loss):.4f}")
    seconds = (time.perf_counter() - begin) / len(train_ds)
    for images, labels in test_ds:
        test_step(images, labels)
    say(f"epoch={epoch} step={step} accuracy={float(test_accuracy.result()):.4f} step_time={seconds:.4f}")

weights = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
print(f"rank {smp.rank()}: partition {smp.pp_rank()}, replica {smp.rdp_rank()}, {weights} weights", flush=True)
model.save_model(str(args.model_dir / "model"))
