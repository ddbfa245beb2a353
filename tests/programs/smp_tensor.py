"""Tensor parallel models against one process. Four ranks; prints what it measured as one JSON object, which tests judge.

Argument: a folder for checkpoints. Every rank computes what one process would, from the same whole model and all samples.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp
import smp_tensor_transformer as transformer

VOCABULARY, WIDTH = 21, 14  # A degree of 4 divides neither.
BATCH, STEPS = 8, 2
# "errors": by case, the largest error as a multiple of the tolerated one.
report = {"errors": {}, "holds": {}}


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class DistributedMixer(nn.Module):
    """Replaces Mixer: other arguments, the same parameters, other results."""

    def __init__(self, width, fused_softmax=True):
        super().__init__()
        report["fused_softmax"] = fused_softmax
        self.mix = smp.nn.DistributedLinear(width, width)

    def forward(self, x):
        return {"mixed": self.mix(x)}


@smp.tp_register(
    DistributedMixer,
    init_hook=lambda half_width: ((2 * half_width,), {}),
    forward_hook=lambda x, factor: ((factor * x,), {}),
    return_hook=lambda output: output["mixed"],
)
class Mixer(nn.Module):
    def __init__(self, half_width):
        super().__init__()
        self.mix = nn.Linear(2 * half_width, 2 * half_width)

    def forward(self, x, factor):
        return self.mix(factor * x)


class Model(nn.Module):
    """The head shares the embedding's weights; `plain` is not tensor parallel."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(Block(inner) for inner in (30, 17, 32))
        self.mixer = Mixer(WIDTH // 2)
        self.plain = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.tanh(self.plain(self.mixer(x, 0.5))))


def make(dtype=torch.float32):
    torch.manual_seed(3)
    return Model().to(dtype)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def samples(step, place):
    return torch.randint(0, VOCABULARY, (BATCH, 5), generator=torch.Generator().manual_seed(100 * step + place))


def samples_of(step):
    """This rank's samples: with prescaled_batch those of its replica, else its own."""
    return samples(step, smp.rdp_rank() if smp.state.cfg.prescaled_batch else smp.dp_rank())


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), (3 * tokens + 1).flatten() % VOCABULARY)


@smp.step
def train_step(model, tokens):
    loss = loss_of(model, tokens)
    model.backward(loss)
    return loss


def reference(plain, optimizer, step):
    """One step of one process over all ranks' samples; returns the loss of each place."""
    optimizer.zero_grad()
    places = smp.rdp_size() if smp.state.cfg.prescaled_batch else smp.dp_size()
    count, losses = smp.state.cfg.microbatches, []
    for place in range(places):
        parts = [loss_of(plain, tokens) for tokens in samples(step, place).chunk(count)]
        loss = sum(parts) / count
        (loss / places).backward()
        losses.append(loss.item())
    return losses


def gap(tensor, expected):
    return (tensor - expected).norm().item() / max(expected.norm().item(), 1e-6)


def part_of(tensor, parameter):
    """Return the shapes of this rank's parts of *tensor*."""
    for axis, (size, part) in enumerate(zip(tensor.shape, parameter.shape)):
        if size != part:
            return tensor.tensor_split(smp.tp_size(), axis)[smp.tp_rank()]
    return tensor


def compare(model, plain, case, tolerance=1e-6):
    """Gradients at equal weights, |dg| / |g| of each parameter: the worst one."""
    gaps = []
    for name, parameter in model.local_named_parameters():
        expected = part_of(plain.get_parameter(name).grad, parameter)
        gaps.append(gap(parameter.grad, expected) if parameter.grad.shape == expected.shape else float("inf"))
    note(case, max(gaps) / tolerance)
    return max(gaps)


def note(case, error):
    """Note the *error* of *case*, which may come more than once, as a multiple of the tolerated one."""
    report["errors"][case] = max(error, report["errors"].get(case, 0.0))


def holds(claim, is_true):
    """Note whether *claim*, which may come more than once, is true."""
    report["holds"][claim] = bool(is_true) and report["holds"].get(claim, True)


def distributed():
    torch.manual_seed(3)
    with smp.tensor_parallelism(fused_softmax=False, flash_attention=True, zero_init=True, distribute_embedding=False):
        model = Model()
    smp.set_tensor_parallelism(model.plain, False)
    return smp.DistributedModel(model)


def train(model, optimizer, plain, ordinary, first=0):
    """STEPS steps of both; the weights are made equal after each, so that Adam's roots do not add up rounding."""
    worst = []
    place = smp.rdp_rank() if smp.state.cfg.prescaled_batch else smp.dp_rank()
    for step in range(first, first + STEPS):
        losses = reference(plain, ordinary, step)
        optimizer.zero_grad()
        loss = train_step(model, samples_of(step)).reduce_mean().item()
        note("loss", abs(loss / losses[place] - 1) / 1e-5)
        worst.append(compare(model, plain, "gradients"))
        norm = optimizer.clip_master_grads(0.5)
        expected_norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5).item()
        note("norm", abs(norm / expected_norm - 1) / 1e-5)
        optimizer.step()
        ordinary.step()
        state = model.state_dict()
        for name, value in plain.state_dict().items():
            note("values after a step", float((state[name] - value).abs().max()) / 1e-5)
        model.load_state_dict(plain.state_dict())
    return max(worst)


def resumed_by_plain_pytorch(folder):
    plain = make()
    ordinary = adam(plain)
    plain.load_state_dict(torch.load(folder / "one"))
    ordinary.load_state_dict(torch.load(folder / "optimizer_one"))
    return plain, ordinary


def sizes(model, plain):
    split = [name for name, parameter in model.local_named_parameters() if model.is_distributed_parameter(parameter)]
    holds(
        "divided parameters have their reducer", split == [n for n, _ in model.scaled_batch_reducer_named_parameters()]
    )
    others = [name for name, _ in model.default_reducer_named_parameters()]
    every = sorted(name for name, _ in model.local_named_parameters())
    holds("all others have the default one", sorted(split + others) == every)
    holds("a module that is left out is whole", any("plain" in name for name in others) or smp.pp_size() > 1)
    scaled = any(model.is_scaled_batch_parameter(parameter) for parameter in model.local_parameters())
    holds("batches are scaled unless they are prescaled", scaled is not smp.state.cfg.prescaled_batch)
    local_elements = sum(
        parameter.numel() for parameter in model.local_parameters() if model.is_distributed_parameter(parameter)
    )
    return [local_elements, sum(parameter.numel() for parameter in plain.parameters())]


def pipelined(folder):
    """Two partitions of two tensor parallel ranks; saves."""
    model, plain = distributed(), make()
    optimizer, ordinary = smp.DistributedOptimizer(adam(model)), adam(plain)
    report["pipelined"] = train(model, optimizer, plain, ordinary), *sizes(model, plain)
    report["modules"] = sorted({type(module).__name__ for module in model.distributed_modules()})
    smp.save_checkpoint(folder, "one", False, model, optimizer)
    smp.save_checkpoint(folder, "one", True, model, optimizer)
    smp.resume_from_checkpoint(folder, "one")
    train(model, optimizer, *resumed_by_plain_pytorch(folder), STEPS)


def prescaled(folder):
    """Two replicas of two tensor parallel ranks with equal samples; resumes what two partitions saved."""
    model = distributed()
    optimizer = smp.DistributedOptimizer(adam(model))
    smp.resume_from_checkpoint(folder, "one", partial=False)
    plain, ordinary = resumed_by_plain_pytorch(folder)
    report["prescaled"] = train(model, optimizer, plain, ordinary, STEPS), *sizes(model, plain)
    smp.resume_from_checkpoint(folder, "one", partial=True)
    train(model, optimizer, *resumed_by_plain_pytorch(folder), STEPS)


def wide(folder):
    """Four tensor parallel ranks, with modules of double precision; resumes what two saved."""
    with smp.model_creation(tensor_parallelism=True, dtype=torch.float64):
        model = smp.DistributedModel(Model())
    holds("the default type is as before model_creation", torch.get_default_dtype() == torch.float32)
    smp.resume_from_checkpoint(folder, "one", partial=False)
    plain = resumed_by_plain_pytorch(folder)[0].double()
    optimizer = adam(plain)
    reference(plain, optimizer, 0)
    train_step(model, samples_of(0))
    report["wide"] = compare(model, plain, "gradients in double precision", 1e-13), *sizes(model, plain)


def low(folder):
    """bf16 with fp32 masters: the whole state has whole masters."""
    model = distributed()
    optimizer = smp.DistributedOptimizer(adam(model))
    train_step(model, samples_of(0))
    optimizer.step()
    state, weights = optimizer.state_dict(), model.state_dict()
    names = [name for name, _ in model.named_parameters()]
    for number, master in state["masters"].items():
        holds("the whole state has whole masters", torch.equal(master.bfloat16(), weights[names[number]]))
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    train_step(model, samples_of(0))
    optimizer.step()


def late(folder):
    """Two by two, and four ranks: the same values, made where they are kept. The optimizer is made before them."""
    torch.manual_seed(9)
    if smp.pp_size() > 1:
        with smp.delay_param_initialization(), smp.tensor_parallelism():
            model = smp.DistributedModel(Model())
    else:
        with smp.model_creation(tensor_parallelism=True):
            model = smp.DistributedModel(Model())
    are_delayed = all(parameter.is_meta for parameter in model.parameters())
    holds("values are delayed until the model is partitioned", are_delayed == (smp.pp_size() > 1))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    train_step(model, samples_of(0))
    optimizer.step()
    state = model.state_dict()
    holds("tied weights stay tied", model.module.head.weight is model.module.embed.weight)
    sums = {part.sum().item() for part in state["blocks.0.inner.weight"].split(WIDTH // 2, 1)}
    holds("parts of a delayed parameter differ", len(sums) == 2)
    if smp.pp_size() > 1:
        torch.save(state, folder / f"late_{smp.rank()}")
    else:
        for name, value in torch.load(folder / "late_0").items():
            holds("delayed values are the same at other degrees", torch.equal(value, state[name]))


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


def bare():
    with smp.delay_param_initialization(False):
        holds("delay_param_initialization(False) delays nothing", not Bare().scale.is_meta)
    with smp.delay_param_initialization():
        return smp.DistributedModel(Bare())


def error_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "no error"


def tied(marked):
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    smp.set_tensor_parallelism(model[marked])
    return model


def inside(modules, cls=nn.Module):
    model = cls()
    for name, module in modules.items():
        model.add_module(name, module)
    smp.set_tensor_parallelism(model)
    return model


def refused(folder):
    """Modules that cannot be distributed, and steps whose arguments do not fit; two tensor parallel ranks with equal samples."""
    shared = Mixer(4)
    outside = inside({"mixer": shared, "tied": nn.Linear(8, 8)})
    outside.tied.weight = shared.mix.weight
    late = type("Late", (nn.Linear,), {})(4, 4)
    smp.tp_register_with_module(type(late), DistributedMixer)
    report["refused"] = [
        error_of(lambda: smp.set_tensor_parallelism(late, fused_softmx=True)),
        error_of(lambda: smp.set_tensor_parallelism("model")),
        error_of(lambda: smp.DistributedModel(tied(0))),
        error_of(lambda: smp.DistributedModel(outside)),
        error_of(lambda: smp.DistributedModel(inside({"small": nn.Linear(1, 8)}))),
        error_of(lambda: smp.DistributedModel(inside({"normed": nn.Embedding(4, 4, max_norm=1.0)}))),
        error_of(lambda: smp.DistributedModel(inside({"late": late}))),
        error_of(lambda: smp.tp_register_with_module(Mixer, dict)),
    ]
    mixer = Mixer(4)
    smp.set_tensor_parallelism(mixer, use_alibi=True)
    report["refused"] += [error_of(lambda: smp.DistributedModel(mixer))]
    report["refused"] += [error_of(bare)]
    smp.shutdown()
    smp.init({"partitions": 1, "prescaled_batch": True, "tensor_parallel_degree": 2, "ddp": True})
    model = distributed()
    report["refused"] += [
        error_of(lambda: train_step(model, samples(0, smp.tp_rank()))),
        error_of(lambda: train_step(model, samples(0, 0)[: 4 + 2 * smp.tp_rank()])),
        error_of(lambda: smp.resume_from_checkpoint(folder.parent / "none", "one")),
    ]
    train_step(model, samples_of(0))


def language(folder):
    reports = report.setdefault("transformer", [])
    reports.append(transformer.trained(not reports, compare, note, holds))


def dropping(folder):
    transformer.dropping(holds)


def main(folder):
    both = {"tensor_parallel_degree": 2, "ddp": True}
    for phase, parameters in (
        (pipelined, {"partitions": 2, "microbatches": 4, **both}),
        (prescaled, {"partitions": 1, "prescaled_batch": True, "shard_optimizer_state": True, **both}),
        (wide, {"partitions": 1, "microbatches": 2, "tensor_parallel_degree": 4, "ddp": True}),
        (refused, {"partitions": 1, "prescaled_batch": True, **both}),
        (language, {"partitions": 2, "microbatches": 2, **both}),
        (language, {"partitions": 1, "prescaled_batch": True, **both}),
        (late, {"partitions": 2, **both}),
        (late, {"partitions": 1, "tensor_parallel_degree": 4, "ddp": True, "delayed_parameter_initialization": True}),
        (dropping, {"partitions": 1, "prescaled_batch": True, **both}),
        (low, {"partitions": 1, "bf16": True, **both}),
    ):
        smp.init(parameters)
        phase(folder)
        smp.barrier()
        smp.shutdown()
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
