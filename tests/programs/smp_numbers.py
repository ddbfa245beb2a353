"""Numbers of a partitioned model in float64 beside plain torch. Two ranks.

Arguments: the cases. Prints a JSON object: by case the largest difference of a gradient or loss from plain torch's, or
the error.
"""

import contextlib
import copy
import functools
import io
import json
import sys
from collections import OrderedDict
from typing import Any

import torch
import torch.nn as nn

from torch.nn.utils import clip_grad_norm_

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel import norms
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import remote_tensor

SIZE, MICROBATCHES = 6, 2


def linear():
    return nn.Linear(SIZE, SIZE)


class Far(nn.Module):
    """Is on partition 1, and changes what it is given as `how` says."""

    def __init__(self, how):
        super().__init__()
        self.linear, self.how = linear(), how
        self.register_buffer("seen", torch.zeros(SIZE))

    def forward(self, x, more=None, **words):
        return getattr(self, self.how)(x, more, **words)

    def scales_first(self, x, more):
        x.mul_(3)
        return torch.tanh(self.linear(x))

    def scales_without_graph(self, x, more):
        with torch.no_grad():
            x.mul_(3)
        return torch.tanh(self.linear(x))

    def adds_its_weight(self, x, more):
        x.add_(self.linear.bias)
        return torch.tanh(self.linear(x.detach()))

    def returns_it(self, x, more):
        return x.add_(self.linear.bias)

    def passes_it_on(self, x, more):
        return x

    def a_row(self, x, more):
        x[0] = self.linear(x[1].clone())
        return torch.tanh(self.linear(x * 2))

    def inside(self, x, more, table=None):
        more[0]["deep"].mul_(2).add_(self.linear(x))
        table["rows"][1].zero_()
        return torch.tanh(self.linear(x))

    def containers(self, x, more, table=None):
        more.append(self.linear(x))
        table["new"] = torch.tanh(more[-1])
        table["nested"].insert(0, x)
        del table["old"]
        return torch.tanh(self.linear(x))

    def reshapes(self, x, more):
        y = self.linear(x)
        x.squeeze_()
        return y


class Net(nn.Module):
    def __init__(self, how, use):
        super().__init__()
        self.near, self.far, self.head = linear(), Far(how), linear()
        self.step = linear()  # Of partition 1, too.
        self.register_buffer("memory", torch.ones(SIZE, SIZE))
        self.use = use

    def forward(self, x):
        return self.head(self.use(self, torch.tanh(self.near(x))))


def plainly(net, x):
    x = x * 1.0
    return net.far(x) + x


def without_gradient(net, x):
    y = torch.ones_like(x)
    return net.far(y) * x + y


def through_a_view(net, x):
    x = x * 1.0
    part = x[:3]
    return torch.cat([net.far(part), part * 2]) + torch.cat([x[:3], x[:3]])


def from_far_to_far(net, x):
    first = net.far(x * 1.0) * 1.0
    first = net.step(first)
    second = net.far(first)
    return first + second


def same_object(net, x):
    x = x * 1.0
    y = net.far(x)
    y.mul_(0.5)
    return x * 2 + y


def in_containers(net, x):
    deep, rows = x * 0.5, [x * 1.0, x * 2.0]
    y = net.far(x * 1.0, [{"deep": deep}], table=OrderedDict(rows=rows))
    return y + deep + rows[0] + rows[1]


def changed_containers(net, x):
    more, nested = [x], [x * 2]
    table = {"old": x, "nested": nested}
    y = net.far(x, more, table=table)
    assert len(nested) == 2 and nested[0] is x and "old" not in table and len(more) == 2 and table["nested"] is nested
    return y + more[1] + table["new"] + nested[1]


def a_buffer(net, x):
    y = net.far(net.memory)
    return x @ y + net.memory * 0.1


def overlapping(net, x):
    x = x * 1.0
    return net.far(x, x[1:])


def overlapping_not(net, x):
    both = torch.cat([x, x], 1)
    first, two = both[:, :SIZE], both[:, SIZE:]
    return net.far(first, two) + first + two


def nested_inference(net, x):
    x = x * 1.0
    with torch.inference_mode():
        aside = net.far(x)
        x = x.clone() if torch.is_inference(x) else x
    return x * 2.0 + aside.sum().item()


def reshaped(net, x):
    return net.far(x[None] * 1.0)


def nested_no_grad(net, x):
    x = x * 1.0
    with torch.no_grad():
        aside = net.far(x)
    return x + aside


CHANGES = {
    "scaled": ("scales_first", plainly),
    "scaled without a graph": ("scales_without_graph", plainly),
    "scaled, without a gradient": ("scales_first", without_gradient),
    "scaled under no_grad": ("scales_first", nested_no_grad),
    "gets a gradient": ("adds_its_weight", without_gradient),
    "returned": ("returns_it", same_object),
    "returned as it is": ("passes_it_on", same_object),
    "a row": ("a_row", plainly),
    "a view": ("scales_first", through_a_view),
    "stays there": ("scales_first", from_far_to_far),
    "in containers": ("inside", in_containers),
    "in inference mode": ("scales_first", nested_inference),
    "containers": ("containers", changed_containers),
    "a buffer": ("scales_first", a_buffer),
    "overlapping": ("scales_first", overlapping),
    "overlapping not": ("scales_first", overlapping_not),
    "reshaped": ("reshapes", reshaped),
}


class Own(Exception):
    def __init__(self, first, two):
        super().__init__(first)
        self.two = two


class Local(KeyError):
    def __init__(self, value):
        super().__init__(value)
        self.it = lambda: None


ERRORS = {
    "key": lambda: KeyError("k"),
    "value": lambda: ValueError("v"),
    "os": lambda: FileNotFoundError(2, "no file", "x"),
    "two arguments": lambda: Own("o", 2),
    "not to pickle": lambda: Local("u"),
    "own": lambda: smp_error("s"),
}


def smp_error(text):
    from toolkit.rank.modelparallel.errors import SMPError

    return SMPError(text)


class Fails(nn.Module):
    """Draws random numbers, and raises what is asked."""

    def __init__(self):
        super().__init__()
        self.linear = linear()

    def forward(self, x, name=None, changes=False):
        y = self.linear(torch.dropout(x, 0.5, True))
        if changes:
            x.mul_(2)
        if name is not None:
            raise ERRORS[name]()
        return y


class Nested(nn.Module):
    """Of partition 1; its part is of partition 0."""

    def __init__(self):
        super().__init__()
        self.part = Fails()

    def forward(self, x, name=None, changes=False):
        return self.part(x, name, changes)


class Catches(nn.Module):
    def __init__(self, names, changes, catches):
        super().__init__()
        self.near, self.far, self.nested = linear(), Fails(), Nested()
        self.names, self.changes, self.catches, self.caught = names, changes, catches, []

    def forward(self, x):
        x = self.near(x)
        for module in (self.far, self.nested):
            for name in self.names:
                try:
                    x = module(x, name, self.changes)
                except self.catches as error:
                    self.caught.append(f"{type(error).__name__}: {error}")
                    x = torch.dropout(x, 0.5, True) * 1.5
        return self.nested(self.far(x))


def loss_of(output):
    return (output**2).mean()


def init(**more):
    smp.init({"microbatches": MICROBATCHES, **more})  # The partitions are the job's.


def manual():
    init(auto_partition=False, default_partition=0)


def difference(model, plain, losses, theirs):
    """The largest of losses, gradients and buffers, each relative to plain torch's largest value."""
    worst = [abs(loss - other) / abs(other) for loss, other in zip(losses, theirs, strict=True)]
    plain_parameters = dict(plain.named_parameters())
    for name, parameter in model.local_named_parameters():
        expected, gradient = plain_parameters[name].grad, parameter.grad
        if expected is None or gradient is None:
            assert expected is gradient is None, (name, gradient, expected)
            continue
        worst.append(((gradient - expected).abs().max() / expected.abs().max()).item())
    for name, buffer in model.local_named_buffers():
        expected = dict(plain.named_buffers())[name]
        worst.append(((buffer - expected).abs().max() / expected.abs().max().clamp(min=1)).item())
    return max(worst)


def compared(net, steps=2, evaluates=None, microbatch=None):
    """Train *net* for some steps, and a copy of it plainly; return the difference."""
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        loss = loss_of(model(x))
        model.backward(loss)
        return loss

    worst = []
    for number in range(steps):
        x = torch.randn(SIZE * MICROBATCHES, SIZE, generator=torch.Generator().manual_seed(number))
        torch.manual_seed(9)
        state = torch.get_rng_state()
        losses = [loss.item() for loss in train(x).outputs]
        torch.set_rng_state(state)
        theirs = []
        for part in x.chunk(MICROBATCHES):
            loss = loss_of(plain(part))
            (loss / MICROBATCHES).backward()
            theirs.append(loss.item())
        worst.append(difference(model, plain, losses, theirs))
    return max(worst)


def changes(name, is_far):
    global MICROBATCHES
    remote_tensor.MIN_REMOTE_BYTES = 0 if is_far else 1 << 30
    MICROBATCHES = 1 if name == "a buffer" else 2  # The order of microbatches is the server's own.
    manual()
    net = Net(*CHANGES[name])
    smp.set_partition(net.far, 1)
    smp.set_partition(net.step, 1)
    return compared(net)


def catches(*names):
    global MICROBATCHES
    MICROBATCHES = 1  # The others' random numbers are not one process's.
    manual()
    how = {"keys": KeyError, "all": Exception}
    net = Catches([name.replace("_", " ") for name in names[1:]], False, how[names[0]])
    smp.set_partition(net.far, 1)
    smp.set_partition(net.nested, 1)
    smp.set_partition(net.nested.part, 0)
    error = compared(net)
    return [error, net.caught[: len(names[1:]) * 2]]


def changes_and_fails():
    global MICROBATCHES
    MICROBATCHES = 1
    manual()
    net = Catches(["key"], True, Exception)
    smp.set_partition(net.far, 1)
    return compared(net)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(linear(), nn.Tanh(), linear()) for _ in range(3))
        self.kept = []
        self.keeps = False

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
            if self.keeps:
                self.kept.append(x)
        return x


def first_steps(kind):
    """A first step of which a forward pass has no backward."""
    init()
    net = Blocks()
    net.keeps = kind == "keeps"
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net)
    gradients = []

    def run_step(model, x, backward):
        if kind == "evaluation":
            gradients.append(model(x))
            return loss_of(model(x))
        if kind == "detached":
            target = model(x).detach()
            loss = loss_of(model(x) - target * 0.5)
        elif kind == "second":
            other = model(x * 2)
            loss = loss_of(model(x))
            gradients.append(other)
        elif kind == "several":
            losses = [loss_of(model(x * scale)) for scale in (1, 2)]
            loss = losses[0]
            gradients.append(losses[1])
        else:
            loss = loss_of(model(x))
        backward(loss)
        return loss

    @smp.step
    def train(x):
        return run_step(model, x, model.backward)

    worst = []
    for number in range(2):
        x = torch.randn(SIZE * MICROBATCHES, SIZE, generator=torch.Generator().manual_seed(number))
        losses = [loss.item() for loss in train(x).outputs]
        theirs = []
        for part in x.chunk(MICROBATCHES):
            theirs.append(run_step(plain, part, lambda loss: (loss / MICROBATCHES).backward()).item())
        worst.append(difference(model, plain, losses, theirs))
    if kind == "evaluation" and smp.rank() == 0:
        traced = loss_of(gradients[0])
        try:
            traced.backward()
        except RuntimeError as error:
            return [max(worst), f"{type(error).__name__}: {error}"]
    return max(worst)


class Changes(nn.Module):
    """Changes its argument in place, and has no `inplace` that says so."""

    def forward(self, x):
        return x.mul_(2)


def chain():
    """A module of torch's schedules that changes the first tensor that its rank gets."""
    manual()
    net = nn.Sequential(linear(), Changes(), linear(), nn.ReLU(inplace=True), linear())
    for number, module in enumerate(net):
        smp.set_partition(module, int(number > 0))
    error = compared(net, steps=3)
    from toolkit.rank.modelparallel.torch.step import get_runner

    return [error, len(get_runner().shortcut._steps), get_runner().shortcut.reason]


WITHOUT_DEFAULTS = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Muon": {"lr": 0.1}, "ASGD": {"t0": 0, "lr": 0.1}}
DTYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16}


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = linear(), linear()

    def forward(self, x):
        return self.far(torch.tanh(self.near(x.to(self.near.weight.dtype))))


def parameters_of(module, name):
    return [parameter for parameter in module.parameters() if name != "Muon" or parameter.dim() == 2]


def farthest(partitioned, plain):
    """Return the largest difference of two states of an optimizer, relative to each tensor's largest value."""
    worst = [0.0]
    assert partitioned["state"].keys() == plain["state"].keys(), (partitioned["state"].keys(), plain["state"].keys())
    for number, theirs in plain["state"].items():
        own_state = partitioned["state"][number]
        assert own_state.keys() == theirs.keys(), (own_state.keys(), theirs.keys())
        for name, value in theirs.items():
            if torch.is_tensor(value):
                assert own_state[name].dtype == value.dtype, (name, own_state[name].dtype, value.dtype)
                worst.append(((own_state[name] - value).abs().max() / value.abs().max().clamp(min=1e-300)).item())
            else:
                assert own_state[name] == value, (name, own_state[name], value)
    return max(worst)


def optimizers(name, dtype, clip="0"):
    """Two steps, their state into a new optimizer, two more; beside plain torch, with bf16 on fp32 masters."""
    manual()
    net = Two()
    smp.set_partition(net.far, 1)
    plain = copy.deepcopy(net)
    net.to(DTYPES[dtype])
    if dtype == "bfloat16":
        plain.to(torch.bfloat16)
    masters = copy.deepcopy(plain).float() if dtype == "bfloat16" else plain
    make = functools.partial(getattr(torch.optim, name), **WITHOUT_DEFAULTS.get(name, {}))
    theirs = make(parameters_of(masters, name))
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(make(parameters_of(model, name)))

    @smp.step
    def train(x):
        loss = loss_of(model(x))
        model.backward(loss)
        return loss

    worst = []
    for number in range(4):
        if number == 2:
            # The groups' own objects, as a script that resumes has them.
            state, their_state = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(theirs.state_dict())
            worst.append(farthest(state, their_state))
            again = make(parameters_of(masters, name))
            again.load_state_dict(copy.deepcopy({key: state[key] for key in ("state", "param_groups")}))
            worst.append(farthest(again.state_dict(), their_state))
            if name == "Adagrad":
                optimizer.load_state_dict(state)
            else:
                for group in optimizer.param_groups:
                    optimizer.optimizer.state.clear()
                optimizer.load_state_dict(state)
            theirs = again
        x = torch.randn(SIZE * MICROBATCHES, SIZE, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        plain.zero_grad()
        train(x)
        for part in x.chunk(MICROBATCHES):
            (loss_of(plain(part)) / MICROBATCHES).backward()
        for parameter, master in zip(plain.parameters(), masters.parameters()):
            master.grad = parameter.grad.to(master.dtype)
        if float(clip):
            clipped_norm = optimizer.clip_master_grads(float(clip))
            norm = torch.nn.utils.clip_grad_norm_(masters.parameters(), float(clip)).item()
            worst.append(abs(clipped_norm / norm - 1))
        optimizer.step()
        theirs.step()
        with torch.no_grad():
            for parameter, master in zip(plain.parameters(), masters.parameters()):
                parameter.copy_(master)
        plain_parameters = dict(plain.named_parameters())
        for key, parameter in model.local_named_parameters():
            assert parameter.dtype == DTYPES[dtype]
            worst.append(((parameter - plain_parameters[key]).abs().max() / plain_parameters[key].abs().max()).item())
    return max(worst)


def groups(when, shards=""):
    """A group that is added to the optimizer: before the first step, to the wrapped one, or later."""
    init(auto_partition=False, default_partition=0, ddp=bool(shards), shard_optimizer_state=bool(shards))
    net = Two()
    smp.set_partition(net.far, 1)
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net)

    def some(module):
        return [module.near.bias, module.far.bias]

    def more(module):
        return {"params": [module.near.weight, module.far.weight], "lr": 0.01}

    theirs = torch.optim.Adam(some(plain), lr=0.1)
    wrapped = torch.optim.Adam(some(model), lr=0.1)
    optimizer = smp.DistributedOptimizer(wrapped)
    adds = wrapped if "wrapped" in when else optimizer

    @smp.step
    def train(x):
        loss = loss_of(model(x))
        model.backward(loss)
        return loss

    if "before" in when:
        adds.add_param_group(more(model))
        theirs.add_param_group(more(plain))
    worst = []
    for number in range(4):
        if number == 2 and "after" in when:
            adds.add_param_group(more(model))
            theirs.add_param_group(more(plain))
        x = torch.randn(SIZE * MICROBATCHES, SIZE, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        theirs.zero_grad()
        plain.zero_grad()
        model.zero_grad()
        train(x)
        for part in x.chunk(MICROBATCHES):
            (loss_of(plain(part)) / MICROBATCHES).backward()
        optimizer.step()
        theirs.step()
        plain_parameters = dict(plain.named_parameters())
        for key, parameter in model.local_named_parameters():
            worst.append(((parameter - plain_parameters[key]).abs().max() / plain_parameters[key].abs().max()).item())
    worst.append(farthest(optimizer.state_dict(), theirs.state_dict()))
    return max(worst)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.own, self.inner = linear(), inner

    def forward(self, x):
        return self.own(self.inner(torch.tanh(x))) + x


def replaces_far(net):
    net.far = nn.Sequential(linear(), linear())
    return net.far.parameters()


def replaces_a_part(net):
    net.far[1] = linear()
    return net.far[1].parameters()


def appends(net):
    net.far.append(linear())
    return net.far[2].parameters()


def replaces_near(net):
    net.near = linear()
    return net.near.parameters()


def wraps(net):
    """The new module of partition 0 holds the one of partition 1, and the other way round."""
    near = net.near
    net.near, net.far = Around(net.far), Around(near)
    return [*net.near.own.parameters(), *net.far.own.parameters()]


def replaces_a_parameter(net):
    net.far[0].weight = nn.Parameter(torch.randn(SIZE, SIZE))
    return [net.far[0].weight]


def ties(net):
    net.near = linear()
    net.near.weight = net.far[0].weight
    return [net.near.bias]


def ties_new_ones(net):
    net.near, net.far[0] = linear(), linear()
    net.far[0].weight = net.near.weight
    return [*net.near.parameters(), net.far[0].bias]


def copies(net):
    net.near = nn.Sequential(copy.deepcopy(net.far), linear())
    return net.near.parameters()


def unfreezes(net):
    net.far.requires_grad_(True)
    return []


def unfreezes_near(net):
    net.near.requires_grad_(True)
    return []


class Changing(nn.Module):
    def __init__(self, far):
        super().__init__()
        self.near, self.far = linear(), far

    def forward(self, x):
        return self.far(torch.tanh(self.near(x)))


class Skipping(Changing):
    def forward(self, x):
        return self.near(x) if (x > 0).all() else super().forward(x)


class Moving(nn.Module):
    """Its buffer is another tensor after each call in training."""

    def __init__(self):
        super().__init__()
        self.linear = linear()
        self.register_buffer("mean", torch.zeros(SIZE))

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return self.linear(x - self.mean)


def later(how, replicas=1):
    """The script changes the model after two of five steps, with a group of its own for what is new.

    Then the states of model and optimizer, as each rank has them, are plain torch's.
    """
    init(ddp=replicas > 1, auto_partition=False, default_partition=0)
    kind = Skipping if how == "unfreezes_near" else Changing
    net = kind(nn.Sequential(Moving() if how == "moves" else linear(), linear()))
    if how.startswith("unfreezes"):
        (net.near if how == "unfreezes_near" else net.far).requires_grad_(False)
    smp.set_partition(net.far, min(1, smp.pp_size() - 1))
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net)
    smp_optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    theirs = torch.optim.Adam(plain.parameters(), lr=0.1)

    @smp.step
    def train(x):
        loss = loss_of(model(x))
        model.backward(loss)
        return loss

    for number in range(5):
        if number == 2 and how != "moves":
            for root, optimizer, seed in ((model.module, smp_optimizer, 7 + smp.rdp_rank()), (plain, theirs, 7)):
                torch.manual_seed(seed)
                if new := list(globals()[how](root)):
                    optimizer.add_param_group({"params": new, "lr": 0.05})
        if how == "moves" and smp.rank() == 0:
            nn.Sequential(linear())  # Of this rank's own, in no model.
        smp_optimizer.zero_grad()
        theirs.zero_grad()
        batches = torch.randn(replicas, SIZE * MICROBATCHES, SIZE, generator=torch.Generator().manual_seed(number))
        if how == "unfreezes_near" and number == 4:  # One replica trains less.
            batches[-1, -SIZE:].abs_()
        train(batches[smp.rdp_rank()])
        # The first replica's buffers are everybody's, so it comes last.
        for part in batches.flip(0).reshape(replicas * MICROBATCHES, SIZE, SIZE):
            (loss_of(plain(part)) / MICROBATCHES / replicas).backward()
        smp_optimizer.step()
        theirs.step()
    state, expected = model.state_dict(), plain.state_dict()
    assert list(state) == list(expected), (list(state), list(expected))
    worst = [farthest(smp_optimizer.state_dict(), theirs.state_dict())]
    worst += [((state[name] - value).abs().max() / value.abs().max()).item() for name, value in expected.items()]
    assert [name for name, _ in model.local_named_modules()]
    model.load_state_dict(expected)
    return max(worst)


def alone(rank):
    """One rank alone changes the model; all get an error until the other one does, too. The owner may change what has
    no state."""
    manual()
    net = Changing(nn.Sequential(linear(), nn.Tanh()))
    smp.set_partition(net.far, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        model.backward(loss_of(model(x)))

    messages = []
    x = torch.randn(SIZE * MICROBATCHES, SIZE)
    for number in range(4):
        if number == (1 if smp.rank() == int(rank) else 3):
            net.far[0] = linear()
        if number == 3 and smp.rank() == 1:
            net.far[1] = nn.ReLU()
        try:
            train(x)
            messages.append("")
        except SMPError as error:
            messages.append(str(error))
    return messages


class Sets(nn.Module):
    """Is on partition 1, and sets attributes in its forward pass."""

    def __init__(self):
        super().__init__()
        self.linear, self.inner = linear(), nn.Module()
        self.size, self.loss, self.inner.losses, self.unused, self.shape = 1.0, None, [], None, ()

    def forward(self, x):
        y = self.linear(x)
        self.size, self.loss, self.unused = y.detach().abs().mean().item(), (y**2).mean(), y
        self.inner.losses.append(self.loss)
        self.shape = tuple(y.shape)
        return y


class Reads(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.near, self.far, self.reads = linear(), Sets(), reads

    def forward(self, x):
        y = self.far(torch.tanh(self.near(x)))
        assert str(self.far.unused)
        return y * self.reads(self.far)


READS = {
    "number": lambda far: far.size,
    "tensor": lambda far: 1 + far.loss,
    "tensor_first": lambda far: far.loss + torch.ones(()),
    "list": lambda far: sum(far.inner.losses),
    "truth": lambda far: 1 if far.loss else 2,
    "equality": lambda far: 1 if far.shape == (SIZE, SIZE) else 2,
}


def attributes(which):
    manual()
    net = Reads(READS[which])
    smp.set_partition(net.far, 1)
    return compared(net)


def lazy():
    manual()
    net = Changing(nn.LazyLinear(SIZE))
    try:
        smp.DistributedModel(net)
    except RuntimeError as error:
        message = str(error)
    net(torch.ones(1, SIZE))
    smp.set_partition(net.far, 1)
    return [compared(net), message]


def clips(how):
    """Plain torch's clipping is noticed, once."""
    manual()
    net = Two()
    smp.set_partition(net.far, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        loss = loss_of(model(x))
        model.backward(loss)
        return loss

    foreign = [nn.Parameter(torch.ones(3))]
    foreign[0].grad = torch.ones(3)
    train(torch.randn(SIZE * MICROBATCHES, SIZE))
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        clip_grad_norm_(foreign, 0.1)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        text_before = stderr.getvalue()
        for _ in range(2):
            if how == "by_name":
                clip_grad_norm_(max_norm=0.1, parameters=model.parameters())
            else:
                torch.nn.utils.get_total_norm([parameter.grad for parameter in model.local_parameters()])
    norms._is_said = False
    return [text_before, stderr.getvalue()]


def leaves(how):
    """Rank 1 leaves the loop and calls a barrier, or rank 0 does, while the other is in a step."""
    manual()
    net = Two()
    smp.set_partition(net.far, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        return loss_of(model(x))

    who, call = how.split("-")
    if call == "state":
        calls = model.state_dict
    else:
        calls = getattr(smp, call) if call != "allgather" else functools.partial(smp.allgather, 1)
    x = torch.randn(SIZE * MICROBATCHES, SIZE)
    train(x)
    smp.barrier()
    if smp.rank() == int(who):
        calls()
    else:
        train(x)
    return "no error"


def main(case):
    torch.manual_seed(3)
    kind, _, rest = case.partition(": ")
    if kind in ("near", "far"):
        return changes(rest, kind == "far")
    if kind == "first":
        return first_steps(rest)
    if kind == "replicas":
        return later(rest, replicas=2)
    return globals()[kind](*rest.split())


torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
reports: dict[str, Any] = {}
for case in sys.argv[1:]:
    try:
        reports[case] = main(case)
    except Exception as error:
        reports[case] = f"{type(error).__name__}: {error}"
        print(f"{case}: {reports[case]}", file=sys.stderr)
    smp.barrier()
    smp.shutdown()
print(json.dumps(reports))
