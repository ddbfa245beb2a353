"""Trains a model of two partitions in fp16, bf16 or with smp.amp.GradScaler, and compares it with fp32 in one process.

smp_precision.py fp16|bf16|amp FOLDER. Prints what it saw as one JSON object.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp

STEPS = 8


def make() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 16, generator=generator)
    return x, x[:, :4].argmax(dim=1)


def loss_of(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    assert output.dtype == torch.float32, output.dtype
    return nn.functional.cross_entropy(output, labels)


@smp.step
def train_step(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model(x), labels)
    model.backward(loss)
    return loss


def plain_losses(clip: float) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of one process in fp32."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses, norms = [], []
    for step in range(STEPS):
        x, labels = batch(step)
        loss = loss_of(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.local_named_parameters()}


def equal(weights: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return weights.keys() == other.keys() and all(torch.equal(weights[name], other[name]) for name in weights)


def low_precision(mode: str, folder: Path) -> dict[str, Any]:
    clip = 0.8
    model = smp.DistributedModel(make())
    options = {"dynamic_loss_scale": True, "dynamic_loss_args": {"init_scale": 2.0**30, "scale_window": 4}}
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), **options)
    skipped = 0
    losses, norms, scales = [], [], [optimizer.loss_scale.scale]
    while len(losses) < STEPS:
        loss = train_step(model, *batch(len(losses)))
        old_weights = weights(model)
        norm = optimizer.clip_master_grads(clip)
        assert optimizer._global_grad_norm == norm
        if mode == "fp16":  # Two microbatches were added up in fp32.
            assert {parameter.grad.dtype for parameter in model.local_parameters()} == {torch.float32}
        optimizer.step()
        assert optimizer.overflow is optimizer.step_was_skipped
        optimizer.zero_grad()
        scales.append(optimizer.loss_scale.scale)
        if optimizer.step_was_skipped:
            assert equal(old_weights, weights(model)) and norm == float("inf"), norm
            skipped += 1
            assert skipped < 40, scales
            continue
        losses.append(float(loss.reduce_mean()))
        norms.append(norm)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[mode]
    assert {weight.dtype for weight in weights(model).values()} == {dtype}
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    assert {master.dtype for master in masters} == {torch.float32}
    for (name, low), master in zip(weights(model).items(), masters, strict=True):
        assert torch.equal(low, master.to(dtype)) and not torch.equal(low.float(), master), name
    resumed(model, optimizer, folder)
    wanted_losses, wanted_norms = plain_losses(clip)
    return {
        "skipped": skipped,
        "idle_scale": optimizer.loss_scale.scale == 1.0,
        "scales": scales,
        "losses": [losses, wanted_losses],
        "norms": [norms, wanted_norms],
        "dtypes": sorted({str(value.dtype) for value in model.state_dict().values()}),
    }


def resumed(model: Any, optimizer: Any, folder: Path) -> None:
    """After a step too many, the checkpoint brings back weights, masters, momentum and the loss scale."""
    smp.save_checkpoint(folder, "tag", True, model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    old_weights, numbers = weights(model), optimizer.loss_scale.state_dict()
    for _ in range(2):
        train_step(model, *batch(100))
        optimizer.step()
    assert not equal(old_weights, weights(model))
    smp.resume_from_checkpoint(folder)
    assert equal(old_weights, weights(model))
    assert optimizer.loss_scale.state_dict() == numbers
    state = optimizer.state_dict()
    for number, master in saved["masters"].items():
        assert torch.equal(state["masters"][number], master), number
        assert torch.equal(state["state"][number]["momentum_buffer"], saved["state"][number]["momentum_buffer"])
    # A full state of other weights, without masters: the masters follow.
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    train_step(model, *batch(0))
    optimizer.step()
    for name, weight in weights(model).items():
        assert (weight - old_weights[name] * 2).abs().max() < (weight - old_weights[name]).abs().max(), name
    smp.resume_from_checkpoint(folder, load_sharded_optimizer_state=False)
    assert equal(old_weights, weights(model))


def with_scaler() -> dict[str, Any]:
    model = smp.DistributedModel(make())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
    scaler = smp.amp.GradScaler(init_scale=2.0**10)

    @smp.step
    def scaled_step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(x), labels)
        model.backward(scaler.scale(loss))
        return loss

    losses = []
    for step in range(STEPS):
        losses.append(float(scaled_step(*batch(step)).reduce_mean()))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    scaled_step(*batch(0))
    if smp.pp_rank() == 1:
        next(model.local_parameters()).grad.view(-1)[0] = float("inf")
    old_weights = weights(model)
    scaler.step(optimizer)
    scaler.update()
    assert equal(old_weights, weights(model)), "an overflow on one rank skips the step on all"
    return {"losses": [losses, plain_losses(1e9)[0]], "scale": scaler.get_scale()}


def refused() -> list[str]:
    messages = []
    model = smp.state.optimizer.model
    inner, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for call in (
        lambda: smp.DistributedOptimizer(inner, dynamic_loss_scale=True, dynamic_loss_args={"scale_windows": 3}),
        lambda: smp.DistributedOptimizer(other, dynamic_loss_args={"scale_window": 3}),
        lambda: smp.DistributedOptimizer(inner, static_loss_scale=-2),
        lambda: smp.DistributedOptimizer(inner, static_loss_scale=128),
        lambda: smp.state.optimizer.step(lambda: 0.0),
        lambda: smp.state.optimizer.load_state_dict({"state": {}, "param_groups": []}),
        lambda: smp.state.optimizer.load_state_dict({"state": {}, "param_groups": [{"params": []}]}),
    ):
        try:
            call()
            messages.append("no error")
        except RuntimeError as error:
            messages.append(str(error))
    return messages


def main(mode: str, folder: Path) -> None:
    smp.init()
    report = with_scaler() if mode == "amp" else low_precision(mode, folder)
    print(json.dumps({**report, "refused": refused()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
