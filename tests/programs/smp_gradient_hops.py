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
        for extra in more:
            x = x + extra
        return Fails.apply(x) if self.fails else x


class Row(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in RANK_OF)

    def forward(self, x, how, norms):
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
                    x.register_hook(lambda gradient: norms.append(gradient.norm().item()))
                elif how == "changing hook":
                    x.register_hook(lambda gradient: gradient * 3)
                elif how == "hook on the node":
                    x.grad_fn.register_prehook(lambda gradients: norms.append(gradients[0].norm().item()))
                elif how == "hook behind the node":
                    x.grad_fn.register_hook(lambda inputs, _: finite.append(all(map(is_finite, inputs))))
                elif how == "retained":
                    x.retain_grad()
                    norms.append(x)
                elif how == "past torch's functions":
                    aside = Twice.apply(x).sum()
                elif how == "used twice":
                    aside = x.sum()
        return x, aside


def loss_of(model, x, how, norms):
    x, aside = model(x, how, norms)
    loss = (x**2).mean() + aside
    return [loss, (x**3).mean()] if how == "two roots" else [loss]


def run(how, width):
    smp.init({"partitions": 3, "microbatches": 2, "auto_partition": False, "default_partition": 0})
    torch.manual_seed(3)
    row, reference = Row(width), Row(width)
    reference.load_state_dict(row.state_dict())
    for block, rank in zip(row.blocks, RANK_OF):
        smp.set_partition(block, rank)
    row.blocks[2].fails = how == "fails"
    model = smp.DistributedModel(row)
    messenger, receivers = world.current().messenger, []
    send = messenger.send

    def counting(peer, kind, *more, **keywords):
        if kind == "smp.backward":
            receivers.append(peer)
        send(peer, kind, *more, **keywords)

    messenger.send = counting
    norms, theirs = [], []

    @smp.step
    def train(x):
        roots = loss_of(model, x, how, norms)
        model.backward(roots)
        return roots[0]

    x = torch.randn(16, width)
    report = {}
    with torch.autograd.set_detect_anomaly(how == "anomaly"):
        for _ in range(2):  # In the first step nobody knows yet whose data partition 0 needs.
            model.zero_grad()
            receivers.clear()
            norms.clear()
            finite.clear()
            try:
                train(x)
            except Exception as error:
                report["failed"] = f"{type(error).__name__}: {error}"
    for half in x.chunk(2):
        roots = loss_of(reference, half, how, theirs)
        torch.autograd.backward(roots, [torch.tensor(0.5) for _ in roots])
    names = dict(reference.named_parameters())
    if how != "fails":
        report["error"] = max(
            ((parameter.grad - names[name].grad).norm() / names[name].grad.norm()).item()
            for name, parameter in model.local_named_parameters()
        )
    norms, theirs = [
        sorted(gradient.grad.norm().item() if isinstance(gradient, torch.Tensor) else gradient for gradient in several)
        for several in (norms, theirs)
    ]
    report["seen"] = [len(norms), max((abs(norm / other - 1) for norm, other in zip(norms, theirs)), default=0.0)]
    report["asked"] = sorted(receivers)
    report["finite"] = all(finite)
    smp.barrier()
    smp.shutdown()
    return report


torch.set_num_threads(1)
print(json.dumps({f"{how}, {width}": run(how, width) for width in (8, 1024) for how in sys.argv[1:]}))
