"""Trains a small model in partitions and replicas, and compares it with one process that does the same.

smp_training.py FOLDER train|resume: `train` saves checkpoints after two steps, and trains a third; `resume` begins with
the checkpoints, on any number of partitions, and trains the third. Each compares all parameters of its rank with the
reference. Prints what it saw as one JSON object.
"""

import json
import sys
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


def compare(model: smp.DistributedModel, plain: nn.Module, case: str) -> None:
    expected = plain.state_dict()
    for name, value in model.local_state_dict().items():
        if name != "_smp_is_partial":
            torch.testing.assert_close(
                value, expected[name], rtol=1e-5, atol=1e-6, msg=lambda m: f"{case}: {name}: {m}"
            )


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
    assert sum(averager.overlapped for averager in model.replicas.averagers) > 1, "reductions began within the step"
    for tag in ("one", "two", "two"):
        smp.save_checkpoint(folder, tag, True, model, optimizer, {"path": folder}, num_kept_partial_checkpoints=1)
        smp.save_checkpoint(folder, tag, False, model, optimizer, {"path": folder})
    if smp.rdp_rank() == 0:
        smp.save(model.local_state_dict(), folder / "mine")
        for name, value in smp.load(folder / "mine").items():
            assert name == "_smp_is_partial" or torch.equal(value, model.local_state_dict()[name]), name
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
    try:
        model.load_state_dict(part)
    except RuntimeError as error:
        assert "without [" in str(error), error
    else:
        raise AssertionError("a part was loaded as a whole state")
    model.load_state_dict(part, same_partition_load=True)
    for name, value in model.local_state_dict().items():
        assert name == "_smp_is_partial" or torch.equal(value, part[name]), name


def translated(folder: Path, model: smp.DistributedModel) -> None:
    """A full checkpoint's names are those that the functions make, and are made back while resuming."""
    smp.state.module_manager.translate_functions = [
        lambda state: {f"other.{name}": value for name, value in state.items()}
    ]
    smp.save_checkpoint(folder, "theirs", False, model)
    smp.save_checkpoint(folder, "ours", False, model, translate_if_full=False)
    smp.state.module_manager.translate_functions = []
    theirs, saved = (torch.load(folder / tag) for tag in ("theirs", "ours"))
    assert set(theirs) == {f"other.{name}" for name in saved} and "head.weight" in saved, set(theirs)

    def back(state: dict[str, Any]) -> dict[str, Any]:
        return {name.removeprefix("other."): value for name, value in state.items()}

    def halved(state: dict[str, Any]) -> dict[str, Any]:
        return {name: value / 2 for name, value in back(state).items() if name != "blocks.0.inner.bias"}

    smp.resume_from_checkpoint(folder, "theirs", False, load_optimizer=False, translate_function=back)
    compare(model, module_of(saved), "translated")
    try:
        smp.resume_from_checkpoint(folder, "theirs", False, load_optimizer=False, translate_function=halved)
    except RuntimeError as error:
        assert "without ['blocks.0.inner.bias']" in str(error), error
    else:
        raise AssertionError("a state that lacks a name was loaded")
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
    for tag, partial in (("two", True), ("two", False), (None, True)):
        optimizer.param_groups[0]["lr"] = 5.0
        content = smp.resume_from_checkpoint(folder, tag, partial)
        assert content == {"path": folder}, content
        plain, ordinary = resumed_by_plain_pytorch(folder)
        reference(plain, ordinary, 2, smp.state.cfg.microbatches, smp.rdp_size())
        train_step(model, batch(2, smp.rdp_rank()))
        optimizer.step()
        optimizer.zero_grad()
        compare(model, plain, f"resumed from {tag}, partial {partial}")
    optimizer.param_groups[0]["lr"] = 5.0
    smp.resume_from_checkpoint(folder, load_optimizer=False)
    assert optimizer.param_groups[0]["lr"] == 5.0
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        assert "without ['blocks.3.inner.bias', 'embed.weight']" in str(error), error
    else:
        raise AssertionError("a state that lacks names was loaded")


def keywords(folder: Path, model: smp.DistributedModel, optimizer: torch.optim.Optimizer) -> None:
    """Two replicas: gradients of two steps are averaged once, over replicas and not over microbatches."""
    module, both = model.module, (make(), make())
    for step in (0, 1):
        for replica, plain in enumerate(both):
            for tokens in batch(step, replica).chunk(2):
                loss_of(plain(tokens), tokens).backward()
        train_step(model, batch(step, smp.rdp_rank()))
        used = {name for name, parameter in module.named_parameters() if parameter.grad is not None}
        assert "unused.weight" not in used and len(used) > 20, used
        for name in used:
            first_gradient, other = (plain.get_parameter(name).grad for plain in both)
            gradient = module.get_parameter(name).grad
            expected = (first_gradient, other)[smp.rdp_rank()] if step == 0 else (first_gradient + other) / 2
            torch.testing.assert_close(
                gradient, expected, rtol=1e-4, atol=1e-6, msg=lambda m: f"step {step}: {name}: {m}"
            )
            assert torch.allclose(first_gradient, other, rtol=1e-3) is False, name
    gradients = [
        parameter.grad.untyped_storage().data_ptr()
        for parameter in model.local_parameters()
        if parameter.grad is not None
    ]
    assert len(set(gradients)) == 1 < len(gradients), "views of one bucket"
    statistics = smp.allgather(module.blocks[0].norm.running_mean, smp.RDP_GROUP)
    assert not torch.allclose(*statistics), "buffers of their own"
    optimizer.zero_grad()
    model.register_comm_hook(None, halved)
    train_step(model, batch(2, smp.rdp_rank()))
    optimizer.step()  # Averages the gradients of one step of two.
    assert HALVED == [0], HALVED


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
        # As AWS's scripts look at norms: parts of parameters, by place in a vector for each group.
        held = model.local_state_dict()
        parts = {name: parameter.ds_tensor for name, parameter in model.named_parameters()}
        names = {parameter: name for name, parameter in model.module.named_parameters()}
        shapes = [
            [(names[parameter], parameter.ds_shape, parameter.ds_numel) for parameter in group]
            for group in optimizer.fp16_groups
        ]
        shapes_by_name = {name: value.shape for name, value in model.state_dict().items()}
        assert sorted(name for group in shapes for name, _, _ in group) == sorted(names.values())
        assert all(
            shapes_by_name[name] == shape and shape.numel() == count for group in shapes for name, shape, count in group
        )
        assert all(torch.equal(part, held[name]) and part.ds_numel == part.numel() for name, part in parts.items())
        for vector, group in zip(flat, optimizer.param_groups, strict=True):
            assert torch.equal(vector, torch.cat([parameter.ds_tensor.flatten() for parameter in group["params"]]))
        assert torch.distributed.get_world_size(optimizer.ds_param_shard_group) == 2
        assert optimizer._global_grad_norm is not None
    for partial in (True, False):
        smp.save_checkpoint(folder, "two", partial, model, optimizer, {"path": folder})
    for partial in (True, False):
        train_step(model, batch(9, 0))
        optimizer.step()
        smp.resume_from_checkpoint(folder, partial=partial)
        optimizer.zero_grad()
        plain, ordinary = resumed_by_plain_pytorch(folder)
        compare_whole(model, plain, "resumed")
        reference(plain, ordinary, 2, microbatches, replicas, clip=0.5)
        train_step(model, batch(2, smp.rdp_rank()))
        optimizer.step()
        optimizer.zero_grad()
        compare_whole(model, plain, f"third step, partial {partial}")
    held = sum(value.numel() for name, value in model.local_state_dict().items() if "weight" in name)
    every = sum(value.numel() for name, value in model.state_dict().items() if "weight" in name)
    assert held < 0.6 * every, (held, every)


def compare_whole(model: smp.DistributedModel, plain: nn.Module, case: str) -> None:
    state = model.state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5, msg=lambda m: f"{case}: {name}: {m}")


HALVED: list[int] = []


def halved(_: object, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
    HALVED.append(bucket.index())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer() / 2)
    return done


def refused(folder: Path) -> list[str]:
    messages = []
    for call in (
        lambda: smp.resume_from_checkpoint(folder, "three"),
        lambda: smp.resume_from_checkpoint(folder, "three", partial=False),
        lambda: smp.resume_from_checkpoint(folder / "elsewhere"),
        lambda: smp.load(folder / "nothing"),
        lambda: smp.load(folder / "mine"),
        lambda: smp.load(folder / "mine", back_compat=True),
        lambda: smp.save_checkpoint(folder, "a/b"),
        lambda: smp.save_checkpoint(folder, "four", num_kept_partial_checkpoints=0),
    ):
        try:
            call()
            messages.append("no error")
        except RuntimeError as error:
            messages.append(str(error))
    return messages


def main(folder: Path, mode: str) -> None:
    smp.init()
    torch.manual_seed(1 + smp.rdp_rank())  # All replicas begin with the first one's values.
    model = smp.DistributedModel(Model(), **OPTIONS.get(mode, {"bucket_cap_mb": 0.002}))
    optimizer = smp.DistributedOptimizer(adam(model))
    {"train": train, "resume": resume, "keywords": keywords, "spread": spread}[mode](folder, model, optimizer)
    state = [value for parameter_state in optimizer.state.values() for value in parameter_state.values()]
    print(json.dumps({"state_elements": sum(value.numel() for value in state), "refused": refused(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
