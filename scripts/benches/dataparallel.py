"""Measure backend smddp beside gloo: the same ranks, one after the other in turns; ratios above 1 say smddp is faster.

    scripts/bench dataparallel [--layouts 2,4,2x2] [--mib 1,8,25,100,400] [--tries F]

Layouts: 2 and 4 ranks on one host, and 2 hosts of 2 ranks each (network namespaces joined by a bridge where we are
root, else two hosts on loopback by name). For each size of gradients:

all-reduce  the bare collective on one float32 tensor
step        a training step of DistributedDataParallel, buckets of 25 MiB: forward, backward, reduction; a model of
            little work for its size, so that nearly all of the step is the reduction
mpi         Open MPI's all-reduce by mpi4py, on one host, after the others (where scripts/beds/mpi has been run); no DDP
            step: PyTorch's wheels have no MPI backend

A try takes as long as its slowest rank. The fastest try of each counts; beside its ratio stand those of the medians and
of the CPU that a rank spent, which other work on the machine changes least. Below each layout: what smddp chose. Prints
markdown. Best on a machine that does nothing else.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from harness import BEDS, numbers, parser, print_machine, print_table

BED = BEDS / "openmpi5/bin"
TRIES = {1: 40, 8: 24, 25: 16, 100: 10, 400: 8}
WITHIN_S = 1200
TENSOR_MIB = 4

MPI = """
import array, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for word in sys.argv[1].split(","):
    mib, tries = map(float, word.split(":"))
    buffer, times = array.array("f", bytes(int(mib * 2**20))), []
    for _ in range(int(tries) + 1):
        world.Barrier()
        began_s = time.perf_counter()
        world.Allreduce(MPI.IN_PLACE, [buffer, MPI.FLOAT])
        times.append(world.allreduce(time.perf_counter() - began_s, MPI.MAX))
    if world.rank == 0:
        print(word.partition(":")[0], min(times[1:]), flush=True)
"""


def serve(sizes: list[int], share: float) -> None:
    """Be a rank: measure all sizes; rank 0 prints a line of JSON for each."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from toolkit.rank.dataparallel import backend

    torch.set_num_threads(1)
    factory = backend.register()
    dist.init_process_group("smddp", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    ours, theirs = dist.group.WORLD, dist.new_group(backend="gloo")
    # A barrier of either group would leave its connections warm and the other's not.
    starts = dist.new_group(backend="gloo")
    dist.all_reduce(torch.zeros(1 << 20))  # Here smddp measures.

    class Model(nn.Module):
        def __init__(self, mib: int) -> None:
            super().__init__()
            count = max(1, mib // TENSOR_MIB)
            self.parts = nn.ParameterList(torch.zeros(mib * 2**18 // count) for _ in range(count))

        def forward(self, factor: float) -> Any:
            return sum((part.sum() * factor for part in self.parts), torch.zeros(()))

    def timed(ways: list[Any], tries: int) -> list[list[list[float]]]:
        """Return wall and CPU seconds of each try, for each of *ways*; the slowest rank's."""
        times = torch.zeros(len(ways), 2, tries + 2, dtype=torch.float64)
        for number in range(tries + 2):
            turn = list(enumerate(ways))
            for at, way in turn if number & 1 else reversed(turn):
                dist.barrier(group=starts)
                spent_s, began_s = time.process_time(), time.perf_counter()
                way()
                times[at, 0, number] = time.perf_counter() - began_s
                times[at, 1, number] = time.process_time() - spent_s
        dist.all_reduce(times, dist.ReduceOp.MAX, group=theirs)
        return list(times[:, :, 2:].tolist())  # The first two touch memory; DDP makes its buckets anew.

    def bare(mib: int, tries: int) -> list[list[list[float]]]:
        tensor = torch.zeros(mib * 2**18)
        return timed([lambda: dist.all_reduce(tensor), lambda: dist.all_reduce(tensor, group=theirs)], tries)

    def steps(mib: int, tries: int) -> list[list[list[float]]]:
        def step(model: Any) -> None:
            model.zero_grad(set_to_none=False)
            model(1.0).backward()

        models = [nn.parallel.DistributedDataParallel(Model(mib), process_group=group) for group in (ours, theirs)]
        return timed([lambda: step(models[0]), lambda: step(models[1])], tries)

    for mib in sizes:
        tries = max(3, int(TRIES.get(mib, 6) * share))
        row = {"mib": mib, "bare": bare(mib, tries), "step": steps(mib, tries)}
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    if dist.get_rank() == 0:
        print(json.dumps({"why": factory.statistics.reducers[0].reason}), flush=True)
    dist.barrier(group=theirs)
    os._exit(0)  # Without the end of the interpreter, which gloo's threads may abort (torch 2.13).


@contextlib.contextmanager
def network(hosts: int) -> Iterator[tuple[list[tuple[str, ...]], dict[str, str], str]]:
    """Yield what starts a command on each host, the variables for all, and a word on the network."""
    from tests.faults.cage import Network, NoCageError

    loopback = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    if hosts == 1:
        yield [()], loopback, "one host"
        return
    with contextlib.ExitStack() as stack:
        try:
            joined = stack.enter_context(Network(f"bench{os.getpid() % 10_000}", hosts))
        except (NoCageError, OSError):
            yield [()] * hosts, loopback, "hosts on loopback"
            return
        given = {"MASTER_ADDR": joined.address(1), "GLOO_SOCKET_IFNAME": "eth0"}
        yield [joined.prefix(number + 1) for number in range(hosts)], given, "hosts joined by a bridge"


def measured(hosts: int, ranks: int, sizes: list[int], share: float) -> tuple[list[dict[str, Any]], str]:
    """Return what rank 0 of *hosts* x *ranks* printed, and a word on the network."""
    from tests.ports import free_port

    with network(hosts) as (prefixes, given, word):
        shared = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "SM"))},
            **given,
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(hosts * ranks),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, __file__, "--serve", "--mib", ",".join(map(str, sizes)), "--tries", str(share)]
        started = [
            subprocess.Popen(
                [*prefixes[rank // ranks], *words],
                env={**shared, "RANK": str(rank), "GROUP_RANK": str(rank // ranks), "LOCAL_RANK": str(rank % ranks)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if rank else None,
                text=True,
            )
            for rank in range(hosts * ranks)
        ]
        try:
            printed, _ = started[0].communicate(timeout=WITHIN_S)
            if any(process.wait(60) for process in started):
                raise SystemExit(f"bench: ranks ended with {[process.poll() for process in started]}")
        finally:
            for process in started:
                process.kill()
                process.wait()
    return [json.loads(line) for line in printed.splitlines()], word


def mpi(ranks: int, sizes: list[int], share: float) -> dict[int, float]:
    """Return the fastest all-reduce of each size by Open MPI, in seconds; {} where it is not installed."""
    if not (BED / "mpirun").exists():
        return {}
    asked = ",".join(f"{mib}:{max(3, int(TRIES.get(mib, 6) * share))}" for mib in sizes)
    command = [BED / "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, BED / "python", "-c", MPI, asked]
    environ = {**os.environ, "PATH": f"{BED}:{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run(
        [str(word) for word in command], env=environ, capture_output=True, text=True, timeout=WITHIN_S
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {int(line[0]): float(line[1]) for line in lines if len(line) == 2} if done.returncode == 0 else {}


def cells(row: dict[str, Any], others: dict[int, float]) -> list[str]:
    """Return a line of the table."""
    line = [str(row["mib"])]
    for (ours, our_cpu), (theirs, their_cpu) in (row["bare"], row["step"]):
        line += [f"{min(theirs) * 1e3:.1f} ms", f"{min(ours) * 1e3:.1f} ms"]
        middle = statistics.median(theirs) / statistics.median(ours)
        line += [f"{min(theirs) / min(ours):.2f} ({middle:.2f}, {min(their_cpu) / min(our_cpu):.2f})"]
    if others:
        line.append(f"{others[row['mib']] * 1e3:.1f} ms" if row["mib"] in others else "")
    return line


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--layouts", default="2,4,2x2", metavar="[HOSTSx]RANKS,...")
    options.add_argument("--mib", type=numbers, default=[1, 8, 25, 100, 400], metavar="N,...")
    options.add_argument("--tries", type=float, default=1.0, metavar="F", help="times the usual number of tries")
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    words = options.parse_args()
    if words.serve:
        serve(words.mib, words.tries)
        return
    for layout in words.layouts.split(","):
        hosts, ranks = map(int, layout.split("x")) if "x" in layout else (1, int(layout))
        rows, word = measured(hosts, ranks, words.mib, words.tries)
        others = mpi(ranks, words.mib, words.tries) if hosts == 1 else {}
        print()
        print_machine(f"{layout} ranks, {word}")
        sides = ("gloo", "smddp", "ratio (median, CPU)")
        head = [f"{act}, {side}" for act in ("all-reduce", "DDP step") for side in sides]
        head += ["all-reduce, Open MPI"] if others else []
        print_table(["MiB", *head], (cells(row, others) for row in rows[:-1]))
        print(f"\nsmddp's choice: {rows[-1]['why']}", flush=True)


if __name__ == "__main__":
    main()
