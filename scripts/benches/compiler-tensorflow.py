"""Measure what TOOLKIT_COMPILE makes of a Vision Transformer in TensorFlow, beside the same script without.

    scripts/bench compiler-tensorflow [--steps N] [--dim D] [--threads N] [--modes on,auto]

The model of entrypoints/vit_jit, trained by a tf.function with a GradientTape: native, with `on` and with `auto`, and
both ways without the toolkit: `bare`, and `jit`, whose script says jit_compile=True. The processes live at the same
time and take turns of four steps, the first of which is not counted, so that a busy machine meets all alike; one that
waits uses no core. The least step of each counts, after the trial of `auto`; the toolkit's own part is the median of
the turns' ratios. Prints markdown; the last lines say whether the promises hold: compiled at least 1.2 times as fast
with two threads, and the toolkit's own part of a step below 1 %. Needs the bed of scripts/beds/tensorflow.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import ROOT, Worker, answer_orders, bed, in_turns, names, parser, print_machine, print_promise, print_table

BATCH = 32
MOST_TRIAL_STEPS = 400
STEPS_A_TURN = 3
FASTER = 1.2
OWN_SHARE = 0.01
WITHOUT = {"native": "bare", "on": "jit"}  # Each mode, and the same step without the toolkit.


def child(dim: int, threads: int, mode: str) -> None:
    """Answer orders: "run N" the times of N steps in ms, "settle" the facts at the trial's end."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    spec = importlib.util.spec_from_file_location("vit", ROOT / "entrypoints/vit_jit/train.py")
    assert spec is not None and spec.loader is not None
    vit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vit)
    keras.utils.set_random_seed(1)
    network = vit.model(argparse.Namespace(patch_size=4, dim=dim, depth=4))
    optimizer = keras.optimizers.AdamW(1e-3)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pixels, labels = (tf.constant(part) for part in vit.images(BATCH, 1))

    @tf.function(jit_compile=True if mode == "jit" else None)
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(y, network(x, training=True))
        found = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(found, network.trainable_variables, strict=True))
        return loss

    def step() -> float:
        begun = time.perf_counter()
        train(pixels, labels)
        return (time.perf_counter() - begun) * 1000

    def settle(_: int) -> dict[str, Any]:
        for number in range(MOST_TRIAL_STEPS):
            step()
            if number > 4 and facts().get("state", "eager") != "trial":
                break
        return facts()

    answer_orders({"settle": settle, "run": lambda count: [step() for _ in range(count)]})


def facts() -> dict[str, Any]:
    """Return what the compiler has told; nothing of it while the trial runs."""
    found = [json.loads(path.read_text()) for path in Path(os.environ["TOOLKIT_STATUS_FOLDER"]).glob("compiler-*")]
    if found:
        return dict(found[0])
    return {"state": "trial"} if "TOOLKIT_COMPILER" in os.environ else {}


class Side(Worker):
    """A process that trains in one way, one step at a time."""

    def __init__(self, words: argparse.Namespace, mode: str, folder: str) -> None:
        from toolkit.train.launchers.environment import HOOK

        environ = {**os.environ, "TOOLKIT_STATUS_FOLDER": folder, "PYTHONPATH": f"{HOOK}:{ROOT}"}
        environ.pop("TOOLKIT_COMPILER", None)
        if mode in WITHOUT.values():
            environ["PYTHONPATH"] = str(ROOT)
        elif mode != "native":
            asked = {"compile": mode, "autocast": "off", "cache": "", "debug": False, "dump": ""}
            environ["TOOLKIT_COMPILER"] = json.dumps(asked)
        python = bed("tensorflow") / "bin/python"
        super().__init__([python, __file__, "--child", words.dim, words.threads, mode], environ)

    def times(self) -> list[float]:
        return list(self.ask(f"run {STEPS_A_TURN + 1}")[1:])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    options = parser(__doc__)
    options.add_argument("--dim", type=int, default=64, help="width of a token (default 64)")
    options.add_argument("--steps", type=int, default=40, help="turns of each side (default 40)")
    options.add_argument("--threads", type=int, default=2, help="intra-op threads (default 2)")
    options.add_argument("--modes", type=names, default=["on", "auto"], help="beside native")
    words = options.parse_args()
    print_machine(f"{words.threads} intra-op threads, width {words.dim}")
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        modes = ("native", *words.modes, *WITHOUT.values())
        sides = {mode: Side(words, mode, tempfile.mkdtemp(dir=scratch)) for mode in modes}
        told = {mode: side.ask("settle") for mode, side in sides.items()}
        turns = in_turns({mode: side.times for mode, side in sides.items()}, words.steps)
        for side in sides.values():
            side.end()
    least = {mode: min(map(min, times)) for mode, times in turns.items()}
    medians = {mode: list(map(statistics.median, times)) for mode, times in turns.items()}
    rows = []
    for mode, ms in least.items():
        steps = (f"{ms:.2f}", f"{statistics.median(medians[mode]):.2f}", f"{least['native'] / ms:.2f}")
        rows.append((mode, *steps, *(told[mode].get(fact, "-") for fact in ("state", "compile_s", "reason"))))
    print_table(("mode", "step, ms", "median", "ratio", "ends", "compiling, s", "why"), rows)
    faster = least["native"] / least[words.modes[0]]
    print_promise(faster >= FASTER, f"compiled at least {FASTER} times as fast as native: {faster:.2f}")
    for mode, without in WITHOUT.items():
        if mode in least:
            pairs = zip(medians[mode], medians[without], strict=True)
            share = statistics.median(ours / bare for ours, bare in pairs) - 1
            print_promise(share <= OWN_SHARE, f"{mode} at most {OWN_SHARE:.0%} above {without}: {share:+.1%}")


if __name__ == "__main__":
    main()
