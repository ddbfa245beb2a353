"""Train a small network on handwritten digits (8x8 grey pixels, 10 classes) with JAX, in one process or many.

A plain JAX script: `jax.distributed.initialize()` without arguments where the job has several processes, one mesh over
all devices, each batch sharded over it. The losses do not depend on the number of processes, but for rounding.

Data: the 1,797 images of `sklearn.datasets.load_digits` (scikit-learn ships them; CC BY 4.0), one fifth held out.
Stops: on SIGTERM the processes finish the same step, rank 0 saves the model, and all exit with 0.
"""

import argparse
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

STOP = {"wanted": False}


def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
    """Remember a SIGTERM; the ranks agree on it between steps."""
    STOP["wanted"] = True


signal.signal(signal.SIGTERM, ask_to_stop)  # Before jax, whose import takes a second.

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

PIXELS = 64
CLASSES = 10
DECAY = (0.9, 0.999)  # of Adam's two means

Tree = dict[str, Any]


def parse() -> argparse.Namespace:
    """Return the hyperparameters and folders."""
    parser = argparse.ArgumentParser(description="A small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=96, help="images a step, over all processes together")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64, help="of the hidden layer")
    parser.add_argument("--seed", type=int, default=1, help="of weights, split and order")
    parser.add_argument("--model-dir", type=Path, default=Path(os.environ.get("SM_MODEL_DIR", "model")))
    return parser.parse_args()


def weights(width: int, seed: int) -> Tree:
    """Return the network's weights, the same in every process."""
    random = np.random.default_rng(seed)
    return {
        "hidden": (random.normal(size=(PIXELS, width)) / np.sqrt(PIXELS)).astype(np.float32),
        "hidden_bias": np.zeros(width, np.float32),
        "out": (random.normal(size=(width, CLASSES)) / np.sqrt(width)).astype(np.float32),
        "out_bias": np.zeros(CLASSES, np.float32),
    }


def scores(model: Tree, images: Any) -> Any:
    hidden = jax.nn.relu(images @ model["hidden"] + model["hidden_bias"])
    return hidden @ model["out"] + model["out_bias"]


def loss_of(model: Tree, images: Any, labels: Any) -> Any:
    """Return the mean cross entropy over the whole batch, wherever its images are."""
    chances = jax.nn.log_softmax(scores(model, images))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()


def step(state: Tree, images: Any, labels: Any, wanted: Any, rate: float) -> tuple[Tree, Any, Any]:
    """Return the state after a step of Adam, the batch's loss, and whether any process wants to stop."""
    loss, slope = jax.value_and_grad(loss_of)(state["model"], images, labels)
    count = state["count"] + 1
    first = jax.tree.map(lambda mean, by: DECAY[0] * mean + (1 - DECAY[0]) * by, state["first"], slope)
    second = jax.tree.map(lambda mean, by: DECAY[1] * mean + (1 - DECAY[1]) * by * by, state["second"], slope)
    scale = rate * jnp.sqrt(1 - DECAY[1] ** count) / (1 - DECAY[0] ** count)
    model = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), state["model"], first, second)
    return {"model": model, "first": first, "second": second, "count": count}, loss, wanted.max()


def main() -> None:
    given = parse()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        jax.distributed.initialize()
    devices = np.array(jax.devices())
    if given.batch_size % devices.size:
        raise SystemExit(f"--batch-size: expected a multiple of the {devices.size} devices, got {given.batch_size}")
    mesh = Mesh(devices, ("batch",))
    over_all, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())

    data = load_digits()
    images, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int32)
    order = np.random.default_rng(given.seed).permutation(len(images))
    held, training = order[: len(order) // 5], order[len(order) // 5 :]

    def shared(values: Any) -> Any:
        """Return *values*, the whole batch, sharded: each process gives its devices their part."""
        return jax.make_array_from_callback(values.shape, over_all, lambda place: values[place])

    def same(tree: Tree) -> Tree:
        return jax.tree.map(lambda v: jax.make_array_from_callback(v.shape, everywhere, lambda place: v[place]), tree)

    model = weights(given.width, given.seed)
    zeros = jax.tree.map(np.zeros_like, model)
    state = same({"model": model, "first": zeros, "second": zeros, "count": np.zeros((), np.float32)})
    train = jax.jit(step, static_argnums=4, out_shardings=(everywhere, everywhere, everywhere))
    print(f"process {jax.process_index()} of {jax.process_count()}, {devices.size} devices", flush=True)
    first = jax.process_index() == 0
    for epoch in range(1, given.epochs + 1):
        random = np.random.default_rng((given.seed, epoch))
        shuffled = random.permutation(training)
        losses = []
        stops = False
        for start in range(0, len(shuffled) - given.batch_size + 1, given.batch_size):
            chosen = shuffled[start : start + given.batch_size]
            mine = np.full(jax.local_device_count(), STOP["wanted"], np.int32)
            wanted = jax.make_array_from_process_local_data(over_all, mine)
            state, loss, stop = train(
                state, shared(images[chosen]), shared(labels[chosen]), wanted, given.learning_rate
            )
            losses.append(float(loss))
            if int(stop):
                stops = True
                break
        model = jax.tree.map(lambda w: np.asarray(w), state["model"])
        accuracy = float((np.argmax(np.asarray(scores(model, images[held])), axis=1) == labels[held]).mean())
        if first:
            print(f"epoch={epoch} loss={np.mean(losses):.6f} accuracy={accuracy:.4f}", flush=True)
        if stops:
            print("stopped on request", flush=True)
            break
    if first:
        given.model_dir.mkdir(parents=True, exist_ok=True)
        np.savez(given.model_dir / "model.npz", **model)


if __name__ == "__main__":
    main()
