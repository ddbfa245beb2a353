"""A rank of the reducer's tests: `python reduces_gradients.py SCENE`. Prints its results as one line of JSON."""

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from toolkit.rank.dataparallel import backend
from toolkit.rank.dataparallel.reduce import reducer

torch.set_num_threads(1)
# Measure both ways, but ignore which is faster: on a busy machine that is random, and not tested here.
reducer.choose_threshold = lambda measured, margin: reducer.FIRST_BYTES if len(measured) > 1 else None
factory = backend.register()
dist.init_process_group("smddp", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
results = {}


def make_values(count, dtype=torch.float32, of=None):
    seed = rank if of is None else of
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def calls():
    return sum(way[0] for reduced in factory.statistics.reducers for way in reduced.by_path().values())


def alike(tensor):
    """Return whether all ranks hold the same bytes."""
    every = [torch.zeros_like(tensor) for _ in range(size)]
    dist.all_gather(every, tensor, group=gloo)
    return all(torch.equal(copy, tensor) for copy in every)


def reduced(tensor, group=None, **options):
    tensor = tensor.clone()
    dist.all_reduce(tensor, group=group, **options)
    return tensor


def step(group):
    """Return the gradients of a step of DDP over *group*, with buckets of 1 MiB and a smaller last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 300), nn.Linear(300, 7))
    parallel = nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=1)
    for _ in range(3):
        model.zero_grad()
        parallel(make_values(8 * 256).view(8, 256)).pow(2).mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
if sys.argv[1] == "one host":
    # 1,100,003 elements: more than one chunk if each takes 4 bytes or more, and no multiple of a cache line.
    results["as gloo"] = {
        str(kind): torch.equal(reduced(make_values(1_100_003, kind)), reduced(make_values(1_100_003, kind), gloo))
        for kind in KINDS
    }
    calls_before = calls()
    matrix = make_values(200 * 300).view(200, 300)
    results["transposed"] = torch.equal(reduced(matrix.t()), reduced(matrix, gloo).t())
    expected = reduced(make_values(100_000), gloo) / size
    results["mean"] = torch.equal(reduced(make_values(100_000), op=dist.ReduceOp.AVG), expected)
    parts = [make_values(50_001), make_values(3), make_values(20_000)]
    sums = [reduced(part, gloo) for part in parts]
    dist.group.WORLD.allreduce(parts, dist.AllreduceOptions()).wait()
    results["several"] = all(torch.equal(part, total) for part, total in zip(parts, sums, strict=True))
    later = make_values(100_000)
    work = dist.all_reduce(later, async_op=True)
    work.wait()
    results["later"] = work.is_completed() and torch.equal(later, reduced(make_values(100_000), gloo))
    results["its future"] = work.get_future().wait()[0] is later
    results["functional"] = torch.equal(functional.all_reduce(make_values(100_000), "sum", dist.group.WORLD), later)
    results["calls"] = calls() - calls_before
    calls_before = calls()
    reduced(make_values(100))
    results["largest"] = torch.equal(
        reduced(make_values(100_000), op=dist.ReduceOp.MAX), reduced(make_values(100_000), gloo, op=dist.ReduceOp.MAX)
    )
    reduced(torch.ones(100_000, dtype=torch.int64))
    results["calls of others"] = calls() - calls_before
    gradients = step(None)
    results["DDP as gloo"] = torch.equal(gradients, step(gloo)) and alike(gradients)
    results["calls of DDP"] = calls() - calls_before
    print(json.dumps(results), flush=True)
    # Rank 1 kills itself while rank 0 is in its backward pass.
    model = nn.parallel.DistributedDataParallel(nn.Linear(500, 500))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for way in ("backward", "all_reduce"):
        try:
            if way == "backward":
                model(torch.ones(1, 500)).sum().backward()
            else:
                reduced(make_values(100_000))
            print("no error", flush=True)
        except RuntimeError as error:
            print(str(error).splitlines()[0], flush=True)
elif sys.argv[1] == "groups":
    measured = []

    def measure(*ways):
        measured.append(1)
        return timed(*ways)

    timed, reducer.measure = reducer.measure, measure

    def first_use(group):
        return torch.equal(reduced(make_values(100_000), group), total)

    total = reduced(make_values(100_000), gloo)
    # Four groups, each first used by its own thread, in different orders on the two ranks.
    groups = [dist.new_group() for _ in range(4)]
    order = groups if rank == 0 else groups[::-1]
    with ThreadPoolExecutor(4) as threads:
        results["from threads"] = all(threads.map(first_use, order))
    calls_before = len(measured)
    groups += [dist.new_group() for _ in range(12)]
    results["one after the other"] = all(first_use(group) for group in groups)
    results["measured again"] = len(measured) - calls_before
    results["hierarchical"] = sum(bool(reduced.by_path()) for reduced in factory.statistics.reducers)
    results["threads"] = sum(thread.name == "toolkit-reducer" for thread in threading.enumerate())
    # One rank passes a tensor with overlapping elements, which is refused, and then a valid one.
    if rank == 1:
        try:
            dist.all_reduce(torch.ones(1, 300).expand(300, 300), group=groups[0])
        except ValueError as error:
            results["rejected"] = str(error)
    results["after it"] = first_use(groups[0])
    # A tensor that cannot be written outside inference mode, and is not contiguous.
    with torch.inference_mode():
        gaps = torch.zeros(100_000, 2)[:, 0]
        gaps.copy_(make_values(100_000))
    dist.all_reduce(gaps, group=groups[0])
    results["inference"] = torch.equal(gaps, total) and first_use(groups[0])
    print(json.dumps(results), flush=True)
    dist.barrier(group=gloo)
elif sys.argv[1] in ("sizes", "ways"):
    reduced(make_values(100_000))
    # One rank's tensor is shorter: still reduced hierarchically (sizes), or so short that gloo reduces it (ways).
    short = 50_000 if sys.argv[1] == "sizes" else 100
    try:
        reduced(make_values(short if rank == 1 else 100_000))
        print("no error", flush=True)
    except RuntimeError as error:
        print(str(error).splitlines()[0], flush=True)
    os._exit(0)  # The other rank, which waits in gloo, then loses its peer.
elif sys.argv[1] == "hosts":
    results["error"] = {}
    for kind in KINDS:
        exact = sum(make_values(1_100_003, kind, of).double() for of in range(size))
        smddp_sum, theirs = reduced(make_values(1_100_003, kind)), reduced(make_values(1_100_003, kind), gloo)
        results["error"][str(kind)] = [(smddp_sum - exact).abs().max().item(), (theirs - exact).abs().max().item()]
        results[f"alike {kind}"] = alike(smddp_sum)
    gradients, theirs = step(None), step(gloo)
    results["DDP"] = alike(gradients) and torch.allclose(gradients, theirs, rtol=1e-5, atol=1e-7)
    results["world"] = factory.statistics.reducers[0].by_path()
    local_peers = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    results["local_peers"] = torch.equal(
        reduced(make_values(100_000), local_peers),
        make_values(100_000, of=rank // 2 * 2) + make_values(100_000, of=rank // 2 * 2 + 1),
    )
    results["group"] = factory.statistics.reducers[-1].by_path()
    real_memfd_create, refusing = os.memfd_create, dist.new_group()
    if rank == 0:  # As on a kernel that forbids it.

        def refuse(*_):
            raise PermissionError(1, "Operation not permitted")

        os.memfd_create = refuse
    results["refused"] = torch.equal(reduced(make_values(100_000), refusing), reduced(make_values(100_000), gloo))
    results["ways of the refused"] = factory.statistics.reducers[-1].by_path()
    os.memfd_create = real_memfd_create
    print(json.dumps(results), flush=True)
    # The last rank kills itself: one rank loses a local peer, one a cross-host peer, the others neither.
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        reduced(make_values(2_000_000))
        print("no error", flush=True)
    except RuntimeError as error:
        print(str(error).splitlines()[0], flush=True)
    os._exit(0)  # Gloo's groups are broken, too, and would delay the exit.
