"""Two partitions. One rank ends at once (os._exit) while the other computes for so many seconds; that one has no except.

Arguments: which rank computes ("0": in its backward pass, "1": for a request), seconds, a file that it makes as it begins."""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.nn as nn

import smdistributed.modelparallel.torch as smp

COMPUTES, SECONDS, BEGUN = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])


def compute(steps):
    if smp.rank() == COMPUTES and steps == 3:
        BEGUN.touch()
        time.sleep(SECONDS)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, steps):
        ctx.steps = steps
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        compute(ctx.steps)
        return gradient, None


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, steps):
        if smp.rank() == 0:
            return Slow.apply(self.linear(x), steps)
        compute(steps)
        return self.linear(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Part(), Part()

    def forward(self, x, steps):
        return self.second(self.first(x, steps), steps)


def die():
    while not BEGUN.exists():
        time.sleep(0.001)
    os._exit(7)


smp.init({"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0})
if smp.rank() != COMPUTES:
    threading.Thread(target=die, daemon=True).start()
module = Model()
smp.set_partition(module.second, 1)
model = smp.DistributedModel(module)


@smp.step
def train(x, steps):
    model.backward(model(x, steps).square().mean())


for steps in range(1, 6):
    train(torch.randn(4, 8), steps)
