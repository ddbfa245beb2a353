"""Four blocks on three partitions. Partition 1 ends at once (os._exit) in the fourth step; the others have no except."""

import os

import torch
import torch.nn as nn

import smdistributed.modelparallel.torch as smp


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if smp.pp_rank() == 1 and self.calls == 14:  # The second microbatch of the fourth step.
            os._exit(7)
        return torch.relu(self.linear(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


smp.init({"partitions": 3, "microbatches": 4, "auto_partition": False, "default_partition": 0})
module = Model()
for number, block in enumerate(module.blocks):
    smp.set_partition(block, (0, 1, 2, 2)[number])
model = smp.DistributedModel(module)


@smp.step
def train(x):
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


for _ in range(10):
    train(torch.randn(32, 32))
