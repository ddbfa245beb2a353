"""Measure the average of gradients over TensorFlow ranks: smddp's names beside Horovod, in the same ranks.

    scripts/bench dataparallel-tensorflow [--ranks 2] [--mib 1,8,25,100] [--tries N]

Ranks under mpirun on one host average the same list of tensors, in a tf.function, both ways in turns: 32 tensors, of
which one has half of the bytes, as a model's do. Times are those of the slowest rank in the fastest try. Prints
markdown. Needs the bed of scripts/beds/horovod.
"""

import argparse
import json
import os
import subprocess
import time
from typing import Any

from harness import bed, numbers, parser, print_machine, print_table

MIB = 2**20
PARTS = 32


def serve(sizes: list[int], tries: int) -> None:
    """Time both ways in this rank; rank 0 prints the table's rows as JSON."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from mpi4py import MPI

    from toolkit.rank.dataparallel.tf import api

    hvd.init()
    smddp = api.Library()
    smddp.init()
    rows = []
    for mib in sizes:
        whole = mib * MIB // 4
        shapes = [whole // 2, *[whole // 2 // (PARTS - 1) - 1] * (PARTS - 1)]
        tensors = [tf.fill([size], float(hvd.rank())) for size in shapes]
        ways: dict[str, Any] = {
            "smddp": tf.function(lambda *given: smddp.reduce_tensors(list(given))),
            "horovod": tf.function(lambda *given: hvd.grouped_allreduce(list(given))),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(tries + 2):
            for name, way in ways.items():
                MPI.COMM_WORLD.Barrier()
                began_s = time.perf_counter()
                made = way(*tensors)
                took_s = time.perf_counter() - began_s
                assert abs(float(made[-1][0]) - (hvd.size() - 1) / 2) < 1e-6
                slowest_s = MPI.COMM_WORLD.allreduce(took_s, MPI.MAX)
                if number >= 2:  # Tracing, and the first use of the memory.
                    times[name].append(slowest_s)
        rows.append({"mib": mib, **{name: sorted(took) for name, took in times.items()}})
    if hvd.rank() == 0:
        print(json.dumps(rows), flush=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--mib", default="1,8,25,100", metavar="N,...")
    options.add_argument("--tries", type=int, default=30, metavar="N")
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    words = options.parse_args()
    if words.serve:
        serve(numbers(words.mib), words.tries)
        return
    programs = bed("horovod-tf") / "bin"
    environ = {
        **os.environ,
        "PATH": f"{programs}:/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(words.ranks), str(programs / "python")]
    command += [__file__, "--serve", "--mib", words.mib, "--tries", str(words.tries)]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    print_machine(f"{words.ranks} ranks")
    rows = []
    for row in json.loads(done.stdout.splitlines()[-1]):
        ours, theirs = row["smddp"], row["horovod"]
        middle = len(ours) // 2
        ms = (f"{1e3 * times[0]:.1f} ({1e3 * times[middle]:.1f})" for times in (ours, theirs))
        rows.append((row["mib"], *ms, f"{theirs[0] / ours[0]:.2f} ({theirs[middle] / ours[middle]:.2f})"))
    head = ("MiB", "smddp, ms (median)", "Horovod, ms (median)", "Horovod / smddp (of the medians)")
    print_table(head, rows)


if __name__ == "__main__":
    main()
