"""The order in which ranks work. Four ranks; prints one JSON object."""

import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel import world

report = {}


class Meets(nn.Module):
    """Meets the other tensor parallel rank at each call, with its input's sum."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, delay):
        time.sleep(delay)
        total = x.detach().sum()
        dist.all_reduce(total, group=smp.get_tp_process_group())
        met.append((total - 2 * x.detach().sum()).abs().item())
        return self.linear(x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = Meets(), Meets()

    def forward(self, x, delay):
        x = self.far(self.near(x, 0.0), delay)
        return self.near(x, 0.0)


# Two partitions, two tensor parallel ranks of each, with unequal delays: they still call their collectives in one order.
met = []
smp.init({"partitions": 2, "tensor_parallel_degree": 2, "ddp": True, "microbatches": 8, "skip_tracing": True})
torch.manual_seed(0)
pair = smp.DistributedModel(Pair())


@smp.step
def meet(x, delay):
    number = x[0, 0].item()
    loss = pair(x, delay[smp.tp_rank()] if int(number) % 2 else 0.0).sum()
    pair.backward(loss)


x = torch.arange(8.0).reshape(8, 1).repeat(1, 2)
for _ in range(3):
    meet(x, (0.0, 0.02))
    meet(x, (0.02, 0.0))
report["met"] = [len(met), max(met)]
smp.barrier()
smp.shutdown()


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, delay):
        time.sleep(delay)
        return self.linear(x)


class Fork(nn.Module):
    """Even microbatches go to partition 1, odd ones to partition 2."""

    def __init__(self):
        super().__init__()
        self.sides = nn.ModuleList([Slow(), Slow()])
        self.last = Slow()
        smp.set_partition(self.sides[0], 1)
        smp.set_partition(self.sides[1], 2)
        smp.set_partition(self.last, 3)

    def forward(self, x, delays):
        side = int(x[0, 0].item()) % 2
        return self.last(self.sides[side](x, delays[side]), 0.0)


def orders(deterministic):
    """The order in which the microbatches' model calls return, in steps with the one side slow, then the other."""
    smp.init(
        {
            "partitions": 4,
            "microbatches": 4,
            "auto_partition": False,
            "default_partition": 0,
            "deterministic_server": deterministic,
        }
    )
    fork = smp.DistributedModel(Fork())
    labels = []

    @smp.step
    def run(x, delays):
        loss = fork(x, delays).sum()
        order.append(x[0, 0].item())
        fork.backward(loss)

    for delays in ((0.05, 0.0), (0.0, 0.05), (0.05, 0.0)):
        order = []
        run(torch.arange(4.0).reshape(4, 1).repeat(1, 2), delays)
        labels.append(order)
    smp.barrier()
    smp.shutdown()
    return labels


class Row(nn.Module):
    """Blocks of three partitions, which partition 0 calls one after the other."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(5))
        for block, partition in zip(self.blocks, (1, 1, 2, 2, 3)):
            smp.set_partition(block, partition)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def tensors_sent():
    """Count by receiver how often a tensor of the row, 128 x 128, is sent to another rank in a step."""
    smp.init({"partitions": 4, "auto_partition": False, "default_partition": 0})
    row = smp.DistributedModel(Row())
    messenger, sent = world.current().messenger, []
    send = messenger.send

    def counting(peer, kind, key=None, payload=None, buffers=()):
        sent.extend([peer] * sum(buffer.nbytes == 4 * 128 * 128 for buffer in buffers))
        send(peer, kind, key, payload, buffers)

    messenger.send = counting

    @smp.step
    def run(x):
        loss = (row(x) ** 2).mean()
        row.backward(loss)

    for _ in range(3):  # In the first step nobody knows yet that partition 0 needs the last output.
        sent.clear()
        run(torch.randn(128, 128))
    smp.barrier()
    smp.shutdown()
    return sorted(sent)


report["tensors sent"] = tensors_sent()
report["any order"] = orders(False)
report["one order"] = orders(True)
print(json.dumps(report))
