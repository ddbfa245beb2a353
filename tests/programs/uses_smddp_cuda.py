"""A rank with its own GPU compares backend "smddp" with NCCL and prints the results as one line of JSON."""

import json
import os

import smdistributed.dataparallel.torch.torch_smddp
import torch
import torch.distributed as dist
from torch import nn

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group(backend="smddp")
rank, size = dist.get_rank(), dist.get_world_size()
nccl = dist.new_group(list(range(size)), backend="nccl")
results = {"backends": [dist.get_backend(), dist.get_backend(nccl)]}


def make_values(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).to(device)


def reduced(group):
    value = make_values(1000)
    dist.all_reduce(value, group=group)
    return value


def trained(group):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Linear(64, 64).to(device), device_ids=[device.index], process_group=group
    )
    model(make_values(8, 64)).pow(2).mean().backward()
    return model.module.weight.grad


def sharded(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Linear(64, 64).to(device)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cuda"))
    model(make_values(8, 64)).pow(2).mean().backward()
    return model.weight.grad.to_local()


results["same"] = {
    call.__name__: torch.equal(call(dist.group.WORLD), call(nccl)) for call in (reduced, trained, sharded)
}
on_cpu = torch.ones(3)
dist.all_reduce(on_cpu)
objects = [None] * size
dist.all_gather_object(objects, rank)
dist.barrier()
results["on the cpu"] = [on_cpu.tolist(), objects]
print(json.dumps(results), flush=True)
dist.destroy_process_group()
