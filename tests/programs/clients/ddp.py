"""PyTorch alone: DistributedDataParallel, with backend smddp if the job has it."""

import importlib.util
import os

import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from toolkit import status

if importlib.util.find_spec("smdistributed"):
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    dist.init_process_group(backend="smddp")
elif "RANK" in os.environ:
    dist.init_process_group(backend="gloo")
elif "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
    from mpi4py import MPI

    dist.init_process_group(backend="gloo", rank=MPI.COMM_WORLD.Get_rank(), world_size=MPI.COMM_WORLD.Get_size())
else:
    dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(task.network())
optimizer = torch.optim.SGD(model.parameters(), lr=task.RATE)
x, y = (column[rank::world] for column in task.rows())
for step in range(1, task.steps + 1):
    optimizer.zero_grad()
    task.loss_of(model, x, y).backward()
    optimizer.step()
    task.after_step(step, rank, world)
    if status.should_stop(step):
        task.save(model.module, rank, os.path.join(task.CHECKPOINTS, "stopped.pt"))
        break
else:
    task.save(model.module, rank)
    local = next(
        (
            os.environ[name]
            for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
            if name in os.environ
        ),
        0,
    )
    task.report(model.module, rank=rank, world=world, local=int(local), node=int(os.environ.get("GROUP_RANK", -1)))
dist.destroy_process_group()
