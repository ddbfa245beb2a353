"""Measure what TOOLKIT_COMPILE=auto and TOOLKIT_AUTOCAST=auto make of training steps, beside the same scripts without.

    scripts/bench compiler [torch] [--models mlp,vit,gpt2,cnn,broken] [--widths 64,128,256,512] [--steps N]

torch   five models (one of which no backend compiles) native and with compiling by `auto`; then a transformer of
        several widths with autocast by `auto`. The toolkit's own part of a step is measured within one more process,
        beside steps without its hooks: compiled by the script's own model.compile(), or bare where it stays eager.
        There glibc keeps freed memory: mapping it again takes a third of a step of the CNN, and varies

All processes of a row live at the same time and take turns of a few steps, so that a busy machine meets all alike; one
that waits uses no core. The steady step of a turn is its median; the ratio is the median of the turns'. In brackets:
the least step of all, which may be a lucky one (a step of the CNN that finds all its memory mapped takes two thirds of
the others). The trial's steps are not in it. Prints markdown, and whether the promises hold. Needs torch in .venv; best
on a machine that does nothing else.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import (
    ROOT,
    Worker,
    answer_orders,
    in_turns,
    names,
    numbers,
    parser,
    print_machine,
    print_promise,
    print_table,
)

MODELS = ("mlp", "vit", "gpt2", "cnn", "broken")
MOST_TRIAL_STEPS = 2_000
SAME = 0.98
BF16 = 1.6
OVERHEAD = 0.01
TURN_MS = 20
FEWEST_STEPS = 4
# Of the two models of linear layers: with 32 a step takes 0.7 ms, of which two equal processes differ by 3 %.
ROWS = 512
KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}


def model_of(name: str, width: int) -> Any:
    """Return (model, inputs, targets) of a row."""
    import torch
    from torch import nn

    class Attending(nn.Module):
        def __init__(self, tokens: int, words: int, layers: int, *, causal: bool) -> None:
            super().__init__()
            self.causal = causal
            self.embed = nn.Embedding(words, width) if words else nn.Linear(48, width)
            self.place = nn.Parameter(torch.zeros(tokens, width))
            self.blocks = nn.ModuleList(
                nn.ModuleDict(
                    {
                        "norm": nn.LayerNorm(width),
                        "mix": nn.Linear(width, 3 * width),
                        "out": nn.Linear(width, width),
                        "last": nn.LayerNorm(width),
                        "up": nn.Linear(width, 4 * width),
                        "down": nn.Linear(4 * width, width),
                    }
                )
                for _ in range(layers)
            )
            self.head = nn.Linear(width, words or 10)

        def forward(self, x: Any) -> Any:
            x = self.embed(x) + self.place
            for block in self.blocks:
                heads = block["mix"](block["norm"](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
                mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
                x = x + block["out"](mixed.transpose(1, 2).flatten(2))
                x = x + block["down"](nn.functional.gelu(block["up"](block["last"](x))))
            return self.head(x if self.causal else x.mean(1))

    class Convolving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = (3, 16, 32, 32)
            self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
            self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes[1:])
            self.head = nn.Linear(sizes[-1], 10)

        def forward(self, x: Any) -> Any:
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = nn.functional.gelu(norm(layer(x)))
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    labels = torch.randint(0, 10, (32,))
    many = torch.randint(0, 10, (ROWS,))
    if name == "mlp":
        layers = [nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 2 * width), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(2 * width, 10)), torch.randn(ROWS, width), many
    if name == "vit":
        return Attending(64, 0, 4, causal=False), torch.randn(32, 64, 48), labels
    if name == "gpt2":
        words = torch.randint(0, 500, (8, 64))
        return Attending(64, 500, 4, causal=True), words, words
    if name == "cnn":
        return Convolving(), torch.randn(32, 3, 32, 32), labels
    # Without code for it: what a backend that fails looks like to everything above it.
    torch._TorchCompileInductorWrapper.__call__ = refuses
    return (
        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 10)),
        torch.randn(ROWS, width),
        many,
    )


def refuses(*_: Any) -> Any:
    raise RuntimeError("no code for this model")


def child(name: str, width: int, threads: int) -> None:
    """Answer orders: "run N" the times of N steps in ms, "own N" those without the toolkit, "settle" the facts."""
    import torch

    torch.set_num_threads(threads)
    model, inputs, targets = model_of(name, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> float:
        begun = time.perf_counter()
        optimizer.zero_grad()
        output = model(inputs)
        torch.nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
        return (time.perf_counter() - begun) * 1000

    def settle(_: int) -> dict[str, Any]:
        for number in range(MOST_TRIAL_STEPS):
            step()
            if number > 4 and facts_of(os.environ["TOOLKIT_STATUS_FOLDER"]).get("state", "eager") != "trial":
                break
        return facts_of(os.environ["TOOLKIT_STATUS_FOLDER"])

    def own(count: int) -> list[float]:
        with without_toolkit(model):
            return [step() for _ in range(count)]

    answer_orders({"settle": settle, "own": own, "run": lambda count: [step() for _ in range(count)]})


@contextmanager
def without_toolkit(model: Any) -> Iterator[None]:
    """Run steps as the script alone would: without the toolkit's hooks, and compiled by Module.compile if *model* is
    compiled. Within one process: two that do the same differ by 3 % in steps of a millisecond."""
    import torch

    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    kept, slot = dict(hooks), model._compiled_call_impl
    hooks.clear()
    if slot is not None:
        if not hasattr(model, "_alone"):
            object.__setattr__(model, "_alone", torch.compile(model._call_impl))
        model._compiled_call_impl = model._alone
    try:
        yield
    finally:
        model._compiled_call_impl = slot
        hooks.update(kept)


def facts_of(folder: str) -> dict[str, Any]:
    """Return what the compiler has told in *folder*; `state` is "trial" while any of the two trials runs."""
    for path in Path(folder).glob("compiler-*.json"):
        facts: dict[str, Any] = json.loads(path.read_text())
        if facts.get("autocast_state") == "trial":
            facts["state"] = "trial"
        return facts
    return {}


class Side(Worker):
    """A process that trains one model in one way, one step at a time."""

    def __init__(
        self,
        words: argparse.Namespace,
        name: str,
        width: int,
        *,
        asked: dict[str, str] | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        from toolkit.train.launchers.environment import HOOK

        folder = tempfile.mkdtemp(prefix="bench-", dir=words.cache)
        environ = {**os.environ, **(environ or {}), "TOOLKIT_STATUS_FOLDER": folder, "OMP_WAIT_POLICY": "passive"}
        if asked is not None:
            whole = {"compile": "off", "autocast": "off", "debug": False, "cache": words.cache, "dump": "", **asked}
            environ.update(PYTHONPATH=f"{HOOK}:{ROOT}", TOOLKIT_COMPILER=json.dumps(whole))
        super().__init__([sys.executable, "-W", "ignore", __file__, "--child", name, width, words.threads], environ)
        self.turns: list[float] = []  # The median step of each turn.
        self.least_ms = float("inf")
        self.facts: dict[str, Any] = {}

    def times(self, order: str, count: int) -> list[float]:
        """Return the times of *count* steps, behind one that is not counted."""
        return list(self.ask(f"{order} {count + 1}")[1:])


def take_turns(sides: list[Side], steps: int) -> None:
    """Take the times of *steps* turns of each of *sides*, and end them.

    A turn is a few steps, some 20 ms, behind one that is not counted: the first one after a wait meets a processor's
    caches without its data, and pays for the size of the process (a fifth of a step of 1.4 ms for one that has
    compiled).
    """
    for side in sides:
        side.facts = side.ask("settle")
    block = block_of(sides[0])
    turns = in_turns({str(n): lambda side=side: side.times("run", block) for n, side in enumerate(sides)}, steps)
    for side, times in zip(sides, turns.values(), strict=True):
        side.turns = list(map(statistics.median, times))
        side.least_ms = min(map(min, times))
        side.end()


def block_of(side: Side) -> int:
    return max(FEWEST_STEPS, min(16, int(TURN_MS / min(side.ask("run 3")))))


def own_part(side: Side, steps: int) -> float:
    """Return how much longer a step of *side* takes than without the toolkit, in *steps* turns of both; end it."""
    side.ask("settle")
    side.ask("own 2")  # The code that it compiles.
    block = block_of(side)
    ways = {order: lambda order=order: statistics.median(side.times(order, block)) for order in ("own", "run")}
    turns = in_turns(ways, steps)
    side.end()
    return statistics.median(ran / own for ran, own in zip(turns["run"], turns["own"], strict=True)) - 1


def compared(natives: list[Side], autos: list[Side]) -> tuple[str, str, str, float]:
    """Return the steps of both kinds of processes in ms and their ratio as text, and the ratio."""
    of_each = [
        [statistics.mean(turn) for turn in zip(*(side.turns for side in sides), strict=True)]
        for sides in (natives, autos)
    ]
    ratio = statistics.median(native / auto for native, auto in zip(*of_each, strict=True))
    least = [min(side.least_ms for side in sides) for sides in (natives, autos)]
    steps = [f"{statistics.median(turns):.2f} ({ms:.2f})" for turns, ms in zip(of_each, least, strict=True)]
    return steps[0], steps[1], f"{ratio:.3f} ({least[0] / least[1]:.3f})", ratio


def models(words: argparse.Namespace) -> None:
    """Print the rows of the five models, and whether the promises hold."""
    parts, ratios_of, ends = [], [], set()

    def row(name: str) -> tuple[str, ...]:
        natives = [Side(words, name, words.width) for _ in range(words.processes)]
        # One after the other: the second finds the code of the first.
        autos = []
        for _ in range(words.processes):
            autos.append(Side(words, name, words.width, asked={"compile": "auto"}))
            autos[-1].ask("settle")
        take_turns([*natives, *autos], words.steps)
        native, auto, ratios, ratio = compared(natives, autos)
        part = own_part(Side(words, name, words.width, asked={"compile": "auto"}, environ=KEEPS_MEMORY), words.steps)
        parts.append(part)
        ratios_of.append(ratio)
        states = list(dict.fromkeys(side.facts["state"] for side in autos))
        ends.update(states)
        return name, native, auto, ratios, " and ".join(states), autos[0].facts["reason"], f"{part * 100:+.2f} %"

    head = ("model", "native, ms", "auto, ms", "ratio", "ends", "why", "own part of a step")
    print_table(head, map(row, words.models))
    print_promise(min(ratios_of) >= SAME, f"auto at least {SAME} times as fast as native")
    print_promise(max(parts) < OVERHEAD, f"the toolkit's own part of a step below {OVERHEAD:.0%}")
    if set(words.models) == set(MODELS):
        print_promise(ends >= {"compiled", "eager"}, "some models end compiled, some eager")


def widths(words: argparse.Namespace) -> None:
    """Print the rows of autocast, and whether the promise holds."""
    flags = Path("/proc/cpuinfo").read_text()
    is_native = "avx512_bf16" in flags or "amx_bf16" in flags
    print(f"\nbfloat16 in the processor: {'yes' if is_native else 'no'}")
    kept = []

    def row(width: int) -> tuple[object, ...]:
        native, auto = Side(words, "vit", width), Side(words, "vit", width, asked={"autocast": "auto"})
        take_turns([native, auto], words.steps)
        native_step, auto_step, ratios, ratio = compared([native], [auto])
        kept.append(ratio >= (BF16 if is_native and width >= 256 else SAME))
        return width, native_step, auto_step, ratios, auto.facts["autocast_state"], auto.facts["autocast_reason"]

    print_table(("width", "float32, ms", "auto, ms", "ratio", "ends", "why"), map(row, words.widths))
    print_promise(
        all(kept), f"{SAME} times as fast as float32; {BF16} times from width 256 on, in a processor with bfloat16"
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    options = parser(__doc__)
    options.add_argument("what", nargs="?", default="torch", choices=["torch"])
    options.add_argument("--models", type=names, default=list(MODELS), help="'' for none")
    options.add_argument("--widths", type=numbers, default=[64, 128, 256, 512], help="'' for none")
    options.add_argument("--width", type=int, default=128, help="of the five models (default 128)")
    options.add_argument("--steps", type=int, default=40, help="turns of each side (default 40)")
    options.add_argument("--processes", type=int, default=2, help="of each side, of which the least counts (default 2)")
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    words = options.parse_args()
    print_machine(f"{words.threads} threads")
    with tempfile.TemporaryDirectory(prefix="bench-") as words.cache:
        if words.models:
            models(words)
        if words.widths:
            widths(words)


if __name__ == "__main__":
    main()
