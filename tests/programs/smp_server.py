"""Nested, branching, reused and tied modules on other partitions. Prints one JSON object.

Arguments: a JSON list of [pipeline, microbatches, far]; each is a fresh smp.init() with the same weights. *far*: the
smallest tensors, too, stay on the rank that made them until another needs their data.
"""

import copy
import json
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp
from toolkit.rank.modelparallel.torch import remote_tensor

SIZE, WORDS = 8, 12
PARTITIONS = int(os.environ["WORLD_SIZE"])


class Inner(nn.Module):
    """Changes its argument in place, and returns a dictionary with None in it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, SIZE)

    def forward(self, x, options=None):
        x.mul_(0.5)
        y = self.second(torch.tanh(self.first(x)))
        if options is not None:
            y = y * options["scale"][0]
        return {"hidden": x + y, "nothing": None}


class Outer(nn.Module):
    """Calls modules of other partitions from its own, the shared one among them."""

    def __init__(self, shared):
        super().__init__()
        self.shared = shared
        self.inner = Inner()
        self.norm = nn.BatchNorm1d(SIZE)

    def forward(self, x, again):
        x = self.shared(x * 1.0)["hidden"]
        x, unused = self.inner(x * 1.0, options={"scale": (x.mean(), "text")})["hidden"], torch.zeros(2)
        if again:
            x = self.shared(x * 1.0)["hidden"]
        return self.norm(x), unused, x.detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.shared = Inner()
        self.left = Outer(self.shared)
        self.right = Outer(self.shared)
        self.gain = nn.Parameter(torch.full((SIZE,), 0.9))
        self.head = nn.Linear(SIZE, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, branch=True):
        x = self.words(ids)
        left, _, aside = self.left(x * self.gain, again=True)
        # One of two branches, and a frozen side input.
        right = self.right(x + 0.1 * aside, again=False)[0] if branch else x
        return self.head(left + right)


def build():
    torch.manual_seed(5)
    return Net()


def loss_of(logits, labels):
    return F.cross_entropy(logits, labels)


def alone(ids, labels, microbatches, branch):
    """The losses, gradients and buffers of one process that accumulates the same microbatches."""
    model = build()
    losses = []
    for some, their in zip(ids.chunk(microbatches), labels.chunk(microbatches)):
        loss = loss_of(model(some, branch), their)
        (loss / microbatches).backward()
        losses.append(loss.item())
    return model, losses


def place(model):
    # The last word counts: left and right take the shared module along.
    smp.set_partition(model.left, PARTITIONS - 1)
    smp.set_partition(model.left.inner, 0)
    smp.set_partition(model.right, 1)
    smp.set_partition(model.shared, 1)


def run(pipeline, microbatches):
    smp.init(
        {
            "partitions": PARTITIONS,
            "microbatches": microbatches,
            "pipeline": pipeline,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    net = build()
    place(net)
    model = smp.DistributedModel(net)

    @smp.step
    def train(ids, labels, branch):
        logits = model(ids, branch)
        loss = loss_of(logits, labels)
        model.backward(loss)
        return loss, {"logits": logits}

    @smp.step(non_split_inputs=["labels"])
    def evaluate(ids, labels):
        with torch.no_grad():
            return model(ids), labels.sum()

    torch.manual_seed(6)
    ids, labels = torch.randint(0, WORDS, (32,)), torch.randint(0, WORDS, (32,))
    errors, loss_errors = [], []
    for branch in (True, False):
        for parameter in model.parameters():
            parameter.grad = None
        torch.manual_seed(5)
        model.load_state_dict(build().state_dict())
        loss, rest = train(ids, labels, branch)
        expected, losses = alone(ids, labels, microbatches, branch)
        expected_parameters = dict(expected.named_parameters())
        for name, parameter in model.local_named_parameters():
            expected_gradient = expected_parameters[name].grad
            if expected_gradient is None or parameter.grad is None:
                assert parameter.grad is expected_gradient, (name, parameter.grad, expected_gradient)
                continue
            errors.append(
                ((parameter.grad - expected_gradient).norm() / expected_gradient.norm().clamp(min=1e-30)).item()
            )
        loss_errors += [abs(output.item() / expected_loss - 1) for output, expected_loss in zip(loss.outputs, losses)]
        assert rest["logits"].concat().shape == (32, WORDS)
        # Buffers that the forward pass changes are those of one process, on the rank that has them. The order of the
        # microbatches is the server's own.
        for name, buffer in model.local_named_buffers():
            if "num_batches" in name:
                assert torch.equal(buffer, dict(expected.named_buffers())[name])
    model.eval()
    logits, total = evaluate(ids, labels)
    reference = build().eval()
    reference.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected_gradient = torch.cat([reference(some) for some in ids.chunk(microbatches)])
    return {
        "gradients": max(errors),
        "losses": max(loss_errors),
        "evaluation": (logits.concat() - expected_gradient).abs().max().item(),
        "whole": [output.item() for output in total.outputs] == [labels.sum().item()] * microbatches,
        "parameters": sorted(name for name, _ in model.local_named_parameters()),
        "bytes": sum(
            parameter.untyped_storage().nbytes() for parameter in model.parameters() if parameter.device.type != "meta"
        ),
    }


reports = []
for pipeline, microbatches, is_far in json.loads(sys.argv[1]):
    remote_tensor.MIN_REMOTE_BYTES = 0 if is_far else 1 << 30
    reports.append(run(pipeline, microbatches))
    smp.barrier()
    smp.shutdown()
print(json.dumps(reports))
