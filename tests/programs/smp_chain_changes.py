"""A chain that the script changes between steps: the losses of smp's ranks beside those of one process."""

import copy
import json

import torch
import torch.nn as nn
from torch.nn.modules.module import register_module_forward_hook

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel.torch.step import get_runner

SIZE, BATCH, MICROBATCHES = 6, 8, 4
torch.set_default_dtype(torch.float64)


class Chain(nn.Sequential):
    """A class of its own, whose forward one of the changes replaces."""


def larger(_module, _args, output):
    return output * 1.5


def larger_input(_module, args):
    return tuple(arg * 1.5 for arg in args)


def replace(net):
    torch.manual_seed(3)
    net[1] = nn.Linear(SIZE, SIZE)


def replace_below(net):
    torch.manual_seed(4)
    net[2][0] = nn.Linear(SIZE, SIZE)


def append(net):
    net.append(nn.Tanh())


def remove(net):
    del net[3]


def hook(net):
    net.register_forward_hook(larger)


def pre_hook(net):
    net.register_forward_pre_hook(larger_input)


def hook_on_last_layer(net):
    net[3].register_forward_hook(larger)


def own_forward(net):
    net.forward = lambda value: nn.Sequential.forward(net, value) * 1.5


def forward_of_class(net):
    type(net).forward = lambda self, value: nn.Sequential.forward(self, value) * 1.5


def hook_for_all(net):
    return register_module_forward_hook(
        lambda module, args, output: output * 1.5 if isinstance(module, Chain) else None
    ).remove


def hook_removed(net):
    handle = net.register_forward_hook(larger)
    return handle.remove


CHANGES = (replace, replace_below, append, remove, hook, pre_hook, hook_on_last_layer, own_forward, hook_for_all)
CHANGES += (hook_removed, forward_of_class)


def build(dropout=0.0):
    torch.manual_seed(1)
    parts = [nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(dropout))]
    return Chain(*parts, nn.Linear(SIZE, SIZE))


def begin(net):
    smp.init({"partitions": 2, "microbatches": MICROBATCHES, "auto_partition": False, "default_partition": 0})
    smp.set_partition(net[2], 1)
    smp.set_partition(net[3], 1)
    return smp.DistributedModel(net)


def end():
    smp.barrier()
    smp.shutdown()


def plain(net, value):
    """Return the mean loss of one process."""
    with torch.no_grad():
        return net(value).square().sum().item() / MICROBATCHES


def changed(change):
    """Return the largest relative difference of losses, before and after *change*, and the last step's paths."""
    value = torch.linspace(-1, 1, BATCH * SIZE).reshape(BATCH, SIZE)
    model, alone = begin(build()), build()

    @smp.step
    def train(value):
        loss = model(value).square().sum()
        model.backward(loss)
        return loss

    differences = []

    def steps(count):
        for _ in range(count):
            loss = train(value).reduce_mean().item()
            differences.append(abs(loss / plain(alone, value) - 1))

    steps(3)
    added = change(model.module)
    hook = added if change in (hook_for_all, hook_removed) else None
    if change is not hook_for_all and change is not forward_of_class:
        theirs = change(alone)
    steps(3)
    if change is hook_removed:
        added()
        theirs()
        steps(3)
    elif hook:
        hook()
    if change is forward_of_class:
        del Chain.forward
    end()
    return max(differences)


def by_arguments():
    """Plain arguments select how often the model is called, and how the loss is made."""
    value = torch.linspace(-1, 1, BATCH * SIZE).reshape(BATCH, SIZE)
    model, alone = begin(build()), build()

    @smp.step
    def train(value, number, word, factor):
        output = model(value)
        if number == 2:
            output = model(output)
        loss = output.square().sum() * factor
        if word == "twice":
            loss = loss * 2
        model.backward(loss)
        return loss

    differences = []
    for step_index in range(12):
        number, word, factor = 1 + step_index % 3 // 2, ("once", "twice")[step_index % 2], 1 + step_index / 8
        loss = train(value, number, word, factor).reduce_mean().item()
        with torch.no_grad():
            output = alone(value)
            output = alone(output) if number == 2 else output
            expected = output.square().sum().item() * factor * (2 if word == "twice" else 1) / MICROBATCHES
        differences.append(abs(loss / expected - 1))
    end()
    return max(differences)


def by_modes():
    """The step function itself sets the model's mode: an evaluation has no dropout on any rank."""
    value = torch.linspace(-1, 1, BATCH * SIZE).reshape(BATCH, SIZE)
    model, alone = begin(build(0.5)), build(0.5).eval()

    @smp.step
    def train(value):
        model.train()
        loss = model(value).square().sum()
        model.backward(loss)
        return loss

    @smp.step
    def evaluate(value):
        model.eval()
        with torch.no_grad():
            return model(value).square().sum()

    differences, trained = [], []
    for _ in range(4):
        trained.append(train(value).reduce_mean().item())
        differences.append(abs(evaluate(value).reduce_mean().item() / plain(alone, value) - 1))
    end()
    return max(differences), len(set(trained))


class Keeps(nn.Linear):
    """Keeps the size of its weights of now, and what it saw first."""

    def __init__(self, keeps):
        super().__init__(SIZE, SIZE)
        self.keeps, self.size, self.first = keeps, 0.0, ""

    def forward(self, value):
        if self.keeps:
            self.size = self.weight.square().mean().item()
        self.first = self.first or str(value.dtype)
        return super().forward(value)


def by_attributes(keeps):
    """The step function reads what a module of the first partition keeps."""
    value = torch.linspace(-1, 1, BATCH * SIZE).reshape(BATCH, SIZE)
    net = build()
    net[0] = Keeps(keeps)
    model, alone = begin(net), copy.deepcopy(net)

    @smp.step
    def train(value):
        loss = model(value).square().sum() + net[0].size
        model.backward(loss)
        return loss

    differences = []
    for _ in range(4):
        loss = train(value).reduce_mean().item()
        with torch.no_grad():
            output = alone(value).square().sum().item() / MICROBATCHES
        differences.append(abs(loss / (output + alone[0].size) - 1))
        for module in (net, alone):
            for parameter in module[0].parameters():
                if parameter.device.type != "meta":
                    parameter.data.mul_(1.25)
    reason = get_runner().shortcut.reason
    end()
    return max(differences), reason


def unseen():
    """Changes that no argument shows: another mode of autograd inside the function, a change on one rank alone."""
    value = torch.linspace(-1, 1, BATCH * SIZE).reshape(BATCH, SIZE)
    messages = []
    model = begin(build())
    is_cast = False

    @smp.step
    def train(value):
        with torch.autocast("cpu", enabled=is_cast, dtype=torch.bfloat16):
            loss = model(value).square().sum()
        model.backward(loss)
        return loss

    for is_cast, alone_hooked in ((False, False), (False, False), (True, False), (False, False), (False, True)):
        if alone_hooked and smp.pp_rank() == 1:
            model.module.register_forward_hook(larger)
        try:
            train(value)
            messages.append("")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    end()
    return messages


print(
    json.dumps(
        {
            "changes": {change.__name__: changed(change) for change in CHANGES},
            "arguments": by_arguments(),
            "modes": by_modes(),
            "attributes": by_attributes(True),
            "first attributes": by_attributes(False),
            "unseen": unseen(),
        }
    ),
    flush=True,
)
