"""Forward passes over modules that partition 0 calls in a row, of which a step does something else than those before.
Three ranks; the argument has the cases by width. Prints a JSON object by case: the largest error of a loss or gradient
beside one process, how many calls this rank asked for in each step, and how many modules it ran."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.torch.microbatches import make_random_states

RANK_OF = (1, 1, 2, 1)
MICROBATCHES = 4
STEPS = 3  # The first one learns; the second one may do something else.
ran = []


class Seen(nn.Module):
    """Counts its calls in training, as BatchNorm does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self):
        if self.training:
            self.calls += 1


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.drop = nn.Dropout(0.0)
        self.seen = Seen()
        self.way = ""
        self.count = 0

    def forward(self, x, factor=1.5):
        ran.append(1)
        self.seen()
        if self.way == "lays out":
            x = x.view(-1).view(x.shape)
        if self.way == "counts":
            self.count += 1
        if self.way == "counts in a buffer":
            self.seen.calls += 1
        if self.way == "raises":
            raise KeyError("as it was raised")
        if self.way == "is its argument":
            return x
        if self.way == "changes its argument":
            x.mul_(2)
        x = self.drop(torch.tanh(self.linear(x)) * factor)
        if self.way == "lays out":
            return x.t().contiguous().t()
        return (x, 2 * x) if self.way == "returns two" else x


def numpy(x):
    x.detach().numpy()[0] = 0.25
    return x


def printed(x):
    repr(x)
    return x


def part(x):
    x[0] = 0.25
    return x


def data(x):
    x.data.mul_(1.25)
    return x


def hooked(x):
    x.register_hook(lambda gradient: gradient * 3)
    return x


def reads(x):
    return x if x.sum().item() > -1e9 else None


def draws(x):
    torch.rand(3)
    return x


# What the script does between two modules.
BETWEEN = {
    "reads": reads,
    "prints": printed,
    "draws": draws,
    "hooks": hooked,
    "changes it": lambda x: x.mul_(1.25),
    "changes a part": part,
    "changes it as numpy": numpy,
    "changes its data": data,
    "computes": lambda x: x + 0.5,
    "detaches": lambda x: x.detach().requires_grad_(),
    "turns": lambda x: x.flip(0),
    "lays out": lambda x: x.contiguous(),
}


class Row(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in RANK_OF)
        self.way = ""
        self.kept = []

    def forward(self, x):
        x = self.first(x)
        for number, block in enumerate(self.blocks):
            if self.way == "thaws and leaves out" and number == 2:
                time.sleep(0.05)  # What runs ahead has the time to do so.
                continue
            if self.way == "leaves out" and number == 2:
                continue
            if self.way == "ends early" and number == 2:
                break
            if self.way == "fails" and number == 2:
                raise ValueError("the script is at fault")
            if self.way == "another argument" and number > 0:
                x = block(x, 2.5)
            elif self.way == "without gradients" and number in (0, 2):
                with torch.no_grad():
                    x = block(x)
            elif self.way == "calls twice" and number in (1, 2):
                x = block(block(x))
            elif self.way == "adds another's":
                x = block(x) + x
            else:
                try:
                    x = block(x)
                except KeyError:
                    x = x * 3
            if isinstance(x, tuple):
                x = x[0] + x[1]
            if number in (0, 1) and self.way in BETWEEN:
                x = BETWEEN[self.way](x)
            if self.way == "keeps" and number == 1:
                self.kept.append(x)
        return x


def set_way(row, way):
    row.way = row.blocks[1].way = row.blocks[2].way = way
    row.blocks[0].way = way if way == "lays out" else ""
    row.train(way != "evaluates")
    for block in row.blocks:
        block.seen.train(way.startswith("thaws"))


def case(model, row, reference, messenger_calls, how, width):
    """Run the steps of one *how*: "always ..." or "once ...", and compare each with one process."""
    when, _, way = how.partition(" ")
    drop = 0.25 if "draws" in way else 0.0

    @smp.step
    def train(x):
        loss = (model(x) ** 2).mean()
        model.backward(loss)
        return loss

    worst, request_counts, runs = 0.0, [], []
    names = dict(reference.named_parameters())
    for step in range(STEPS):
        for net in (row, reference):
            set_way(net, way if when == "always" or step == 1 else "")
            for block in net.blocks:
                block.drop.p = drop
        torch.manual_seed(100 + step)
        x = torch.randn(4 * MICROBATCHES, width)
        model.zero_grad()
        reference.zero_grad()
        state = torch.get_rng_state()
        messenger_calls.clear()
        ran.clear()
        try:
            loss = train(x).reduce_mean()
        except Exception:
            if way != "fails":
                raise
            continue
        finally:
            request_counts.append(len(messenger_calls))
            runs.append(len(ran))
        torch.set_rng_state(state)
        total = 0.0
        for some, random_state in zip(x.chunk(MICROBATCHES), make_random_states(MICROBATCHES)):
            torch.set_rng_state(random_state)
            theirs = (reference(some) ** 2).mean() / MICROBATCHES
            theirs.backward()
            total += theirs.item()
        row.kept.clear()
        reference.kept.clear()
        worst = max(worst, abs(loss.item() / total - 1))
        for name, parameter in model.local_named_parameters():
            gradient, other = (
                torch.zeros(()) if parameter.grad is None else parameter.grad.detach()
                for parameter in (parameter, names[name])
            )
            worst = max(worst, (gradient - other).norm().item() / max(other.norm().item(), 1e-30))
        buffers = dict(reference.named_buffers())
        worst = max(worst, *(abs(buffer - buffers[name]).item() for name, buffer in model.local_named_buffers()), 0.0)
    return {"error": worst, "asked": request_counts, "ran": runs}


class Outer(nn.Module):
    """Has a part on another rank, which it calls in one step alone, when that rank has ended the step."""

    def __init__(self, folder):
        super().__init__()
        self.own, self.part, self.folder = nn.Linear(8, 8), nn.Linear(8, 8), folder
        self.calls_its_part = False

    def forward(self, x):
        x = self.own(x)
        if self.calls_its_part:
            (self.folder / "begun").touch()
            waits_for(self.folder / "over")
            x = self.part(x)
        return x


class Early(nn.Module):
    """Ends before `outer` in one step alone, when that has run ahead."""

    def __init__(self, folder):
        super().__init__()
        self.far, self.outer, self.folder = nn.Linear(8, 8), Outer(folder), folder
        self.ends_early = False

    def forward(self, x):
        x = self.far(x)
        if self.ends_early:
            waits_for(self.folder / "begun")
            return x
        return self.outer(x)


def waits_for(path):
    deadline_s = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.001)


def late():
    """A module that ran ahead for nothing calls a rank that has ended the step. Return this rank's steps."""
    smp.init({"partitions": 3, "microbatches": 1, "auto_partition": False, "default_partition": 0})
    folder = Path(os.environ["SM_OUTPUT_DATA_DIR"])
    net = Early(folder)
    for module, rank in ((net.far, 1), (net.outer, 1), (net.outer.part, 2)):
        smp.set_partition(module, rank)
    model = smp.DistributedModel(net)
    evaluate = smp.step(lambda x: model(x))
    steps = 0
    for step in range(8):
        net.ends_early = net.outer.calls_its_part = step == 6
        evaluate(torch.zeros(1, 8))
        steps += 1
        if step == 6 and smp.rank() == 2:
            (folder / "over").touch()
    smp.barrier()
    smp.shutdown()
    return steps


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    report = {}
    for width, cases in json.loads(sys.argv[1]).items():
        width = int(width)
        smp.init({"partitions": 3, "microbatches": MICROBATCHES, "auto_partition": False, "default_partition": 0})
        torch.manual_seed(3)
        row, reference = Row(width), Row(width)
        reference.load_state_dict(row.state_dict())
        for block, rank in zip(row.blocks, RANK_OF):
            smp.set_partition(block, rank)
        model = smp.DistributedModel(row)
        messenger, calls = world.current().messenger, []
        send = messenger.send

        def counting(peer, kind, *more, **keywords):
            if kind == "smp.call":
                calls.append(peer)
            send(peer, kind, *more, **keywords)

        messenger.send = counting
        for how in cases:
            report[f"{how}, {width}"] = case(model, row, reference, calls, how, width)
        smp.barrier()
        smp.shutdown()
    report["late"] = late()
    print(json.dumps(report))


main()
