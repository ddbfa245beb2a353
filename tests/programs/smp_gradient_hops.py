"""Backward passes over modules that partition 0 calls in a row. Three ranks; prints a JSON object by case: the largest
relative error of a gradient, what the script's hooks saw beside one process, how many backward requests partition 0
sent, and what failed."""

import json
import sys

import torch
import torch.nn as nn

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel import world

RANK_OF = (1, 1, 2, 1)


finite = []


def is_finite(gradient):
    return gradient is None or bool(gradient.isfinite().all())


class Twice(torch.autograd.Function):
    """Uses of a tensor past torch's functions."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("no gradient on partition 2")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fails = False

    def forward(self, x, *more):
        x = torch.tanh(self.linear(x)) * 1.5
        for each in more:
            x = x + each
        return Fails.apply(x) if self.fails else x


class Row(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in RANK_OF)

    def forward(self, x, how, seen):
        first = x = self.first(x)
        aside = torch.zeros(())
        for number, block in enumerate(self.blocks):
            if how == "skips" and number == 3:
                x = block(x, first)
            elif how == "in place" and number == 2:
                x = block(x.mul_(2))
            elif how == "twice the same" and number == 2:
                x = block(x, x)
            else:
                x = block(x)
            if number == 1:
                if how == "hook":
                    x.register_hook(lambda gradient: seen.append(gradient.norm().item()))
                elif how == "changing hook":
                    x.register_hook(lambda gradient: gradient * 3)
                elif how == "hook on the node":
                    x.grad_fn.register_prehook(lambda gradients: seen.append(gradients[0].norm().item()))
                elif how == "hook behind the node":
                    x.grad_fn.register_hook(lambda inputs, _: finite.append(all(map(is_finite, inputs))))
                elif how == "retained":
                    x.retain_grad()
                    seen.append(x)
                elif how == "past torch's functions":
                    aside = Twice.apply(x).sum()
                elif how == "used twice":
                    aside = x.sum()
        return x, aside


def loss_of(model, x, how, seen):
    x, aside = model(x, how, seen)
    loss = (x**2).mean() + aside
    return [loss, (x**3).mean()] if how == "two roots" else [loss]


def run(how, width):
    smp.init({"partitions": 3, "microbatches": 2, "auto_partition": False, "default_partition": 0})
    torch.manual_seed(3)
    row, whole = Row(width), Row(width)
    whole.load_state_dict(row.state_dict())
    for block, rank in zip(row.blocks, RANK_OF):
        smp.set_partition(block, rank)
    row.blocks[2].fails = how == "fails"
    model = smp.DistributedModel(row)
    messenger, asked = world.current().messenger, []
    send = messenger.send

    def counting(peer, kind, *more, **named):
        if kind == "smp.backward":
            asked.append(peer)
        send(peer, kind, *more, **named)

    messenger.send = counting
    seen, theirs = [], []

    @smp.step
    def train(x):
        roots = loss_of(model, x, how, seen)
        model.backward(roots)
        return roots[0]

    x = torch.randn(16, width)
    said = {}
    with torch.autograd.set_detect_anomaly(how == "anomaly"):
        for _ in range(2):  # In the first step nobody knows yet whose data partition 0 needs.
            model.zero_grad()
            asked.clear()
            seen.clear()
            finite.clear()
            try:
                train(x)
            except Exception as error:
                said["failed"] = f"{type(error).__name__}: {error}"
    for half in x.chunk(2):
        roots = loss_of(whole, half, how, theirs)
        torch.autograd.backward(roots, [torch.tensor(0.5) for _ in roots])
    names = dict(whole.named_parameters())
    if how != "fails":
        said["error"] = max(
            ((mine.grad - names[name].grad).norm() / names[name].grad.norm()).item()
            for name, mine in model.local_named_parameters()
        )
    seen, theirs = [
        sorted(each.grad.norm().item() if isinstance(each, torch.Tensor) else each for each in several)
        for several in (seen, theirs)
    ]
    said["seen"] = [len(seen), max((abs(one / other - 1) for one, other in zip(seen, theirs)), default=0.0)]
    said["asked"] = sorted(asked)
    said["finite"] = all(finite)
    smp.barrier()
    smp.shutdown()
    return said


torch.set_num_threads(1)
print(json.dumps({f"{how}, {width}": run(how, width) for width in (8, 1024) for how in sys.argv[1:]}))
