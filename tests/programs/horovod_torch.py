"""Ranks that compute sums under Horovod. --end: how the last rank ends after some, `well` or `exit` (3) or `raise`."""

import argparse
import sys
import time

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--end", default="well")
end = parser.parse_args().end

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(torch.tensor([float(rank + 1)]), op=hvd.Sum).item()
ranks = hvd.allgather(torch.tensor([rank])).tolist()
print(
    f"rank {rank} of {size}, local {hvd.local_rank()} of {hvd.local_size()}: sum {total:g}, ranks {ranks}", flush=True
)
print(f"rank {rank} by mpi: {hvd.mpi_enabled()}, by gloo: {hvd.gloo_enabled()}", flush=True)

model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((4, 8), float(rank + 1))).pow(2).mean().backward()
    optimizer.step()
same = hvd.allgather(model.weight.detach()).std(dim=0).max().item() == 0
print(f"rank {rank} replicas identical: {same}", flush=True)

if rank == size - 1 and end == "exit":
    sys.exit(3)
if rank == size - 1 and end == "raise":
    raise ValueError("the last rank has had enough")
while end != "well":
    hvd.allreduce(torch.ones(1))
    time.sleep(0.05)
