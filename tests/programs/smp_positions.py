"""Four ranks, two partitions: numbers, groups and objects. Prints one JSON object."""

import json
import os

import torch
import torch.distributed as dist

import smdistributed.modelparallel.torch as smp

try:
    smp.rank()
    early = "no error"
except RuntimeError as error:
    early = str(error)
initialized = [smp.is_initialized()]
smp.init({"pipeline_parallel_degree": 8, "microbatches": 3, "placement_strategy": "cluster"})  # The job's hold.
initialized.append(smp.is_initialized())
smp.init()  # A second call does nothing.
rank = smp.rank()
report = {
    "early": early,
    "initialized": initialized,
    "version": smp.__version__,
    "cfg": [smp.state.cfg.partitions, smp.state.cfg.pipeline_parallel_degree, smp.state.cfg.microbatches],
    "rank": [rank, smp.size(), smp.local_rank(), smp.local_size()],
    "numbers": {
        kind: [getattr(smp, f"{kind}_{quantity}")() for quantity in ("rank", "size")]
        for kind in ("pp", "tp", "rdp", "mp", "dp")
    },
    "groups": {kind: getattr(smp, f"get_{kind}_group")() for kind in ("pp", "tp", "rdp", "mp", "dp")},
}
for kind in ("world", "pp", "tp", "rdp", "mp", "dp"):
    group = getattr(smp, f"get_{kind}_process_group")()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=group)
    report.setdefault("sums", {})[kind] = total.item()

# A ring over partitions and replicas, with an object that holds a tensor.
other = 1 - smp.pp_rank()
smp.send({"from": rank, "weights": torch.arange(3) + rank}, other, smp.RankType.PP_RANK)
came = smp.recv_from(other, smp.RankType.PP_RANK)
report["ring"] = [came["from"], came["weights"].tolist()]
report["gathered"] = {group.name: smp.allgather(rank, group) for group in smp.CommGroup}
if rank == 2:
    smp.broadcast(["from two"], smp.WORLD)
    report["broadcast"] = ["from two"]
else:
    report["broadcast"] = smp.recv_from(2, smp.RankType.WORLD_RANK)
smp.barrier()
smp.mp_barrier()
smp.dp_barrier()
smp.barrier(smp.PP_GROUP)
wrong = []
for call in (
    lambda: smp.send(1, 2, smp.RankType.PP_RANK),
    lambda: smp.recv_from(0, "PP_RANK"),
    lambda: smp.allgather(1, "world"),
    lambda: smp.init({"microbatches": 4}),
):
    try:
        call()
    except RuntimeError as error:
        wrong.append(str(error))
report["wrong"] = wrong
print(json.dumps(report))
