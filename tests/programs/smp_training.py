"""Trains a small model in partitions and replicas, and compares it with one process that does the same.

smp_training.py FOLDER train|resume: `train` saves checkpoints after two steps, and trains a third; `resume` begins with
the checkpoints, on any number of partitions, and trains the third. Each compares all parameters of its rank with the
reference. Prints REPORT, what it measured, as one JSON object; the tests judge it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp

BATCH, WIDTH = 8, 16
OPTIONS: dict[str, dict[str, Any]] = {
    "keywords": {
        "overlapping_allreduce": False,
        "backward_passes_per_step": 2,
        "average_grads_across_microbatches": False,
        "broadcast_buffers": False,
        "gradient_as_bucket_view": True,
    }
}


# "errors": by case, the largest difference from the reference, 1 is the tolerated one.
REPORT: dict[str, Any] = {"errors": {}}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 40, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make() -> Model:
    torch.manual_seed(1)
    return Model()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, of which one has no weight decay."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


def batch(step: int, replica: int) -> torch.Tensor:
    return torch.randint(0, 40, (BATCH,), generator=torch.Generator().manual_seed(100 * step + replica))


def loss_of(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, (tokens + 1) % 40)


def reference(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, microbatches: int, replicas: int, clip: float = 1e9
) -> None:
    """One step of one process over the microbatches of all replicas; the buffers are then the first replica's."""
    optimizer.zero_grad()
    old_buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for replica in reversed(range(replicas)):
        model.load_state_dict(old_buffers, strict=False)
        for tokens in batch(step, replica).chunk(microbatches):
            (loss_of(model(tokens), tokens) / microbatches / replicas).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


@smp.step
def train_step(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model(tokens), tokens)
    model.backward(loss)
    return loss


def error(value: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> float:
    """Return the largest difference as a multiple of the tolerated one."""
    return float(((value - expected).abs() / (atol + rtol * expected.abs())).max())


def compare(model: smp.DistributedModel, plain: nn.Module, case: str) -> None:
    expected = plain.state_dict()
    local = {name: value for name, value in model.local_state_dict().items() if name != "_smp_is_partial"}
    REPORT["errors"][case] = max(error(value, expected[name]) for name, value in local.items())


def are_equal(model: smp.DistributedModel, state: dict[str, Any]) -> bool:
    """True if this rank's part of *model* has the values of *state*."""
    local = model.local_state_dict()
    return all(torch.equal(value, state[name]) for name, value in local.items() if name != "_smp_is_partial")


def refusal(call: Callable[[], object]) -> str:
    """Return the error of *call*."""
    try:
        call()
    except RuntimeError as refused:
        return str(refused)
    return "no error"


def resumed_by_plain_pytorch(folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    plain = make()
    ordinary = adam(plain)
    plain.load_state_dict(torch.load(folder / "two"))
    ordinary.load_state_dict(torch.load(folder / "optimizer_two"))
    return plain, ordinary


def train(folder: Path, model: smp.DistributedModel, optimizer: torch.optim.Optimizer) -> None:
    microbatches, replicas = smp.state.cfg.microbatches, smp.rdp_size()
    plain = make()
    ordinary = adam(plain)
    for step in range(2):
        reference(plain, ordinary, step, microbatches, replicas)
        train_step(model, batch(step, smp.rdp_rank()))
        optimizer.step()
        optimizer.zero_grad()
        compare(model, plain, f"step {step}")
    REPORT["overlapped"] = sum(averager.overlapped for averager in model.replicas.averagers)
    for tag in ("one", "two", "two"):
        smp.save_checkpoint(folder, tag, True, model, optimizer, {"path": folder}, num_kept_partial_checkpoints=1)
        smp.save_checkpoint(folder, tag, False, model, optimizer, {"path": folder})
    if smp.rdp_rank() == 0:
        smp.save(model.local_state_dict(), folder / "mine")
        REPORT["loaded own file"] = are_equal(model, smp.load(folder / "mine"))
    loaded_as_this_ranks_part(model)
    translated(folder.with_name("translated"), model)
    plain, ordinary = resumed_by_plain_pytorch(folder)
    compare(model, plain, "loaded by plain PyTorch")
    reference(plain, ordinary, 2, microbatches, replicas)
    train_step(model, batch(2, smp.rdp_rank()))
    optimizer.step()
    compare(model, plain, "third step")


def loaded_as_this_ranks_part(model: smp.DistributedModel) -> None:
    """A part without the mark of one is taken for the whole state, unless same_partition_load says what it is."""
    part = {name: value.clone() for name, value in model.local_state_dict().items() if name != "_smp_is_partial"}
    with torch.no_grad():
        for parameter in model.local_parameters():
            parameter.zero_()
    REPORT["part as a whole"] = refusal(lambda: model.load_state_dict(part))
    model.load_state_dict(part, same_partition_load=True)
    REPORT["part as this rank's"] = are_equal(model, part)


def translated(folder: Path, model: smp.DistributedModel) -> None:
    """A full checkpoint's names are those that the functions make, and are made back while resuming."""
    smp.state.module_manager.translate_functions = [
        lambda state: {f"other.{name}": value for name, value in state.items()}
    ]
    smp.save_checkpoint(folder, "theirs", False, model)
    smp.save_checkpoint(folder, "ours", False, model, translate_if_full=False)
    smp.state.module_manager.translate_functions = []
    theirs, saved = (torch.load(folder / tag) for tag in ("theirs", "ours"))
    REPORT["translated names"] = {"theirs": sorted(theirs), "ours": sorted(saved)}

    def back(state: dict[str, Any]) -> dict[str, Any]:
        return {name.removeprefix("other."): value for name, value in state.items()}

    def halved(state: dict[str, Any]) -> dict[str, Any]:
        return {name: value / 2 for name, value in back(state).items() if name != "blocks.0.inner.bias"}

    smp.resume_from_checkpoint(folder, "theirs", False, load_optimizer=False, translate_function=back)
    compare(model, module_of(saved), "translated")
    incomplete = {"load_optimizer": False, "translate_function": halved}
    REPORT["incomplete"] = refusal(lambda: smp.resume_from_checkpoint(folder, "theirs", False, **incomplete))
    smp.resume_from_checkpoint(folder, "theirs", False, strict=False, load_optimizer=False, translate_function=halved)
    halves = {name: value / (2 if name != "blocks.0.inner.bias" else 1) for name, value in saved.items()}
    compare(model, module_of(halves), "not strict")
    smp.resume_from_checkpoint(folder, "ours", False, load_optimizer=False)


def module_of(state: dict[str, Any]) -> Model:
    plain = make()
    plain.load_state_dict(state)
    return plain


def resume(folder: Path, model: smp.DistributedModel, optimizer: torch.optim.Optimizer) -> None:
    """Three times: before the first step from the partial checkpoint, then from both."""
    state = torch.load(folder / "two")
    del state["blocks.3.inner.bias"], state["embed.weight"]
    REPORT["contents"] = []
    for tag, partial in (("two", True), ("two", False), (None, True)):
        optimizer.param_groups[0]["lr"] = 5.0
        content = smp.resume_from_checkpoint(folder, tag, partial)
        REPORT["contents"].append({name: str(value) for name, value in content.items()})
        plain, ordinary = resumed_by_plain_pytorch(folder)
        reference(plain, ordinary, 2, smp.state.cfg.microbatches, smp.rdp_size())
        train_step(model, batch(2, smp.rdp_rank()))
        optimizer.step()
        optimizer.zero_grad()
        compare(model, plain, f"resumed from {tag}, partial {partial}")
    optimizer.param_groups[0]["lr"] = 5.0
    smp.resume_from_checkpoint(folder, load_optimizer=False)
    REPORT["learning rate without the optimizer's state"] = optimizer.param_groups[0]["lr"]
    REPORT["incomplete"] = refusal(lambda: model.load_state_dict(state))


def keywords(folder: Path, model: smp.DistributedModel, optimizer: torch.optim.Optimizer) -> None:
    """Two replicas: gradients of two steps are averaged once, over replicas and not over microbatches."""
    module, both = model.module, (make(), make())
    REPORT["used"], REPORT["alike"] = [], []
    for step in (0, 1):
        for replica, plain in enumerate(both):
            for tokens in batch(step, replica).chunk(2):
                loss_of(plain(tokens), tokens).backward()
        train_step(model, batch(step, smp.rdp_rank()))
        used = {name for name, parameter in module.named_parameters() if parameter.grad is not None}
        REPORT["used"].append(sorted(used))
        errors = []
        for name in used:
            first_gradient, other = (plain.get_parameter(name).grad for plain in both)
            gradient = module.get_parameter(name).grad
            expected = (first_gradient, other)[smp.rdp_rank()] if step == 0 else (first_gradient + other) / 2
            errors.append(error(gradient, expected, rtol=1e-4))
            REPORT["alike"] += [name] if torch.allclose(first_gradient, other, rtol=1e-3) else []
        REPORT["errors"][f"gradients of step {step}"] = max(errors)
    gradients = [
        parameter.grad.untyped_storage().data_ptr()
        for parameter in model.local_parameters()
        if parameter.grad is not None
    ]
    REPORT["gradients"], REPORT["buckets"] = len(gradients), len(set(gradients))
    statistics = smp.allgather(module.blocks[0].norm.running_mean, smp.RDP_GROUP)
    REPORT["statistics"] = [statistic.tolist() for statistic in statistics]
    optimizer.zero_grad()
    model.register_comm_hook(None, halved)
    train_step(model, batch(2, smp.rdp_rank()))
    optimizer.step()  # Averages the gradients of one step of two.
    REPORT["hooked buckets"] = HALVED


def spread(folder: Path, model: smp.DistributedModel, optimizer: torch.optim.Optimizer) -> None:
    """Sharded data parallelism: three steps are those of one process, also resumed from either checkpoint."""
    microbatches, replicas = smp.state.cfg.microbatches, smp.size()
    plain = make()
    ordinary = adam(plain)
    flat = optimizer.fp32_partitioned_groups_flat
    for step in range(2):
        reference(plain, ordinary, step, microbatches, replicas, clip=0.5)
        train_step(model, batch(step, smp.rdp_rank()))
        optimizer.step()
        optimizer.zero_grad()
        compare_whole(model, plain, f"step {step}")
        REPORT["as AWS's scripts look at norms"] = looks_at_norms(model, optimizer, flat)
    for partial in (True, False):
        smp.save_checkpoint(folder, "two", partial, model, optimizer, {"path": folder})
    for partial in (True, False):
        train_step(model, batch(9, 0))
        optimizer.step()
        smp.resume_from_checkpoint(folder, partial=partial)
        optimizer.zero_grad()
        plain, ordinary = resumed_by_plain_pytorch(folder)
        compare_whole(model, plain, f"resumed, partial {partial}")
        reference(plain, ordinary, 2, microbatches, replicas, clip=0.5)
        train_step(model, batch(2, smp.rdp_rank()))
        optimizer.step()
        optimizer.zero_grad()
        compare_whole(model, plain, f"third step, partial {partial}")
    held = sum(value.numel() for name, value in model.local_state_dict().items() if "weight" in name)
    every = sum(value.numel() for name, value in model.state_dict().items() if "weight" in name)
    REPORT["elements"] = {"here": held, "in all": every}


def looks_at_norms(model: smp.DistributedModel, optimizer: Any, flat: list[torch.Tensor]) -> dict[str, Any]:
    """Return whether parts of parameters are where AWS's scripts look, by place in a vector for each group."""
    held = model.local_state_dict()
    parts = {name: parameter.ds_tensor for name, parameter in model.named_parameters()}
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    shapes = [
        (names[parameter], parameter.ds_shape, parameter.ds_numel)
        for group in optimizer.fp16_groups
        for parameter in group
    ]
    whole_shapes = {name: value.shape for name, value in model.state_dict().items()}
    groups = [torch.cat([part.ds_tensor.flatten() for part in group["params"]]) for group in optimizer.param_groups]
    return {
        "names": sorted(name for name, _, _ in shapes) == sorted(names.values()),
        "whole shapes": all(whole_shapes[name] == shape and shape.numel() == count for name, shape, count in shapes),
        "parts": all(torch.equal(part, held[name]) and part.ds_numel == part.numel() for name, part in parts.items()),
        "vectors": all(torch.equal(vector, group) for vector, group in zip(flat, groups, strict=True)),
        "ranks of a group": torch.distributed.get_world_size(optimizer.ds_param_shard_group),
        "norm": float(optimizer._global_grad_norm),
    }


def compare_whole(model: smp.DistributedModel, plain: nn.Module, case: str) -> None:
    state, expected = model.state_dict(), plain.state_dict()
    REPORT["errors"][case] = max(error(state[name], value, atol=1e-5) for name, value in expected.items())


HALVED: list[int] = []


def halved(_: object, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
    HALVED.append(bucket.index())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer() / 2)
    return done


def refused(folder: Path) -> list[str]:
    return [
        refusal(call)
        for call in (
            lambda: smp.resume_from_checkpoint(folder, "three"),
            lambda: smp.resume_from_checkpoint(folder, "three", partial=False),
            lambda: smp.resume_from_checkpoint(folder / "elsewhere"),
            lambda: smp.load(folder / "nothing"),
            lambda: smp.load(folder / "mine"),
            lambda: smp.load(folder / "mine", back_compat=True),
            lambda: smp.save_checkpoint(folder, "a/b"),
            lambda: smp.save_checkpoint(folder, "four", num_kept_partial_checkpoints=0),
        )
    ]


def main(folder: Path, mode: str) -> None:
    smp.init()
    torch.manual_seed(1 + smp.rdp_rank())  # All replicas begin with the first one's values.
    model = smp.DistributedModel(Model(), **OPTIONS.get(mode, {"bucket_cap_mb": 0.002}))
    optimizer = smp.DistributedOptimizer(adam(model))
    {"train": train, "resume": resume, "keywords": keywords, "spread": spread}[mode](folder, model, optimizer)
    state = [value for parameter_state in optimizer.state.values() for value in parameter_state.values()]
    print(json.dumps({**REPORT, "state_elements": sum(value.numel() for value in state), "refused": refused(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
