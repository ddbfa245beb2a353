"""A small model without a partition of its own; prints where its modules are."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(64, 100)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@smp.step
def train(x):
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    model.backward(loss)
    return loss


smp.init()
torch.manual_seed(0)
model = smp.DistributedModel(Net())
ids = torch.arange(8 * 4).reshape(8, 4)
loss = train(ids).reduce_mean().item()
print(json.dumps({"assignment": model.assignment(), "loss": loss, "rank": smp.rank()}))
