"""Two partitions: which layers of checkpointed modules are computed again, in which order, and with which gradients.

Prints one JSON object: the calls of this rank's layers by part of the model, and of a chain, errors of gradients beside
one process, and what was refused. The tests judge it.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint, checkpoint_sequential

CALLS: dict[str, list[str]] = {}
MASKS: dict[str, list[torch.Tensor]] = {}


class Layer(nn.Module):
    def __init__(self, part: str, name: str) -> None:
        super().__init__()
        self.part, self.name, self.linear = part, name, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        CALLS.setdefault(self.part, []).append(self.name)
        return torch.tanh(self.linear(x)) * scale


class Pair(Layer):
    """Takes and returns two tensors, as two arguments or as one tuple."""

    def forward(self, *inputs: Any) -> Any:  # type: ignore[override]
        CALLS.setdefault(self.part, []).append(f"{self.name}{len(inputs)}")
        first, other = inputs[0] if isinstance(inputs[0], tuple) else inputs * (3 - len(inputs))
        return torch.tanh(self.linear(first)), other + first


class Random(Layer):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        mask = torch.rand(8)
        MASKS.setdefault(self.part, []).append(mask)
        return torch.tanh(self.linear(x) * mask)


class Spanning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.here = Layer("spanning", "a")
        with smp.partition(1):
            self.there = nn.ModuleDict({"b": Layer("spanning", "b"), "c": Layer("spanning", "c")})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.there["c"](self.there["b"](self.here(x)), scale=2.0)


def layers(
    part: str, names: str, first_of_1: str = "~", kind: Callable[[str, str], nn.Module] = Layer
) -> nn.Sequential:
    """A Sequential of layers, those from *first_of_1* on partition 1."""
    sequence = []
    for name in names:
        with smp.partition(int(name >= first_of_1)):
            sequence.append(kind(part, name))
    with smp.partition(0):
        return nn.Sequential(*sequence)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = layers("each", "abcd", "c")
        self.group = layers("group", "abcde", "e")
        self.contiguous = layers("contiguous", "abcd", "d")
        self.spanning = Spanning()
        self.unpacked, self.packed = layers("unpacked", "abc", kind=Pair), layers("packed", "abc", kind=Pair)
        self.kept, self.redrawn = Random("kept", "a"), Random("redrawn", "a")
        self.inside = layers("inside", "abcd", "d")
        self.plain = layers("plain", "ab")
        self.is_wrong = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.redrawn(x)
        x = self.spanning(self.contiguous(self.group(self.each(x))))
        x = self.unpacked(x)[1]
        x = self.packed(x)[1]
        x = self.kept(x)
        x = checkpoint(self.inside[0], x, scale=0.5)
        x = checkpoint_sequential(nn.Sequential(*self.inside[1:3]), x, strategy="group_2")
        x = checkpoint(self.inside[3], x)
        x = checkpoint(functional.softplus, x)
        return self.plain(self.wrong(x)) if self.is_wrong else self.plain(x)

    def wrong(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: self.inside[3](x), x)


@smp.step
def train_step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).pow(2).mean()
    model.backward(loss)
    return loss


@smp.step
def evaluate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def refused(model: Model) -> list[str]:
    messages = []
    for call in (
        lambda: smp.set_activation_checkpointing(functional.relu),
        lambda: smp.set_activation_checkpointing(model.group, strategy="group_0"),
        lambda: smp.set_activation_checkpointing(model.group, strategy="some"),
        lambda: smp.set_activation_checkpointing(model.kept, strategy="contiguous"),
        lambda: smp.set_activation_checkpointing(model.kept, pack_args_as_tuple=True),
    ):
        try:
            call()
            messages.append("no error")
        except RuntimeError as error:
            messages.append(str(error))
    return messages


def chain() -> dict[str, Any]:
    """Of a chain, by torch's schedules: the calls of the third step's layers, and the errors of its gradients."""
    smp.init()
    torch.manual_seed(2)
    module = layers("chain", "abcdef", "d")
    plain = copy.deepcopy(module)
    model = smp.DistributedModel(module)
    smp.set_activation_checkpointing(module, strategy="group_2")
    x = torch.randn(4, 8)
    for _ in range(3):
        CALLS.clear()
        model.zero_grad()
        train_step(model, x)
    reports = {part: "".join(names) for part, names in CALLS.items()}
    plain(x).pow(2).mean().backward()
    return {"calls": reports["chain"], "errors": errors(model, plain)}


def offload() -> list[str]:
    """Steps of a model without checkpointed modules, and with one."""
    messages = []
    for is_checkpointed in (False, True):
        smp.init({"offload_activations": True})
        module = nn.Sequential(*(Layer("offload", name) for name in "ab"))
        smp.set_partition(module[1], 1)
        model = smp.DistributedModel(module)
        if is_checkpointed:
            smp.set_activation_checkpointing(module)
        try:
            train_step(model, torch.randn(4, 8))
            messages.append("no error")
        except RuntimeError as error:
            messages.append(str(error))
        smp.barrier()
        smp.shutdown()
    return messages


def parts() -> dict[str, Any]:
    """Steps of a model with parts that are checkpointed in different ways."""
    smp.init()
    torch.manual_seed(2)
    module = Model()
    plain = copy.deepcopy(module)
    model = smp.DistributedModel(module)
    smp.set_activation_checkpointing(module.each, strategy="each")
    smp.set_activation_checkpointing(module.group, strategy="group_2")
    smp.set_activation_checkpointing(module.contiguous, strategy="contiguous")
    smp.set_activation_checkpointing(module.spanning)
    smp.set_activation_checkpointing(module.unpacked)
    smp.set_activation_checkpointing(module.packed, pack_args_as_tuple=True)
    smp.set_activation_checkpointing(module.kept)
    smp.set_activation_checkpointing(module.redrawn, preserve_rng_state=False)
    report: dict[str, Any] = {"refused": refused(module)}
    torch.manual_seed(5)
    x = torch.randn(4, 8)
    random = torch.get_rng_state()
    evaluate(model, x)
    report["evaluated"] = {part: "".join(names) for part, names in CALLS.items()}
    CALLS.clear()
    MASKS.clear()
    torch.set_rng_state(random)
    train_step(model, x)
    report["calls"] = {part: "".join(names) for part, names in CALLS.items()}
    report["masks"] = {part: bool(torch.equal(*masks)) for part, masks in MASKS.items()}
    module.is_wrong = True
    try:
        train_step(model, x)
    except RuntimeError as error:
        report["refused"].append(str(error))
    module.is_wrong = False
    torch.set_rng_state(random)
    plain(x).pow(2).mean().backward()
    report["errors"] = errors(model, plain)
    smp.barrier()
    smp.shutdown()
    return report


def errors(model: Any, plain: nn.Module) -> dict[str, float | None]:
    """Return |dg| / |g| of each parameter of this rank; None where neither has a gradient."""
    expected = dict(plain.named_parameters())
    found: dict[str, float | None] = {}
    for name, parameter in model.local_named_parameters():
        gradient = expected[name].grad
        if gradient is None or parameter.grad is None:
            found[name] = None if parameter.grad is gradient else float("inf")
        else:
            found[name] = float((parameter.grad - gradient).norm() / gradient.norm())
    return found


if __name__ == "__main__":
    refusals = offload()
    print(json.dumps({"offload": refusals, **parts(), "chain": chain()}))
