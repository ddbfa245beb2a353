"""Three partitions. The step function, the modules and hooks count in plain Python, as scripts do that know of no threads.
Prints as JSON, for each step: how many of them were inside at once at most, and how many have passed."""

import json
import os
import time

import torch
import torch.nn as nn

import smdistributed.modelparallel.torch as smp

STEPS = 3
MICROBATCHES = 8


class Inside:
    """Reads its count, does something, and writes it: a second thread in between would be lost."""

    def __init__(self):
        self.now = self.most = self.passed = 0

    def __call__(self):
        passed = self.passed
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.005)  # Other threads could run.
        self.now -= 1
        self.passed = passed + 1


class Part(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.inside = inside

    def forward(self, x):
        self.inside()
        return self.linear(x)


class Model(nn.Module):
    """The input comes back to partition 0 between the others' parts."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.parts = nn.ModuleList(Part(inside) for _ in range(3))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
            self.inside()
            if x.requires_grad:
                x.register_hook(lambda gradient: self.inside())
        return x


os.environ["TOOLKIT_SMP_CHAIN"] = "off"
parameters = {"partitions": 3, "microbatches": MICROBATCHES, "auto_partition": False, "default_partition": 0}
smp.init(parameters)
torch.set_num_threads(1)
torch.manual_seed(3)
inside = Inside()
module = Model(inside)
for number, part in enumerate(module.parts):
    smp.set_partition(part, number)
model = smp.DistributedModel(module)


@smp.step
def train(x):
    loss = model(x).square().mean()
    inside()
    model.backward(loss)
    inside()
    return loss


counts = []
for _ in range(STEPS):
    inside.__init__()
    train(torch.randn(512, 64))
    counts.append([inside.most, inside.passed])
smp.barrier()
print(json.dumps(counts))
