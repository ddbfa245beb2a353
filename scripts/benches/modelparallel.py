"""Measure model parallelism: gradients, pipelines, memory, step time, partition decisions.

    scripts/bench modelparallel [gradients|bubble|memory|checkpointing|time|partition|tensorflow ...] [--ranks 2,4]
                                [--tries N]

gradients      a chain and a nested model with a tied weight on 2, 3 and 4 ranks, both pipelines, 1 to 16 microbatches,
               beside one process that accumulates the same microbatches: gradients at equal weights, losses after 50
               steps, parameters held by each rank
bubble         stages that sleep, 40 ms forward and 80 ms backward: the share of a step in which devices idle, beside
               (S - 1) / (M + S - 1). A stage that sleeps needs no core, so that two cores carry four devices. On the
               server also with four modules a stage, each of which partition 0 calls
memory         bytes saved for the backward pass at once, on the device that saves most, in microbatches' worth
checkpointing  what activation checkpointing saves, and its time
time           a step beside torch.distributed.pipelining written by hand for the same split, in turns; with and without
               sleeping stages
partition      the partitioner beside brute force over all contiguous splits, on ten shapes; the profiling pass
tensorflow     the network of entrypoints/smp_digits over two partitions beside one process: a step's time, gradients
               and losses (in the bed of scripts/beds/tensorflow)

"chain" are torch's schedules, which partitions that form a chain take, "server" is the module server, which takes every
model. Prints markdown; the last line of a part says whether it holds. Best on a machine that does nothing else.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from harness import numbers, parser, print_machine, print_promise, print_table

COUNTS = (1, 2, 4, 8, 16)
PIPELINES = ("simple", "interleaved")
PATHS = ("chain", "server")
PAD_S = 0.04
LAYOUTS = (("chain", 1), ("server", 1), ("server", 4))  # The path, and in how many modules a stage is divided.
Row = dict[str, Any]


def ranks(size: int, part: str, **options: Any) -> list[list[Row]]:
    """Return the rows of *part* of tests/programs/smp_bench.py, of each of *size* ranks."""
    from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        parameters = {"partitions": size}
        started = smp_ranks(
            PROGRAMS / "smp_bench.py", part, json.dumps(options), parameters=parameters, size=size, folder=Path(folder)
        )
        return [[json.loads(line) for line in stdout.splitlines()] for stdout, _ in ended(started)]


def gradients(_: argparse.Namespace) -> None:
    rows, good = [], True
    for size in (2, 3, 4):
        found = ranks(size, "gradients", steps=50, counts=COUNTS, pipelines=PIPELINES)
        for model, pipeline in product(("chain", "nested"), PIPELINES):
            of_each = [[row for row in its if (row["model"], row["pipeline"]) == (model, pipeline)] for its in found]
            every = [row for its in of_each for row in its]
            error, loss = (max(row[name] for row in every) for name in ("gradients", "losses"))
            held, whole = sum(its[0]["bytes"] for its in of_each), every[0]["whole"]
            paths = "/".join(sorted({path for row in every for path in row["paths"]}))
            good = good and error <= 1e-6 and loss <= 1e-5 and held == whole
            rows.append((size, model, pipeline, paths, f"{error:.1e}", f"{loss:.1e}", f"{held:,} of {whole:,}"))
    head = ("ranks", "model", "pipeline", "path", "largest gradient error", "largest loss error", "bytes held")
    print_table(head, rows)
    print_promise(good, "gradients within 1e-6, losses within 1e-5, no parameter twice")


def bubble(words: argparse.Namespace) -> None:
    rows, good = [], True
    for size in words.ranks:
        options = {"counts": (4, 8, 16), "pipelines": PIPELINES, "layouts": LAYOUTS}
        found = ranks(size, "bubble", pad_s=PAD_S, **options)
        for several in zip(*found, strict=True):
            shares = [idle([its["steps"][number] for its in several]) for number in range(len(several[0]["steps"]))]
            ours, count = min(shares), several[0]["microbatches"]
            ideal = (size - 1) / (count + size - 1)
            good = good and (abs(ours / ideal - 1) <= 0.1 or several[0]["modules"] > 1)
            kind = (several[0]["path"], several[0]["modules"], several[0]["pipeline"], count)
            rows.append((size, *kind, f"{ideal:.4f}", f"{ours:.4f}", f"{100 * (ours / ideal - 1):+.1f} %"))
    print_table(("ranks", "path", "modules", "pipeline", "microbatches", "(S-1)/(M+S-1)", "bubble", ""), rows)
    print_promise(good, "with one module a stage the bubble is within 10 % of (S-1)/(M+S-1)")


def idle(extents: Sequence[tuple[int, int, int]]) -> float:
    """Return the share of a step without work, from the first device's begin to the last one's end."""
    begins, ends, busy = zip(*extents, strict=True)
    share: float = 1 - sum(busy) / (max(ends) - min(begins)) / len(extents)
    return share


def memory(words: argparse.Namespace) -> None:
    rows, good = [], True
    for size in words.ranks:
        found = ranks(size, "memory", counts=COUNTS, paths=PATHS)
        of_kind = {
            (row["path"], row["pipeline"], row["microbatches"], row["checkpointed"], rank): row["saved"]
            for rank, its in enumerate(found)
            for row in its
        }
        for path, count in product(PATHS, COUNTS):
            shares = {
                pipeline: max(
                    of_kind[path, pipeline, count, False, rank] / of_kind[path, "simple", 1, False, rank]
                    for rank in range(size)
                )
                for pipeline in PIPELINES
            }
            simple, interleaved, limit = shares["simple"], shares["interleaved"], min(count, size + 2)
            good = good and interleaved <= limit and (interleaved < simple or count <= size + 2)
            rows.append((size, path, count, f"{simple:.2f}", f"{interleaved:.2f}", limit))
    print_table(("ranks", "path", "microbatches", "simple", "interleaved", "min(M, active_microbatches)"), rows)
    print_promise(
        good, "interleaved saves at most min(M, active_microbatches) microbatches, above that less than simple"
    )


def checkpointing(words: argparse.Namespace) -> None:
    rows = []
    for size in words.ranks:
        found = ranks(size, "checkpointing", tries=words.tries)
        plain, checkpointed = ([row for row in found[0] if row["checkpointed"] is on] for on in (False, True))
        times = [statistics.median(row["seconds"] for row in several) for several in (plain, checkpointed)]
        saved = [max(row["saved"] for its in found for row in its if row["checkpointed"] is on) for on in (False, True)]
        bytes_ = f"{saved[0] / 2**20:.2f} -> {saved[1] / 2**20:.2f}"
        rows.append((size, bytes_, f"{1e3 * times[0]:.1f}", f"{1e3 * times[1]:.1f}", f"{times[1] / times[0]:.2f}"))
    print_table(("ranks", "MiB saved", "ms a step", "ms with checkpointing", "ratio"), rows)


def turns(words: argparse.Namespace) -> None:
    rows, good = [], True
    for size in words.ranks:
        options = {"counts": (4, 8), "pipelines": PIPELINES, "paths": PATHS, "pads": (0.0, 0.01)}
        for row in ranks(size, "turns", tries=words.tries, **options)[0]:
            ours, theirs = (statistics.median(row[name]) for name in ("ours", "theirs"))
            least = min(row["ours"]) / min(row["theirs"])
            ratio = ours / theirs
            good = good and (ratio <= 1.05 or row["path"] == "server")
            kind = (row["path"], row["pipeline"], row["microbatches"], f"{1e3 * row['pad_s']:.0f}")
            rows.append((size, *kind, f"{1e3 * ours:.1f}", f"{1e3 * theirs:.1f}", f"{ratio:.3f}", f"{least:.3f}"))
    head = ("ranks", "path", "pipeline", "microbatches", "ms slept", "ms a step", "by hand", "ratio", "of the least")
    print_table(head, rows)
    print_promise(good, "a chain's step takes at most 1.05 times as long as by hand")


def partition(words: argparse.Namespace) -> None:
    from tests.parallelism.shapes import SHAPES
    from tests.parallelism.test_partitioner import brute_force
    from toolkit.parallelism.partitioner import busiest_cost, decide, find_best_split

    rows, worst = [], 0.0
    for name, build in SHAPES.items():
        tree = build()
        for size in words.ranks:
            began = time.perf_counter()
            found = decide(tree, size, 0.8, "x")
            took = time.perf_counter() - began
            _, scale = find_best_split(tree, size, 0.8, "")
            ours, best = busiest_cost(tree, found.assignment, size, scale), brute_force(tree, size, scale)
            worst = max(worst, ours / best)
            rows.append((name, size, found.method, f"{ours:.4f}", f"{best:.4f}", f"{ours / best:.3f}", f"{took:.3f}"))
    print_table(("shape", "devices", "method", "busiest device", "brute force", "ratio", "seconds"), rows)
    print_promise(worst <= 1.05, "the busiest device costs at most 1.05 times that of the best contiguous split")
    found = ranks(2, "profile", rows=256)[0]
    head = ("model", "modules", "method", "profiled by", "ms a step")
    print_table(head, [(*(row[name] for name in head[:-1]), f"{1e3 * row['seconds']:.0f}") for row in found])


def tensorflow(words: argparse.Namespace) -> None:
    from tests.rank.modelparallel.tf.started import ranks
    from tests.tensorflow.bed import BED

    if not (BED / ".ready").exists():
        print(f"\nSkipped: {BED} is not ready: run scripts/beds/tensorflow")
        return

    def run(size: int, folder: str, threads: int) -> list[list[Row]]:
        options = {"counts": (1, 2, 4, 8), "steps": 10 + 10 * words.tries, "threads": threads}
        arguments = ("divided" if size else "whole", folder, json.dumps(options))
        done = ranks("smp_bench_tensorflow.py", *arguments, size=size, TF_USE_LEGACY_KERAS="1", **environ)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        # One after the other in a line, where mpirun has put two ranks' lines together.
        rows = [json.loads(found) for found in re.findall(r"\{[^{}]*\}", done.stdout)]
        return [[row for row in rows if row["microbatches"] == count] for count in options["counts"]]

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        environ = {"SM_OUTPUT_DATA_DIR": folder}
        two, one = (run(0, folder, threads) for threads in (2, 1))
        rows, good = [], True
        for alone, wide, divided in zip(one, two, run(2, folder, 1), strict=True):
            ours = max(row["seconds"] for row in divided)
            error, loss = (max(row[name] for row in divided) for name in ("gradients", "losses"))
            good = good and error <= 1e-6 and loss <= 1e-5
            times = (alone[0]["seconds"], wide[0]["seconds"], ours)
            ratio = f"{ours / alone[0]['seconds']:.2f}"
            ms = (f"{1e3 * seconds:.1f}" for seconds in times)
            rows.append((alone[0]["microbatches"], *ms, ratio, f"{error:.1e}", f"{loss:.1e}"))
    head = ("microbatches", "ms a step, one process, 1 thread", "2 threads", "2 partitions, 1 thread each", "ratio")
    print_table((*head, "largest gradient error", "largest loss error"), rows)
    print_promise(good, "gradients within 1e-6, losses within 1e-5")


PARTS = {
    **{part.__name__: part for part in (gradients, bubble, memory, checkpointing)},
    "time": turns,
    "partition": partition,
    "tensorflow": tensorflow,
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", default=[])
    options.add_argument("--ranks", type=numbers, default=[2, 4], metavar="N,...")
    options.add_argument("--tries", type=int, default=15, help="steps to take the median of (default 15)")
    words = options.parse_args()
    print_machine()
    for name, part in PARTS.items():
        if not words.parts or name in words.parts:
            print(f"\n## {name}")
            part(words)


if __name__ == "__main__":
    main()
