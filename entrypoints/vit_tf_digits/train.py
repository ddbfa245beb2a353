"""A Vision Transformer in Keras, on images in class folders: the model of AWS's notebook "Compile and Train a Vision
Transformer Model on the Caltech-256 Dataset", in small.

Channels `train` and `validation` hold a folder for each class, as the notebook has them; prepare.py makes them of
handwritten digits. Nothing here knows of a compiler: `--jit-compile auto` leaves Keras's own choice, which
TOOLKIT_COMPILE or the flag of the Training Compiler changes; `--jit-compile false` is native TensorFlow whatever the
job says.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from keras import layers


def parse() -> argparse.Namespace:
    """Return the hyperparameters: the notebook's names and values, and the size of the model."""
    parser = argparse.ArgumentParser(description="A Vision Transformer on images in class folders.")

    def add(name: str, kind: type, default: object, meaning: str) -> None:
        parser.add_argument(
            f"--{name}", f"--{name.lower().replace('_', '-')}", type=kind, default=default, help=meaning
        )

    add("EPOCHS", int, 10, "passes over the images")
    add("BATCH_SIZE", int, 64, "images a step, of all devices together")
    add("LEARNING_RATE", float, 1e-3, "of AdamW")
    add("WEIGHT_DECAY", float, 1e-4, "of AdamW")
    add("SEED", int, 42, "of weights and of the order of images")
    parser.add_argument("--image-size", type=int, default=32, help="the side to which images are scaled, in pixels")
    parser.add_argument("--patch-size", type=int, default=4, help="the side of a patch, in pixels; divides the image's")
    parser.add_argument("--width", type=int, default=64, help="of a token")
    parser.add_argument("--depth", type=int, default=4, help="transformer blocks")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--images", type=int, default=0, help="of the training images, at most; 0: all")
    parser.add_argument(
        "--devices", type=int, default=1, help="above 1: MirroredStrategy; on a CPU over logical devices"
    )
    parser.add_argument("--jit-compile", type=str.lower, choices=("auto", "true", "false"), default="auto")
    return parser.parse_args()


class Patches(layers.Layer):
    """(batch, side, side, channels) -> (batch, patches, pixels of a patch)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def call(self, images):
        batch, side = tf.shape(images)[0], images.shape[1]
        window = [1, self.size, self.size, 1]
        patches = tf.image.extract_patches(images, sizes=window, strides=window, rates=[1, 1, 1, 1], padding="VALID")
        return tf.reshape(patches, [batch, (side // self.size) ** 2, self.size * self.size * images.shape[-1]])


class PatchEncoder(layers.Layer):
    """(batch, patches, pixels) -> (batch, patches, width), with a learned embedding of each place added."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.patches = patches
        self.projection = layers.Dense(width)
        self.place = layers.Embedding(patches, width)

    def call(self, patches):
        return self.projection(patches) + self.place(tf.range(self.patches))


def vision_transformer(options: argparse.Namespace, classes: int) -> keras.Model:
    """Return the model: patches, encoder, transformer blocks, a head of *classes* logits."""
    side = options.image_size
    given = keras.Input((side, side, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(given)
    x = PatchEncoder((side // options.patch_size) ** 2, options.width)(Patches(options.patch_size)(x))
    for _ in range(options.depth):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + layers.MultiHeadAttention(options.heads, options.width // options.heads)(normed, normed)
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + layers.Dense(options.width)(layers.Dense(2 * options.width, activation="gelu")(normed))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(given, layers.Dense(classes, dtype="float32")(x))


def images(channel: str, options: argparse.Namespace, *, training: bool) -> "tuple[tf.data.Dataset, int, int]":
    """Return the batches of *channel*, how many images they hold, and how many classes there are.

    Training batches have one shape (drop_remainder): each other shape would be compiled anew.
    """
    folder = os.environ.get(f"SM_CHANNEL_{channel.upper()}", channel)
    size = (options.image_size, options.image_size)
    found = keras.utils.image_dataset_from_directory(
        folder, image_size=size, batch_size=None, shuffle=training, seed=options.SEED, verbose=False
    )
    classes, count = len(found.class_names), len(found.file_paths)
    if training and options.images:
        found, count = found.take(options.images), min(count, options.images)
    found = found.cache()
    if training:
        found = found.shuffle(count, seed=options.SEED)
        count = count // options.BATCH_SIZE * options.BATCH_SIZE
    return found.batch(options.BATCH_SIZE, drop_remainder=training).prefetch(tf.data.AUTOTUNE), count, classes


class EpochLine(keras.callbacks.Callback):
    """Prints a line for each epoch that the notebook's regexes read, in tf_keras's form.

    Keras 3's own line ("24/24 - 5s - 120ms/step - accuracy: 0.9 - loss: 0.2") has no s/epoch, and no space behind its
    last number.
    """

    def __init__(self, images_an_epoch: int, steps: int) -> None:
        super().__init__()
        self._images, self._steps = images_an_epoch, steps

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002 - Keras's signature
        self._began_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        self._steps_end_s = time.perf_counter()  # The epoch's validation comes after its last batch.

    def on_epoch_end(self, epoch: int, logs: "dict[str, float] | None" = None) -> None:
        took_s = self._steps_end_s - self._began_s
        shown = " - ".join(f"{name}: {value:.6f}" for name, value in (logs or {}).items())
        print(
            f"epoch={epoch + 1} - {shown} - {took_s:.4f}s/epoch - {1000 * took_s / self._steps:.2f}ms/step "
            f"- images_per_second={self._images / took_s:.2f}",
            flush=True,
        )


def strategy(devices: int) -> tf.distribute.Strategy:
    """Return a strategy over *devices* GPUs; over as many parts of the CPU where there is no GPU."""
    if devices == 1:
        return tf.distribute.get_strategy()
    if not tf.config.list_physical_devices("GPU"):
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(devices)]
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
        # Without collectives: beside compiled code those of one process can wait for each other for ever.
        to_one = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)], to_one)
    return tf.distribute.MirroredStrategy([f"GPU:{number}" for number in range(devices)])


def main() -> None:
    """Train, and save the weights."""
    options = parse()
    over = strategy(options.devices)
    keras.utils.set_random_seed(options.SEED)
    if tf.config.list_physical_devices("GPU"):
        keras.mixed_precision.set_global_policy("mixed_float16")
    training, count, classes = images("train", options, training=True)
    validation, _, _ = images("validation", options, training=False)
    with over.scope():
        model = vision_transformer(options, classes)
        model.compile(
            optimizer=keras.optimizers.AdamW(options.LEARNING_RATE, weight_decay=options.WEIGHT_DECAY),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile={"auto": "auto", "true": True, "false": False}[options.jit_compile],
        )
    line = EpochLine(count, count // options.BATCH_SIZE)
    model.fit(training, epochs=options.EPOCHS, validation_data=validation, verbose=0, shuffle=False, callbacks=[line])
    folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_weights(folder / "vit.weights.h5")


if __name__ == "__main__":
    main()
