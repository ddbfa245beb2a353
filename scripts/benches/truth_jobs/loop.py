"""A loop of torch with planted troubles, measured by a clock of its own (clock.py). Without options it is healthy."""

import argparse
import fcntl
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch
from clock import Clock, compute
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1, help="the steps are divided among them")
    # Where batches come from, and what a batch costs.
    parser.add_argument("--data", choices=("memory", "generator", "iterable", "loader", "disk"), default="memory")
    parser.add_argument("--data-ms", type=float, default=0.0, help="CPU time of a batch, where it is made")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", type=int, default=1)
    parser.add_argument("--disk-mb", type=float, default=16.0, help="read from the disk for each batch")
    # The loop.
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--optimizers", type=int, default=1, help="2: a generator's and a discriminator's")
    parser.add_argument("--lbfgs", type=int, default=0)
    parser.add_argument("--bfloat16", type=int, default=0)
    parser.add_argument("--ddp", type=int, default=0)
    parser.add_argument("--compile", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, default=1, help="N: batches of 1 to N times the size, at random")
    parser.add_argument("--print-every", type=int, default=20)
    # What is done besides, or goes wrong.
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--evaluate-batches", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--save-mb", type=int, default=50)
    parser.add_argument("--save-at-end", type=int, default=0)
    parser.add_argument("--gc-every", type=int, default=0)
    parser.add_argument("--gc-objects", type=int, default=2_000_000)
    parser.add_argument("--lock-ms", type=float, default=0.0, help="another process holds a lock for so long each step")
    parser.add_argument("--network-ms", type=float, default=0.0, help="a server answers after so long in each step")
    parser.add_argument("--first-step-s", type=float, default=0.0)
    parser.add_argument("--grows-ms", type=float, default=0.0, help="the last step is so much longer than the first")
    parser.add_argument("--long-step-s", type=float, default=0.0, help="one step in the middle")
    parser.add_argument("--alternate-ms", type=float, default=0.0, help="every other step")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--leak-mb", type=float, default=0.0, help="kept by each step")
    parser.add_argument("--leak-rank", type=int, default=0)
    parser.add_argument("--loss", choices=("falls", "explodes", "nan"), default="falls")
    parser.add_argument("--fails-at", type=int, default=0)
    parser.add_argument("--sleep-s", type=float, default=0.0, help="after the last step")
    return parser.parse_args()


options = parse()
rank = int(os.environ.get("RANK", "0"))
clock = Clock()
torch.set_num_threads(options.threads)
torch.manual_seed(options.seed)


class Samples(Dataset):
    """Samples that cost `data-ms` for each batch, or are read from the disk."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        compute(options.data_ms / 1000 / options.batch)
        return torch.randn(options.width), torch.tensor(index % 10)


class DiskFile:
    """A file larger than a batch, whose pages leave the cache before they are read again."""

    def __init__(self) -> None:
        self.path = Path(os.environ.get("SM_OUTPUT_INTERMEDIATE_DIR", "/tmp"), f"samples-{rank}.bin")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.bytes = int(options.disk_mb * (1 << 20))
        with self.path.open("wb") as file:
            for _ in range(max(self.bytes >> 20, 1)):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for offset in range(0, self.bytes, 64 << 10):
                os.pread(fd, 64 << 10, offset)
        finally:
            os.close(fd)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    size = options.batch * (int(torch.randint(1, options.lengths + 1, ())) if options.lengths > 1 else 1)
    return torch.randn(size, options.width), torch.randint(0, 10, (size,))


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    file = DiskFile() if options.data == "disk" else None
    for _ in range(count):
        if file is not None:
            file.read()
        compute(options.data_ms / 1000)
        yield batch()


class Stream(IterableDataset):
    """Batches of an iterable data set, as WebDataset and a stream of `datasets` are."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return batches(self.count)


def source(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if options.data == "loader":
        samples = Samples(count * options.batch)
        return iter(DataLoader(samples, options.batch, num_workers=options.workers))
    if options.data == "iterable":
        return iter(DataLoader(Stream(count), batch_size=None))
    if options.data == "memory":
        # Of several sizes so many that they do not come again in turns.
        ready = [batch() for _ in range(8 if options.lengths == 1 else count)]
        return (ready[number % len(ready)] for number in range(count))
    return batches(count)


def sequential(width: int, depth: int = 4) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class LateLayer(nn.Module):
    """Takes `first-step-s` at its first call, as kernels that are built or tuned do."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ready = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.is_ready:
            self.is_ready = True
            compute(options.first_step_s)
        return values


def hold_lock(path: Path) -> None:
    """Hold the lock on *path* again and again, from another open file."""
    with path.open("w") as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(options.lock_ms / 1000)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.002)


def answer_late(server: socket.socket) -> None:
    connection, _ = server.accept()
    while connection.recv(1):
        time.sleep(options.network_ms / 1000)
        connection.sendall(b"x")


STATE = {"state": torch.zeros(options.save_mb << 18) if options.save_every or options.save_at_end else None}


def save(number: int) -> None:
    with clock.part("checkpoints"):
        folder = Path(os.environ.get("SM_MODEL_DIR", "/tmp"))
        torch.save(STATE, folder / f"model-{rank}-{number % 2}.pt")


def evaluate(model: nn.Module) -> None:
    with clock.part("evaluation"), torch.no_grad():
        model.eval()
        for _ in range(options.evaluate_batches):
            model(torch.randn(options.batch, options.width))
        model.train()


class Interruptions:
    """What the loop waits for before the forward pass of each step: a collection, a lock, an answer."""

    def __init__(self) -> None:
        self.objects = [[number] for number in range(options.gc_objects)] if options.gc_every else []
        self.lock: TextIO | None = None
        self.client: socket.socket | None = None
        if options.lock_ms:
            path = Path("/tmp", f"truth-{os.getpid()}.lock")
            parent = os.getpid()
            if os.fork() == 0:
                threading.Thread(target=watch_parent, args=(parent,), daemon=True).start()
                hold_lock(path)
            self.lock = path.open("w")
        if options.network_ms:
            server = socket.create_server(("127.0.0.1", 0))
            threading.Thread(target=answer_late, args=(server,), daemon=True).start()
            self.client = socket.create_connection(server.getsockname())

    def take_place(self, step: int) -> None:
        if options.gc_every and step % options.gc_every == 0:
            with clock.part("garbage collection"):
                gc.collect()
        if self.lock is not None:
            with clock.part("other"):
                fcntl.flock(self.lock, fcntl.LOCK_EX)
                fcntl.flock(self.lock, fcntl.LOCK_UN)
        if self.client is not None:
            with clock.part("other"):
                self.client.sendall(b"x")
                self.client.recv(1)


def make_model() -> nn.Module:
    model: nn.Module = sequential(options.width)
    if options.first_step_s:
        model = nn.Sequential(LateLayer(), model)
    if options.compile:
        model = torch.compile(model)
    return nn.parallel.DistributedDataParallel(model) if options.ddp else model


class Training:
    """The model, its optimizers, and one step of them."""

    def __init__(self) -> None:
        self.model = make_model()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        if options.lbfgs:
            self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=4)
        self.other = sequential(options.width, 2)
        self.other_optimizer = torch.optim.AdamW(self.other.parameters(), lr=1e-4)
        self.loss_of = nn.CrossEntropyLoss()

    def step(self, step: int, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            with clock.part("forward"):
                with torch.autocast("cpu", torch.bfloat16, enabled=bool(options.bfloat16)):
                    outputs = self.model(inputs)
                loss: torch.Tensor = self.loss_of(outputs.float(), labels)
                delay(step)
            with clock.part("backward"):
                loss.backward()
            return loss

        if options.lbfgs:
            with clock.part("optimizer"):
                self.optimizer.zero_grad()
                loss = self.optimizer.step(closure)
            clock.step_ended()
            return loss
        loss = closure()
        if step % options.accumulate == 0:
            self._update(self.optimizer)
            clock.step_ended()
        if options.optimizers == 2:
            with clock.part("forward"):
                other_loss = self.loss_of(self.other(inputs), labels)
            with clock.part("backward"):
                other_loss.backward()
            self._update(self.other_optimizer)
        return loss

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        with clock.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()


def finish_step(training: Training, step: int, loss: float) -> None:
    """Print, evaluate, save and fail, as planted."""
    if options.print_every and step % options.print_every == 0:
        print(f"step={step} loss={shown_loss(step, loss):.6g}", flush=True)
    if options.evaluate_every and step % options.evaluate_every == 0:
        evaluate(training.model)
    if options.save_every and step % options.save_every == 0:
        save(step)
    if step == options.fails_at:
        raise ValueError(f"expected labels below 10, found 12 at step {step}")


def batches_of_epochs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(options.epochs):
        with clock.part("data"):
            iterator = source(options.steps // options.epochs)
        while True:
            with clock.part("data"):
                pair = next(iterator, None)
            if pair is None:
                break
            yield pair


def main() -> None:
    if options.ddp:
        torch.distributed.init_process_group("gloo")
    training, interruptions = Training(), Interruptions()
    kept: list[bytearray] = []
    clock.begin_steps()
    for step, (inputs, labels) in enumerate(batches_of_epochs(), 1):
        interruptions.take_place(step)
        loss = training.step(step, inputs, labels)
        if options.leak_mb and rank == options.leak_rank:
            kept.append(bytearray(os.urandom(1 << 10) * int(options.leak_mb * 1024)))
        finish_step(training, step, loss.item())
    for number in range(options.save_at_end):
        save(number)
    time.sleep(options.sleep_s)
    clock.write(rank)
    if options.ddp:
        torch.distributed.destroy_process_group()


def watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


def delay(step: int) -> None:
    """Spend the planted time of *step* in the forward pass."""
    compute(options.grows_ms / 1000 * step / options.steps)
    if options.long_step_s and step == options.steps // 2:
        compute(options.long_step_s)
    if step % 2:
        compute(options.alternate_ms / 1000)
    if rank == options.slow_rank:
        compute(options.slow_ms / 1000)


def shown_loss(step: int, loss: float) -> float:
    if options.loss == "explodes":
        return loss * 10 ** (6 * max(step / options.steps - 0.5, 0) * 2)
    return float("nan") if options.loss == "nan" and step > options.steps // 2 else loss


if __name__ == "__main__":
    main()
