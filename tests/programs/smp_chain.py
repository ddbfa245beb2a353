"""A chain of modules on the partitions, by steps that users write. Prints one JSON object.

Arguments: a JSON list of [pipeline, microbatches]; each is a fresh smp.init() with the same weights.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp

SIZE, WORDS, BATCH = 8, 12, 16
PARTITIONS = int(os.environ["WORLD_SIZE"])
STEPS = 4


class Twice(nn.Module):
    """Takes a tensor; gives a dictionary of two, of which one has no gradient and one is not contiguous."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return {"hidden": torch.tanh(self.layer(x)).t().contiguous().t(), "first": x.detach()}


class Once(nn.Module):
    """Takes what Twice gives."""

    def forward(self, both):
        return both["hidden"] + 0.1 * both["first"]


class Net(nn.Module):
    """Holds nothing but a chain, a part of which is a chain itself."""

    def __init__(self, dropout):
        super().__init__()
        block = [nn.Linear(SIZE, SIZE), nn.ReLU(inplace=True), nn.Linear(SIZE, SIZE), nn.Dropout(dropout)]
        self.layers = nn.Sequential(
            nn.Embedding(WORDS, SIZE),
            Twice(),
            Once(),
            nn.Sequential(*block, nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(2)))),
            nn.Linear(SIZE, WORDS),
        )

    def forward(self, ids):
        return self.layers(ids)


def build(dropout=0.0):
    torch.manual_seed(5)
    return Net(dropout)


def place(net):
    """Cut before Once, before the first ReLU and before the last part of the inner chain."""
    cuts = {2: [net.layers[2]], 3: [net.layers[2], net.layers[3][1]]}.get(PARTITIONS)
    cuts = cuts or [net.layers[2], net.layers[3][1], net.layers[3][4]]
    order = [*net.layers[:3], *net.layers[3][:4], net.layers[3][4], net.layers[4]]
    number = 0
    for module in order:
        number += any(module is cut for cut in cuts)
        smp.set_partition(module, number)


def loss_of(logits, labels):
    return F.cross_entropy(logits, labels)


def alone(net, ids, labels, microbatches):
    """The losses of one process that accumulates the same microbatches."""
    losses = []
    for some, their in zip(ids.chunk(microbatches), labels.chunk(microbatches)):
        loss = loss_of(net(some), their)
        (loss / microbatches).backward()
        losses.append(loss.item())
    return losses


def begin(pipeline, microbatches, dropout=0.0):
    smp.init(
        {
            "partitions": PARTITIONS,
            "microbatches": microbatches,
            "pipeline": pipeline,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    net = build(dropout)
    place(net)
    return smp.DistributedModel(net)


def end():
    smp.barrier()
    smp.shutdown()


def run(pipeline, microbatches):
    model = begin(pipeline, microbatches)
    ends = []

    @smp.step
    def train(module, ids, labels, criterion=loss_of):
        logits = module(ids)
        loss = criterion(logits, labels)
        module.backward(loss)
        ends.append(smp.pp_rank())
        return loss, {"logits": logits[:, :2], "number": 3}

    @smp.step
    def evaluate(ids, labels):
        # The model's input is none of the arguments.
        with torch.no_grad():
            return loss_of(model((ids + 1) % WORDS), labels)

    torch.manual_seed(6 + smp.rank())  # Each rank has data of its own: those of the first partition count.
    ids, labels = torch.randint(0, WORDS, (BATCH,)), torch.randint(0, WORDS, (BATCH,))
    torch.manual_seed(6)
    their_ids, their_labels = torch.randint(0, WORDS, (BATCH,)), torch.randint(0, WORDS, (BATCH,))
    expected = build()
    expected_parameters = dict(expected.named_parameters())
    gradients, losses, evaluations = [], [], []
    for _ in range(STEPS):
        loss, rest = train(model, ids, labels)
        expected_losses = alone(expected, their_ids, their_labels, microbatches)
        for name, parameter in model.local_named_parameters():
            gradients.append(
                (
                    (parameter.grad - expected_parameters[name].grad).norm() / expected_parameters[name].grad.norm()
                ).item()
            )
        losses += [
            abs(loss_output.item() / expected_loss - 1)
            for loss_output, expected_loss in zip(loss.outputs, expected_losses)
        ]
        assert rest["logits"].concat().shape == (BATCH, 2)
        assert rest["number"] == [3] * microbatches
        # The gradients stay: each step adds to them, as in a script that accumulates.
        with torch.no_grad():
            evaluated = evaluate(ids, labels)
            expected_evaluations = [
                loss_of(expected((some + 1) % WORDS), their).item()
                for some, their in zip(their_ids.chunk(microbatches), their_labels.chunk(microbatches))
            ]
            evaluations += [
                abs(output.item() / other - 1) for output, other in zip(evaluated.outputs, expected_evaluations)
            ]
            for parameter in (*model.local_parameters(), *expected.parameters()):
                parameter -= 0.1 * parameter.grad
    with torch.no_grad():
        shorter = evaluate(ids[: BATCH // 2], labels[: BATCH // 2]) if microbatches <= BATCH // 2 else loss
    assert len(shorter.outputs) == microbatches
    end()
    return {
        "gradients": max(gradients),
        "losses": max(losses),
        "evaluation": max(evaluations),
        "ran on": sorted(set(ends)),
    }


def dropout(microbatches):
    """Random numbers depend on the seed alone, whichever way a step goes. One microbatch has those of one process."""
    model = begin("simple", microbatches, dropout=0.5)
    expected = build(0.5)

    @smp.step
    def train(ids, labels):
        loss = loss_of(model(ids), labels)
        model.backward(loss)
        return loss

    torch.manual_seed(6)
    ids, labels = torch.randint(0, WORDS, (BATCH,)), torch.randint(0, WORDS, (BATCH,))
    torch.manual_seed(7)
    runs = []
    if microbatches == 1:
        runs = [[loss for some in (ids, ids, ids[:1]) for loss in alone(expected, some, labels[: len(some)], 1)]]
        runs[0][-1] = torch.rand(())
    for _ in range(3):
        torch.manual_seed(7)
        runs.append(train(ids, labels).outputs + train(ids, labels).outputs)
        train(ids[:microbatches], labels[:microbatches])  # Another way again.
        runs[-1].append(torch.rand(()))  # The script's own, the same on all ranks.
    end()
    return [[float(loss) for loss in run] for run in runs]


def mistakes():
    """Steps of the chain that differ from the first one, and steps that fail on another rank."""
    model = begin("interleaved", 4)
    messages = []
    kind = "first"

    @smp.step
    def train(ids, labels):
        if kind == "raises":
            raise ValueError("by the user")
        loss = loss_of(model(ids), labels)
        if kind != "without backward":
            model.backward(loss)
        if kind == "twice":
            model(ids)
        return loss

    ids = torch.arange(BATCH) % WORDS
    for kind in ("first", "raises", "without backward", "twice", "first"):
        try:
            train(ids, ids)
            messages.append("")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    end()
    return messages


class Deadly(nn.Linear):
    """Its rank dies when the module is called while it is armed."""

    armed = False

    def forward(self, x):
        if self.armed:
            print(json.dumps({"at": time.monotonic()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def death():
    """The first rank dies inside a step: what the others see, and when."""
    smp.init(
        {"partitions": PARTITIONS, "microbatches": 4, "auto_partition": False, "default_partition": 0},
    )
    net = nn.Sequential(Deadly(SIZE, SIZE), *(nn.Linear(SIZE, SIZE) for _ in range(PARTITIONS - 1)))
    for number, module in enumerate(net):
        smp.set_partition(module, number)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        loss = model(x).sum()
        model.backward(loss)
        return loss

    for number in range(3):
        Deadly.armed = number == 2
        train(torch.ones(BATCH, SIZE))


runs = [run(pipeline, microbatches) for pipeline, microbatches in json.loads(sys.argv[1])]
print(json.dumps({"runs": runs, "dropout": [dropout(1), dropout(4)], "mistakes": mistakes()}), flush=True)
try:
    death()
except Exception as error:
    print(json.dumps({"at": time.monotonic(), "error": f"{type(error).__name__}: {error}"}), flush=True)
    raise
