"""Train a small Vision Transformer with Keras, with or without XLA's just-in-time compiler (`--jit-compile true`).

It stands for the Vision Transformer on Caltech-256 of AWS's notebook for the SageMaker Training Compiler: the same job
twice, native and compiled, which `toolkit compare` sets side by side. The images are generated, so that nothing is
downloaded: 32 x 32 pixels, 8 classes of coloured stripes with noise. The numbers are 32-bit floats (mixed precision
only helps on GPUs). Keras prints its own line for each epoch; a callback adds one with the exact seconds.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import layers

SIDE, CLASSES = 32, 8


def parse() -> argparse.Namespace:
    """Return the hyperparameters."""
    parser = argparse.ArgumentParser(description="A small Vision Transformer on generated images.")

    def add(name: str, kind: type, default: object, meaning: str) -> None:
        parser.add_argument(
            *dict.fromkeys([name, "--" + name[2:].replace("-", "_")]), type=kind, default=default, help=meaning
        )

    add("--epochs", int, 12, "passes over the images")
    add("--batch-size", int, 32, "images a step")
    add("--learning-rate", float, 1e-3, "of AdamW")
    add("--weight-decay", float, 1e-4, "of AdamW")
    add("--images", int, 1024, "how many images there are")
    add("--depth", int, 4, "transformer blocks")
    add("--dim", int, 128, "width of a token")
    add("--patch-size", int, 4, "side of a patch in pixels; divides 32")
    add("--seed", int, 42, "of weights and images")
    add("--jit-compile", str, "false", "true: compile the step with XLA")
    return parser.parse_args()


def images(count: int, seed: int) -> "tuple[np.ndarray, np.ndarray]":
    """Return *count* images of stripes and their classes: four angles in two colours, with noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    angles = np.pi * (labels % 4) / 4
    phases = random.uniform(0, 2 * np.pi, count)
    along = np.cos(angles)[:, None, None] * x + np.sin(angles)[:, None, None] * y
    stripes = 0.5 + 0.5 * np.sin(25 * along + phases[:, None, None])
    pixels = random.normal(0, 1.0, (count, SIDE, SIDE, 3))
    pixels[np.arange(count), :, :, (labels // 4) * 2] += stripes
    return pixels.astype("float32"), labels


def model(options: argparse.Namespace) -> keras.Model:
    """Return the Vision Transformer."""
    tokens = (SIDE // options.patch_size) ** 2
    given = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(options.dim, options.patch_size, strides=options.patch_size)(given)
    x = layers.Reshape((tokens, options.dim))(x)
    x = x + layers.Embedding(tokens, options.dim)(keras.ops.arange(tokens))
    for _ in range(options.depth):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + layers.MultiHeadAttention(4, options.dim // 4)(normed, normed)
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + layers.Dense(options.dim)(layers.Dense(2 * options.dim, activation="gelu")(normed))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(given, layers.Dense(CLASSES)(x))


class EpochTimes(keras.callbacks.Callback):
    """Prints the seconds of each epoch, compilation included, and its images a second."""

    def __init__(self, images_an_epoch: int) -> None:
        super().__init__()
        self._images = images_an_epoch

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002 - Keras's signature
        self._began_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
        took_s = time.perf_counter() - self._began_s
        print(f"epoch={epoch + 1} epoch_time={took_s:.4f} samples_per_second={self._images / took_s:.2f}", flush=True)


def main() -> None:
    """Train, and save the weights."""
    options = parse()
    keras.utils.set_random_seed(options.seed)
    pixels, labels = images(options.images, options.seed)
    network = model(options)
    network.compile(
        optimizer=keras.optimizers.AdamW(options.learning_rate, weight_decay=options.weight_decay),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=options.jit_compile.lower() == "true",
    )
    whole = options.images // options.batch_size * options.batch_size  # One shape of a batch: one compilation.
    network.fit(
        pixels[:whole],
        labels[:whole],
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2,
        callbacks=[EpochTimes(whole)],
    )
    folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
    folder.mkdir(parents=True, exist_ok=True)
    network.save_weights(folder / "vit.weights.h5")


if __name__ == "__main__":
    main()
