"""The measurements of scripts/benches/modelparallel.py on each rank.

Arguments: the part, its options as JSON. Prints a line of JSON for each run."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import smdistributed.modelparallel.torch as smp

SIZE = int(os.environ["WORLD_SIZE"])
RANK = int(os.environ["RANK"])
FOLDER = Path(os.environ["SM_OUTPUT_DATA_DIR"])
WORDS = 40


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Stage(nn.Module):
    """A layer that sleeps *seconds* forward and twice that backward."""

    def __init__(self, width, seconds=0.0, layers=1):
        super().__init__()
        both = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
        self.layers = nn.Sequential(*both)
        self.seconds = seconds

    def forward(self, x):
        return Sleep.apply(self.layers(x), self.seconds) if self.seconds else self.layers(x)


class Chain(nn.Sequential):
    """A chain of a stage for each rank."""

    def place(self):
        per_rank = len(self) // SIZE
        for number, module in enumerate(self):
            smp.set_partition(module, min(SIZE - 1, number // per_rank))


def chain(width):
    return Chain(nn.Embedding(WORDS, width), *(Stage(width, layers=2) for _ in range(6)), nn.Linear(width, WORDS))


class Nested(nn.Module):
    """Blocks that call a shared module on another partition, and a head whose weight is the embedding's."""

    class Block(nn.Module):
        def __init__(self, width, shared):
            super().__init__()
            self.shared = shared
            self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x):
            return x + self.second(torch.tanh(self.first(self.shared(x))))

    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        shared = Stage(width)
        self.blocks = nn.ModuleList(self.Block(width, shared) for _ in range(4))
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def place(self):
        for number, block in enumerate(self.blocks):
            smp.set_partition(block, (number + 1) % SIZE)
            smp.set_partition(block.first, number % SIZE)
        smp.set_partition(self.blocks[0].shared, SIZE - 1)


@contextlib.contextmanager
def run(build, name, *, path="chain", microbatches, pipeline, checkpointed=False, **parameters):
    """Yield the DistributedModel of build() under *parameters*, its timeline below the folder *name*."""
    os.environ["SM_OUTPUT_DATA_DIR"] = str(FOLDER / name)
    os.environ["TOOLKIT_SMP_CHAIN"] = "off" if path == "server" else ""
    manual = {"partitions": SIZE, "auto_partition": False, "default_partition": 0}
    smp.init({**manual, "microbatches": microbatches, "pipeline": pipeline, **parameters})
    torch.manual_seed(5)
    module = build()
    module.place()
    model = smp.DistributedModel(module)
    if checkpointed:
        smp.set_activation_checkpointing(module)
    yield model
    smp.barrier()
    smp.shutdown()


def recorded(name):
    """This rank's recorded steps."""
    file = next((FOLDER / name).glob(f"modelparallel/timeline-{RANK}.jsonl"))
    return [json.loads(line) for line in file.read_text().splitlines()]


def stepper(model, loss_of):
    @smp.step
    def train(x, y):
        loss = loss_of(model(x), y)
        model.backward(loss)
        return loss

    return train


def accumulated(model, x, y, microbatches, loss_of):
    losses = []
    for some, their in zip(x.chunk(microbatches), y.chunk(microbatches)):
        loss = loss_of(model(some), their)
        (loss / microbatches).backward()
        losses.append(loss.item())
    return losses


def gradients(steps, counts, pipelines):
    for name, build in {"chain": lambda: chain(24), "nested": lambda: Nested(16)}.items():
        for pipeline in pipelines:
            for count in counts:
                folder_name = f"{name}-{pipeline}-{count}"
                with run(build, folder_name, microbatches=count, pipeline=pipeline) as partitioned:
                    row = compared(partitioned, build, count, steps)
                paths = sorted({step["path"] for step in recorded(folder_name)})
                yield {"model": name, "pipeline": pipeline, "microbatches": count, "paths": paths, **row}


def compared(partitioned, build, count, steps):
    train = stepper(partitioned, F.cross_entropy)
    torch.manual_seed(5)
    theirs = build()
    names = dict(theirs.named_parameters())
    ids, labels = torch.randint(0, WORDS, (2, 32))
    errors = []
    for number in range(2 + steps):
        losses = [loss.item() for loss in train(ids, labels).outputs]
        expected = accumulated(theirs, ids, labels, count, F.cross_entropy)
        for name, own_value in partitioned.local_named_parameters():
            if number < 2:  # At equal weights. A chain's first step goes through the server, the second does not.
                errors.append(((own_value.grad - names[name].grad).norm() / names[name].grad.norm()).item())
        with torch.no_grad():
            for parameter in (*partitioned.local_parameters(), *theirs.parameters()):
                if number >= 2:
                    parameter -= 0.2 * parameter.grad
                parameter.grad = None
    return {
        "gradients": max(errors),
        "losses": max(abs(loss / other - 1) for loss, other in zip(losses, expected)),
        "bytes": sum(
            parameter.untyped_storage().nbytes()
            for parameter in partitioned.parameters()
            if parameter.device.type != "meta"
        ),
        "whole": sum(parameter.numel() * parameter.element_size() for parameter in theirs.parameters()),
    }


def timed(step, steps):
    times = []
    for _ in range(steps):
        dist.barrier()
        began = time.perf_counter()
        step()
        dist.barrier()
        times.append(time.perf_counter() - began)
    return times


def bubble(pad_s, counts, pipelines, layouts):
    x = y = torch.randn(32, 8)
    for path, modules in layouts:
        for pipeline in pipelines:
            for count in counts:
                folder_name = f"{path}-{modules}-{pipeline}-{count}"
                build = lambda: Chain(*(Stage(8, pad_s / modules) for _ in range(SIZE * modules)))  # noqa: E731, B023
                with run(build, folder_name, path=path, microbatches=count, pipeline=pipeline) as model:
                    train = stepper(model, F.mse_loss)
                    timed(lambda: train(x, y), 4)  # noqa: B023
                steps = [extent(step["spans"]) for step in recorded(folder_name) if step["path"] == path]
                yield {"path": path, "modules": modules, "pipeline": pipeline, "microbatches": count, "steps": steps}


def backward_order(pad_s, modules):
    """The microbatches of this rank's backward passes, module by module, in the order in which they ran."""
    build = lambda: Chain(*(Stage(8, pad_s / modules) for _ in range(SIZE * modules)))  # noqa: E731
    x = y = torch.randn(32, 8)
    with run(build, "order", path="server", microbatches=4, pipeline="simple") as model:
        train = stepper(model, F.mse_loss)
        for _ in range(4):
            train(x, y)
    yield [span["microbatch"] for span in recorded("order")[-1]["spans"] if span["kind"] == "backward"]


def extent(spans):
    """Return the begin of the first span, the end of the last, and the time in spans."""
    begins, ends = [span["begin_ns"] for span in spans], [span["end_ns"] for span in spans]
    return min(begins), max(ends), sum(ends) - sum(begins)


def memory(counts, paths):
    width, rows = 64, 32
    for path in paths:
        for pipeline in ("simple", "interleaved"):
            for count in counts:
                for checkpointed in (False, True):
                    folder_name = f"{path}-{pipeline}-{count}-{checkpointed}"
                    build = lambda: Chain(*(Stage(width, layers=8) for _ in range(SIZE)))  # noqa: E731
                    x = torch.randn(rows * count, width)
                    options = {"path": path, "microbatches": count, "pipeline": pipeline}
                    with run(build, folder_name, checkpointed=checkpointed, **options) as model:
                        train = stepper(model, F.mse_loss)
                        for _ in range(4):
                            train(x, x)
                    saved = max(step["peak_activation_bytes"] for step in recorded(folder_name) if step["path"] == path)
                    # The microbatches' inputs are views of the whole batch, which the caller keeps anyway.
                    if RANK == 0 or (RANK == SIZE - 1 and path == "chain"):
                        saved -= x.untyped_storage().nbytes()
                    yield {**options, "checkpointed": checkpointed, "saved": saved}


def checkpointing(tries):
    """A step with and without activation checkpointing, in turns of whole runs."""
    x = torch.randn(256, 512)
    build = lambda: Chain(*(Stage(512, layers=4) for _ in range(SIZE)))  # noqa: E731
    for number in range(3):
        for checkpointed in (False, True):
            folder_name = f"checkpointing-{number}-{checkpointed}"
            with run(build, folder_name, checkpointed=checkpointed, microbatches=4, pipeline="interleaved") as model:
                train = stepper(model, F.mse_loss)
                times = timed(lambda: train(x, x), tries + 3)  # noqa: B023
            saved = max(step["peak_activation_bytes"] for step in recorded(folder_name) if step["path"] == "chain")
            yield {"checkpointed": checkpointed, "seconds": sorted(times[3:])[tries // 2], "saved": saved}


def turns(tries, counts, pipelines, paths, pads):
    """Steps beside a pipeline by hand, one after the other."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    width = 512
    for pad_s in pads:
        for path in paths:
            for pipeline in pipelines:
                for count in counts:
                    x, y = torch.randn(2, 256, width)
                    build = lambda: Chain(*(Stage(width, pad_s, layers=4) for _ in range(SIZE)))  # noqa: E731
                    folder_name = f"turns-{pad_s}-{path}-{pipeline}-{count}"
                    with run(build, folder_name, path=path, microbatches=count, pipeline=pipeline) as model:
                        train = stepper(model, F.mse_loss)
                        stage = PipelineStage(build()[RANK], RANK, SIZE, torch.device("cpu"))
                        kind = ScheduleGPipe if pipeline == "simple" else Schedule1F1B
                        schedule = kind(stage, count, loss_fn=F.mse_loss)
                        target = {} if RANK < SIZE - 1 else {"target": y}
                        first = (x,) if RANK == 0 else ()
                        ways = {"ours": lambda: train(x, y), "theirs": lambda: schedule.step(*first, **target)}  # noqa: B023
                        times = {name: [] for name in ways}
                        for number in range(tries + 3):
                            for name in sorted(ways, reverse=number % 2 == 0):
                                times[name] += timed(ways[name], 1)
                    options = {"path": path, "pipeline": pipeline, "microbatches": count, "pad_s": pad_s}
                    yield {**options, **{name: several[3:] for name, several in times.items()}}


def profile(rows):
    """The profiling pass, beside a step."""
    ids, labels = torch.randint(0, WORDS, (2, rows))
    for name, build in {"chain": lambda: chain(512), "nested": lambda: Nested(512)}.items():
        smp.init({"partitions": SIZE, "microbatches": 2})
        module = build()
        model = smp.DistributedModel(module, trace_execution_times=True, trace_memory_usage=True)
        train = stepper(model, F.cross_entropy)
        times = timed(lambda: train(ids, labels), 4)  # noqa: B023
        decision = model.decision
        report = {"method": decision.method, "profiled by": decision.profiled_by, "reason": decision.reason}
        smp.barrier()
        smp.shutdown()
        yield {"model": name, "modules": len(list(module.modules())), "seconds": min(times[1:]), **report}


PARTS = {
    function.__name__: function
    for function in (gradients, bubble, memory, checkpointing, turns, profile, backward_order)
}

torch.set_num_threads(1)
for row in PARTS[sys.argv[1]](**json.loads(sys.argv[2])):
    print(json.dumps(row), flush=True)
