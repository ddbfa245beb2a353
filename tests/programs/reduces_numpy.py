"""A rank under mpirun that reduces NumPy arrays through shared memory, without TensorFlow: `reduces_numpy.py SCENE`.

Prints its results as one line of JSON.
"""

import json
import sys

import numpy as np
from mpi4py import MPI

from toolkit.rank.dataparallel.tf import shared

scene = sys.argv[1]
# Measure both ways, but ignore which is faster: on a busy machine that is random, and not tested here.
shared.choose_threshold = lambda measured, margin: None if scene == "slower" else shared.FIRST_BYTES
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
reducer = shared.SharedMemoryReducer(comm)
results = {}


def make_values(count, kind, of=rank):
    return np.random.default_rng(of).standard_normal(count).astype(kind)


def reduced(counts, kind, average):
    """Return whether the reducer took the arrays, how far its results are from the exact ones, and whether the given
    arrays have kept their values."""
    flat = make_values(sum(counts), kind)
    arrays = np.split(flat.copy(), np.cumsum(counts)[:-1])
    for array in arrays:
        array.flags.writeable = False
    into = [np.empty(count, kind) for count in counts]
    took = reducer.allreduce(arrays, into, average)
    exact = sum(make_values(sum(counts), kind, of).astype("f8") for of in range(size)) / (size if average else 1)
    result = np.concatenate(into) if took else exact
    alike = len(set(comm.allgather(result.tobytes()))) == 1
    return [took, float(np.abs(result - exact).max()), alike, bool((np.concatenate(arrays) == flat).all())]


if scene == "reduces":
    # Of one element to several chunks, also where a chunk's shard lies in two arrays; the first ones connect.
    for kind in ("f4", "f8"):
        for name, counts in {"one": [100_000], "many": [3, 70_001, 0, 1_500_000, 17, 900_001]}.items():
            results[f"{kind} {name}"] = [reduced(counts, kind, average) for average in (False, True)]
    results["small"] = reduced([100], "f4", False)[0]
    results["integers"] = reducer.allreduce([np.ones(100_000, "i8")], [np.empty(100_000, "i8")], False)
    results["paths"] = list(reducer.by_path())
elif scene == "slower":
    results["first"] = reduced([100_000], "f4", False)[0]
    results["second"] = reduced([100_000], "f4", False)[0]
elif scene == "sizes":
    reduced([100_000], "f4", False)
    try:
        reduced([100_000 + 1000 * rank], "f4", False)
    except RuntimeError as error:
        results["error"] = f"{type(error).__name__}: {error}"
elif scene == "left":
    reduced([100_000], "f4", False)
    if rank == 1:
        reducer.close()
    else:
        try:
            reducer.allreduce([make_values(100_000, "f4")], [np.empty(100_000, "f4")], False)
        except RuntimeError as error:
            results["error"] = f"{type(error).__name__}: {error}"
    comm.Barrier()
print(json.dumps(results), flush=True)
reducer.close()
