"""Trains a model of two partitions in fp16, bf16 or with smp.amp.GradScaler, and compares it with fp32 in one process.

smp_precision.py fp16|bf16|amp FOLDER. Prints what it measured as one JSON object; the tests judge it.
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
OUTPUT_DTYPES: set[str] = set()


def make() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 16, generator=generator)
    return x, x[:, :4].argmax(dim=1)


def loss_of(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    OUTPUT_DTYPES.add(str(output.dtype))
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
    held_weights: list[bool] = []  # Of each step that was skipped.
    skipped_norms, gradient_dtypes, global_norms = [], set(), []
    losses, norms, scales = [], [], [optimizer.loss_scale.scale]
    while len(losses) < STEPS:
        loss = train_step(model, *batch(len(losses)))
        old_weights = weights(model)
        norm = optimizer.clip_master_grads(clip)
        global_norms.append(optimizer._global_grad_norm == norm)
        gradient_dtypes |= {str(parameter.grad.dtype) for parameter in model.local_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        scales.append(optimizer.loss_scale.scale)
        if optimizer.step_was_skipped:
            held_weights.append(equal(old_weights, weights(model)) and optimizer.overflow)
            skipped_norms.append(norm)
            if len(skipped_norms) == 40:
                break
            continue
        losses.append(float(loss.reduce_mean()))
        norms.append(norm)
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    pairs = list(zip(weights(model).values(), masters, strict=True))
    report = {
        "weight dtypes": sorted({str(weight.dtype) for weight, _ in pairs}),
        "master dtypes": sorted({str(master.dtype) for master in masters}),
        "rounded masters": all(torch.equal(weight, master.to(weight.dtype)) for weight, master in pairs),
        "equal masters": sum(torch.equal(weight.float(), master) for weight, master in pairs),
        "resumed": resumed(model, optimizer, folder),
    }
    wanted_losses, wanted_norms = plain_losses(clip)
    return {
        **report,
        "output dtypes": sorted(OUTPUT_DTYPES),
        "gradient dtypes": sorted(gradient_dtypes),
        "global norm is the clipped one": all(global_norms),
        "skipped": {"norms": skipped_norms, "weights stayed": held_weights},
        "idle_scale": optimizer.loss_scale.scale == 1.0,
        "scales": scales,
        "losses": [losses, wanted_losses],
        "norms": [norms, wanted_norms],
        "dtypes": sorted({str(value.dtype) for value in model.state_dict().values()}),
    }


def resumed(model: Any, optimizer: Any, folder: Path) -> dict[str, bool]:
    """Return what a checkpoint brings back after a step too many."""
    smp.save_checkpoint(folder, "tag", True, model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    old_weights, numbers = weights(model), optimizer.loss_scale.state_dict()
    for _ in range(2):
        train_step(model, *batch(100))
        optimizer.step()
    report = {"weights changed": not equal(old_weights, weights(model))}
    smp.resume_from_checkpoint(folder)
    report["weights"] = equal(old_weights, weights(model))
    report["loss scale"] = optimizer.loss_scale.state_dict() == numbers
    state = optimizer.state_dict()
    report["masters"] = all(
        torch.equal(state["masters"][number], master) for number, master in saved["masters"].items()
    )
    report["momentum"] = all(
        torch.equal(state["state"][number]["momentum_buffer"], saved["state"][number]["momentum_buffer"])
        for number in saved["masters"]
    )
    # A full state of other weights, without masters: the masters follow.
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    train_step(model, *batch(0))
    optimizer.step()
    report["masters follow a full state"] = all(
        bool((weight - old_weights[name] * 2).abs().max() < (weight - old_weights[name]).abs().max())
        for name, weight in weights(model).items()
    )
    smp.resume_from_checkpoint(folder, load_sharded_optimizer_state=False)
    report["weights without the optimizer's state"] = equal(old_weights, weights(model))
    return report


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
    stayed = equal(old_weights, weights(model))
    return {"losses": [losses, plain_losses(1e9)[0]], "scale": scaler.get_scale(), "weights stayed": stayed}


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
