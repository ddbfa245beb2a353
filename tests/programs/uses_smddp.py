"""A rank that uses the open backend in every possible way and prints the results as one line of JSON."""

import json
import os
import sys
import warnings

import smdistributed.dataparallel as sdp
import smdistributed.dataparallel.torch.torch_smddp
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
FOLDER = sys.argv[1]
results = {}

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import smdistributed.dataparallel.torch.distributed as old
    from smdistributed.dataparallel.exceptions import SMDDPNotInitializedError
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Parallel
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as SameParallel
results["warned"] = [str(warning.message) for warning in warned if warning.category is DeprecationWarning]
results["one class"] = Parallel is SameParallel
try:
    old.get_rank()
except SMDDPNotInitializedError as error:
    results["too early"] = str(error)
results["before"] = [old.is_available(), old.is_initialized()]

dist.init_process_group(backend="smddp", rank=int(os.environ["RANK"]), world_size=2)
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group([0, 1], backend="gloo")
part = dist.new_group([1])
results["backends"] = [dist.get_backend(), dist.get_backend(gloo), "smddp" in dist.Backend.backend_list]


def make_values(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


def gathered(group):
    out = torch.zeros(size * 5)
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(out, make_values(5), group=group)
    return out


def scattered(group):
    out = torch.zeros(5)
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(out, make_values(10), group=group)
    return out


def listed(group):
    out = [torch.zeros(5) for _ in range(size)]
    dist.all_gather(out, make_values(5), group=group)
    return torch.stack(out)


def exchanged(group):
    out = torch.zeros(6)
    dist.all_to_all_single(out, make_values(6), group=group)
    return out


def dealt(group):
    out = torch.zeros(5)
    dist.scatter(out, [make_values(5), make_values(5) + 1] if rank == 0 else None, group=group)
    return out


def collected(group):
    out = [torch.zeros(5) for _ in range(size)] if rank == 0 else None
    dist.gather(make_values(5), out, group=group)
    return torch.stack(out or [torch.zeros(5)])


def objects(group):
    out = [None] * size
    dist.all_gather_object(out, {"rank": rank}, group=group)
    return torch.tensor([rank_state["rank"] for rank_state in out])


def passed(group):
    box = make_values(5)
    if rank == 0:
        dist.send(box, 1, group=group)
    else:
        dist.recv(box, 0, group=group)
    return box


def in_place(call):
    def run(group):
        value = make_values(7, 3)
        call(value, group)
        return value

    return run


def late(value, group):
    dist.all_reduce(value, group=group, async_op=True).wait()


def coalesced(value, group):
    with dist._coalescing_manager(group=group, async_ops=True) as under_way:
        dist.all_reduce(value, group=group)
    under_way.wait()


CALLS = {
    "all_reduce": in_place(lambda value, group: dist.all_reduce(value, group=group)),
    "all_reduce async": in_place(late),
    "all_reduce max": in_place(lambda value, group: dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)),
    "all_reduce average": in_place(lambda value, group: dist.all_reduce(value, op=dist.ReduceOp.AVG, group=group)),
    "broadcast": in_place(lambda value, group: dist.broadcast(value, 1, group=group)),
    "reduce": in_place(lambda value, group: dist.reduce(value, 0, group=group)),
    "coalesced": in_place(coalesced),
    "barrier": lambda group: dist.barrier(group=group) or torch.zeros(1),
    "all_gather": listed,
    "all_gather_single": gathered,
    "reduce_scatter_single": scattered,
    "all_to_all_single": exchanged,
    "scatter": dealt,
    "gather": collected,
    "all_gather_object": objects,
    "send and recv": passed,
}
results["collectives"] = {
    name: torch.equal(call(None), call(gloo)) or (name == "reduce" and rank == 1) for name, call in CALLS.items()
}
if rank == 1:
    alone = torch.ones(2)
    dist.all_reduce(alone, group=part)
    results["group of one"] = alone.tolist()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.BatchNorm1d(256), nn.Linear(256, 64))


def bits(model):
    return [[first.detach().clone(), first.grad.clone()] for first in model.parameters()]


def same(first, other):
    return all(torch.equal(a, b) for first_values, theirs in zip(first, other) for a, b in zip(first_values, theirs))


def trained(group, make, **options):
    model = make(net(), process_group=group, bucket_cap_mb=0.02, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(make_values(8, 64)).pow(2).mean().backward()
        optimizer.step()
    return bits(model.module)


DDP = nn.parallel.DistributedDataParallel
reference = trained(gloo, DDP)
results["DDP"] = same(trained(None, DDP), reference)
results["DDP, bucket view"] = same(
    trained(None, DDP, gradient_as_bucket_view=True), trained(gloo, DDP, gradient_as_bucket_view=True)
)


def compiled(group):
    """Return what torch.compile's copy of a model computes whose buffers DDP broadcasts in each forward pass."""
    model = DDP(nn.BatchNorm1d(4), process_group=group)
    return [torch.compile(model, backend="eager")(torch.arange(12.0).reshape(3, 4) * (rank + 1)) for _ in range(2)]


results["DDP, compiled"] = all(torch.equal(*both) for both in zip(compiled(None), compiled(gloo), strict=True))
results["DDP, old name"] = same(trained(old.group.WORLD, Parallel, broadcast_buffers=True), reference)


def sharded_state(group):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, process_group=group, lr=0.01
    )
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(make_values(8, 64)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
    held = sum(tensor.nbytes for state in optimizer.optim.state.values() for tensor in state.values())
    optimizer.consolidate_state_dict(0)
    return bits(model.module), held


(smddp_state, held), (theirs, _) = sharded_state(dist.group.WORLD), sharded_state(gloo)
results["ZeRO"] = same(smddp_state, theirs)
results["state bytes"] = [held, 2 * sum(first.nbytes for first in net().parameters())]


def sharded_weights(mesh):
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(make_values(8, 64)).pow(2).mean().backward()
        optimizer.step()
    return [[first.to_local().detach().clone(), first.grad.to_local().clone()] for first in model.parameters()]


from torch.distributed.device_mesh import DeviceMesh

results["FSDP2"] = same(
    sharded_weights(DeviceMesh.from_group(dist.group.WORLD, "cpu")), sharded_weights(DeviceMesh.from_group(gloo, "cpu"))
)

model = Parallel(net())
with model.no_sync():
    model(make_values(8, 64)).sum().backward()
of_both = [torch.zeros(256, 64) for _ in range(size)]
dist.all_gather(of_both, model.module[0].weight.grad)
results["no_sync"] = not torch.equal(*of_both)

sdp.start_profiler(f"{FOLDER}/trace.json", append_rank=True)
value = torch.full((3,), float(rank))
old.all_reduce(value, op=old.ReduceOp.AVERAGE)
averaged = torch.full((3,), float(rank))
handle = old.all_reduce(averaged, op=old.ReduceOp.AVERAGE, async_op=True)
handle.wait()
handle.wait()
received = torch.tensor([float(rank)])
old.broadcast(received, src=1)
many = [torch.zeros(1), torch.zeros(1)]
old.all_gather(many, received)
swapped = torch.zeros(2)
old.all_to_all_single(swapped, torch.tensor([0.0, 1.0]) + 10 * rank)
old.barrier()
sdp.stop_profiler()
results["old"] = [
    value.tolist(),
    averaged.tolist(),
    received.item(),
    [tensor.item() for tensor in many],
    swapped.tolist(),
]
results["numbers"] = [old.get_world_size(), old.get_rank(), old.get_local_rank(), old.is_initialized()]

# TensorFlow's transport of arrays if torchrun starts the ranks.
import numpy as np

from toolkit.rank.dataparallel.tf.transport import connect

way = connect()
array, received = np.full(3, rank + 1, "f4"), np.full(2, rank, "i8")
way.allreduce(array, "sum")
way.broadcast(received, 1)
results["arrays"] = [type(way).__name__, array.tolist(), received.tolist()]

print(json.dumps(results), flush=True)
dist.destroy_process_group()
