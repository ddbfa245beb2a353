"""Tensors that a step keeps, and calls that it refuses; at the end the last rank dies inside one.

Prints a JSON object before the end, and one after it. Three ranks, 4 microbatches, manual partitions.
"""

import copy
import json
import os
import pickle
import signal
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp

rank, report = int(os.environ["RANK"]), {}


class Part(nn.Module):
    """Acts as its argument `action` says."""

    def __init__(self, inner=None):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x, action=""):
        if self.inner is not None:
            return self.inner(self.linear(x), action)
        if action == "raise":
            raise KeyError("no such thing on partition 2")
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "modes":
            on = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), self.training
            return x, (*on, self.linear(x).dtype)
        if action == "drop":
            return F.dropout(self.linear(x), 0.5, training=True)
        return torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = Part(inner=Part())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, action=""):
        self.seen += 1
        x = self.first(x)
        if action == "drop":
            x = F.dropout(x, 0.5, training=True)
        return self.second(x, action)


def refused(function):
    """The error of *function*, which all ranks call."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def fails_before_it_is_partitioned():
    """The errors of a first step in which the model cannot be traced, and of the second step, which can."""
    job = os.environ.pop("SM_HP_MP_PARAMETERS")
    smp.init({"partitions": 3, "microbatches": 2})
    os.environ["SM_HP_MP_PARAMETERS"] = job
    # An LSTM has weak references to its parameters.
    model = smp.DistributedModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4)))

    @smp.step
    def train(x, fails):
        if fails:
            raise ValueError("too early")
        model.backward(model(x)[0].sum())

    refusals = [refused(lambda: train(torch.ones(2, 4), fails)) for fails in (True, False)]
    smp.barrier()
    smp.shutdown()
    return refusals


report["untraced"] = fails_before_it_is_partitioned()
smp.init()
torch.manual_seed(1)
with smp.partition(0):
    net = Net()
smp.set_partition(net.second, 1)
smp.set_partition(net.second.inner, 2)
model = smp.DistributedModel(net)
hooked = []
model.register_post_partition_hook(lambda model, optimizer: hooked.append(model.partitioned))
flying = {"now": 0, "most": 0, "order": []}
batch = torch.randn(8, 4)


@smp.step
def train(x, action=""):
    flying["now"] += 1
    flying["most"] = max(flying["most"], flying["now"])
    loss = model(x, action).sum()
    model.backward(loss)
    flying["now"] -= 1
    return loss


@smp.step
def wrong(x, mistake):
    y = model(x)
    if mistake == "plain backward":
        y.sum().backward()
    if mistake == "no loss":
        model.backward(y)
    if mistake == "nested":
        train(x)
    if mistake == "foreign weight":
        F.linear(x, net.second.linear.weight)
    if mistake == "raise":
        raise ValueError("the script is at fault")


@smp.step(detach_outputs=False)
def modes(x):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        on = model(x, "modes")[1]
    return on, model(x, "modes")[1], model(x)


report["early"] = [refused(lambda: list(model.local_parameters())), refused(lambda: model(batch))]
# A failed step leaves everything in order: each of these works or fails as if it were the first.
report["first"] = [loss.item() for loss in train(batch).outputs]
report["batch"] = refused(lambda: train(batch[:7]))
report["module raises"] = refused(lambda: train(batch, "raise"))
for mistake in ("foreign weight", "plain backward", "no loss", "nested", "raise"):
    report[mistake] = refused(lambda: wrong(batch, mistake))
report["norm"] = refused(lambda: sum(parameter.norm() for parameter in model.parameters()))
report["outside"] = [refused(lambda: model(batch)), refused(lambda: net.second(batch))]
report["second"] = refused(lambda: smp.DistributedModel(nn.Linear(1, 1)))
report["keyword"] = refused(lambda: smp.DistributedModel(nn.Linear(1, 1), trace_device="tpu"))
flying["now"] = flying["most"] = 0
report["again"] = [loss.item() for loss in train(batch).outputs]
report["most"] = flying["most"]
model.eval()
on, off, attached = modes(batch)
report["modes"] = [str(output) for output in (*on, *off)]
report["attached"] = attached.outputs[0].requires_grad
model.train()
# Random numbers: a stream for each microbatch, the same in every run, wherever the modules are.
drops = []
for _ in range(2):
    torch.manual_seed(9)
    drops.append([loss.item() for loss in train(batch, "drop").outputs])
report["drops"] = drops
report["next"] = torch.rand(()).item()
train(batch)  # Draws none.
torch.rand(())
report["next but one"] = torch.rand(()).item()
report["hooked"] = hooked
report["assignment"] = model.assignment()
state = {name: value.clone() for name, value in model.state_dict().items()}
report["state"] = [sorted(state), all(value.device.type == "cpu" for value in state.values())]
report["gathered"] = sorted(model.state_dict(gather_to_rank0=True))
twins = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
local_parameters = {name: value.detach() for name, value in model.local_named_parameters()}
assert model.get_module() is net
for twin in twins:
    twin_parameters = {name: value for name, value in twin.named_parameters() if value.device.type != "meta"}
    assert type(twin) is type(net) and twin_parameters.keys() == local_parameters.keys(), twin
    assert all(
        torch.equal(twin_parameters[name], local_parameters[name])
        and twin_parameters[name] is not local_parameters[name]
        for name in twin_parameters
    )
partial = copy.deepcopy(model.local_state_dict())
report["partial"] = sorted(partial)
with torch.no_grad():
    for parameter in model.local_parameters():
        parameter.zero_()
model.load_state_dict(partial)
restored = model.state_dict()
report["restored"] = all(torch.equal(state[name], restored[name]) for name in state)
report["names"] = [name for name, _ in model.named_parameters()] == [name for name, _ in net.named_parameters()]
report["of the module"] = model.second is net.second
report["strict"] = refused(lambda: model.load_state_dict({"unknown": torch.zeros(1)}))
print(json.dumps(report), flush=True)
smp.barrier()
begin_s = time.monotonic()
report["dead"] = refused(lambda: train(batch, "die"))
report["dead after s"] = time.monotonic() - begin_s
print(json.dumps(report), flush=True)
os._exit(0)
