"""Two partitions, two microbatches. Partition 0 has two parts in front of the other partition's. Prints as JSON the order
in which the parts and what follows the other partition's answers ran on it: in steps that may give way, and in a
deterministic one.

While a part of one microbatch runs, the answer for the other one comes: it waits for that. The other partition answers
when partition 0 has got so far, which files tell."""

import json
import os
import time
from pathlib import Path

import torch
import torch.nn as nn

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel.torch.order import Urgency
from toolkit.rank.modelparallel.torch.step import get_runner

FOLDER = Path(os.environ["SM_OUTPUT_DATA_DIR"])


def until(holds, event):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"{event} did not come: {log}"
        time.sleep(0.001)


def await_answer(microbatch):
    def is_here():
        ready = list(get_runner().agent.scheduler._ready)
        return any(task.urgency == Urgency.ANSWERED and task.task.microbatch == microbatch for task in ready)

    until(is_here, f"the answer for microbatch {microbatch}")


def file_of(name):
    return FOLDER / f"{name} {len(events)} {step}"


class Logged(torch.autograd.Function):
    """Logs *name* with the microbatch, its backward pass as name'. *awaits*: in the backward pass of microbatch 0 waits
    for the answer for microbatch 1."""

    @staticmethod
    def forward(ctx, x, number, name, awaits=False):
        ctx.said = f"{name}' {number}"
        ctx.awaits = awaits and number == 0
        log.append(f"{name} {number}")
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        log.append(ctx.said)
        if ctx.awaits:
            file_of("second").touch()
            await_answer(1)
        return gradient, None, None, None


class Inner(nn.Module):
    def __init__(self, name, awaits=False):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.name, self.awaits = name, awaits

    def forward(self, x, number):
        x = Logged.apply(self.linear(x), number, self.name, self.name == "second")
        if self.awaits and number == 1:
            file_of("forward").touch()
            await_answer(0)
        return x


class Whole(nn.Module):
    """Lies on one partition: nothing comes between its parts."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Inner("one", awaits=True), Inner("two")

    def forward(self, x, number):
        return self.two(self.one(x, number), number)


class Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, number):
        ctx.is_first = number == 0
        if ctx.is_first:
            until(file_of("forward").exists, "the forward pass of microbatch 1")
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        # Both answers at once would be taken before "second" begins.
        name = "backward" if ctx.is_first else "second"
        until(file_of(name).exists, name)
        return gradient, None


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x, number):
        return Waits.apply(x * self.gain, number)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.other = Whole(), Inner("second"), Other()
        smp.set_partition(self.other, 1)

    def forward(self, x):
        number = int(x[0, 0].item())
        x = self.second(self.first(x, number), number)
        x = self.other(Logged.apply(x, number, "asks"), number)
        log.append(f"answered {number}")
        if number == 1:
            x.register_hook(lambda gradient: file_of("backward").touch())
        return x


os.environ["TOOLKIT_SMP_CHAIN"] = "off"
events = []
for deterministic in (False, True):
    manual = {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0}
    smp.init({**manual, "pipeline": "simple", "deterministic_server": deterministic})
    model = smp.DistributedModel(Model())

    @smp.step
    def train(x):
        model.backward(model(x).sum())  # noqa: B023

    for step in range(2):
        log = []
        train(torch.arange(2.0).reshape(2, 1).repeat(1, 4))
    events.append(log)
    smp.barrier()
    smp.shutdown()
print(json.dumps(events))
