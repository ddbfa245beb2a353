"""Three partitions of which partition 0 waits, inside its own computing, for what only the others' work brings about.
Prints as JSON: the losses with a free and with a fixed order, and in which section tasks were seen to need the baton."""

import json
import os
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp
from toolkit.modelparallel.torch.step import runner

FOLDER = Path(os.environ["SM_OUTPUT_DATA_DIR"])
WITHIN_S = 120


class Done(torch.autograd.Function):
    """Makes a file in the backward pass."""

    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        (FOLDER / ctx.name).touch()
        return gradient, None


class Part(nn.Module):
    """A layer that counts its calls in this step. It waits for a file in one of them, and makes one in each."""

    def __init__(self, name):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.name = name
        self.calls = 0
        self.waits = {}

    def forward(self, x):
        number, self.calls = self.calls, self.calls + 1
        wanted = self.waits.get(number)
        until_s = time.monotonic() + WITHIN_S
        while wanted and not (FOLDER / wanted).exists():
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self.name} waited for {wanted}")
            time.sleep(0.01)
        (FOLDER / f"{self.name}-forward").touch()
        return Done.apply(self.linear(x), f"{self.name}-backward")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Part(name) for name in ("first", "second", "third"))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def build(**parameters):
    os.environ["TOOLKIT_SMP_CHAIN"] = "off"
    smp.init({"partitions": 3, "auto_partition": False, "default_partition": 0, **parameters})
    torch.manual_seed(3)
    module = Model()
    for number, part in enumerate(module.parts):
        smp.set_partition(part, number)
    return module, smp.DistributedModel(module)


def forget():
    smp.barrier()
    for file in FOLDER.glob("*ward"):
        file.unlink(missing_ok=True)
    smp.barrier()


def waiting():
    """Partition 0 ends its second forward when partition 2 has run the first, its fourth when partition 1 has run a
    backward pass."""
    module, model = build(microbatches=4)
    x = torch.randn(512, 64)

    @smp.step
    def train(x):
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    for number in range(4):
        forget()
        for part in module.parts:
            part.calls = 0
        # In the first step the model is traced whole, and rank 0 learns what its sections do.
        module.parts[0].waits = {1: "third-forward", 3: "second-backward"} if number == 3 else {}
        train(x)
    needed = sorted(runner().remote.scheduler._need_baton)
    smp.barrier()
    smp.shutdown()
    return needed


def random(deterministic):
    """What follows the model draws random numbers and changes a buffer of partition 0 in place."""
    _, model = build(microbatches=8, deterministic_server=deterministic)
    norm = nn.BatchNorm1d(64)
    x, y = torch.randn(2, 512, 64)

    @smp.step
    def train(x, y):
        found = F.dropout(norm(model(x)), 0.5)
        loss = F.mse_loss(found, y)
        model.backward(loss)
        return loss

    losses = []
    for _ in range(5):
        losses += [loss.item() for loss in train(x, y).outputs]
        with torch.no_grad():
            for parameter in model.local_parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    tracked = norm.num_batches_tracked.item()
    smp.barrier()
    smp.shutdown()
    return losses, tracked


torch.set_num_threads(1)
needed = waiting()
print(json.dumps({"needed": needed, "free": random(False), "fixed": random(True)}))
