"""Train a small convolutional network on handwritten digits (8x8 grey pixels, 10 classes) with Horovod, on CPUs.

A plain Horovod script: `hvd.init()` finds the ranks that a launcher started (`toolkit run job.toml`, mpirun,
horovodrun). Alone, without MPI: `HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo python train.py`.
Arguments for the hyperparameters, SM_* variables for the folders (all have defaults).

Data: the 1,797 images of `sklearn.datasets.load_digits`, or `digits.npz` (arrays `images` n x 8 x 8 and `labels` n)
in the channel `train`. One fifth is held out; `accuracy` is measured on it.
Stops: on SIGTERM the ranks finish the step they are in, save a checkpoint and exit with 0; started again with the same
checkpoint folder, the run goes on at the very step where it stopped and ends with the same weights.
"""

import argparse
import io
import json
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType


class StopRequest:
    """Remembers a SIGTERM; `wanted` is looked at between steps, never inside a collective."""

    def __init__(self) -> None:
        self.wanted = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.wanted = True


STOP = StopRequest()  # Before torch, whose import takes seconds: a SIGTERM during it must not kill this rank.

import horovod.torch as hvd  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

CLASSES = 10


def parse() -> argparse.Namespace:
    """Return the hyperparameters and folders. Names may be spelled with dashes or underscores."""
    parser = argparse.ArgumentParser(description="A small convolutional network on handwritten digits, with Horovod.")

    def add(name: str, kind: type, default: object, meaning: str) -> None:
        parser.add_argument(
            *dict.fromkeys([name, "--" + name[2:].replace("-", "_")]), type=kind, default=default, help=meaning
        )

    model = Path(os.environ.get("SM_MODEL_DIR", "model"))
    add("--epochs", int, 6, "passes over the training images")
    add("--batch-size", int, 64, "images a step, over all ranks together")
    add("--learning-rate", float, 5e-3, "its peak, at the start; down a cosine to 0")
    add("--width", int, 24, "channels of the first convolution")
    add("--seed", int, 1, "of weights, split and order")
    add("--log-interval", int, 10, "steps between two metric lines")
    add("--train", Path, os.environ.get("SM_CHANNEL_TRAIN"), "folder that may hold digits.npz")
    add("--model-dir", Path, model, "where the model goes")
    add("--output-data-dir", Path, os.environ.get("SM_OUTPUT_DATA_DIR", "output"), "where the confusion table goes")
    add("--checkpoint-dir", Path, model.parent / "checkpoints", "where checkpoints are kept and looked for")
    return parser.parse_args()


def network(width: int) -> nn.Module:
    """Return images n x 8 x 8 -> scores n x 10."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, CLASSES),
    )


class Digits:
    """Images (values -1 to 1) and labels, split by the seed, the same on every rank."""

    def __init__(self, folder: Path | None, seed: int) -> None:
        images, labels = read_digits(folder)
        order = torch.randperm(len(images), generator=seeded(seed))
        images, labels = images[order], labels[order]
        held = len(images) // 5
        self.held_images, self.held_labels = images[:held], labels[:held]
        self.images, self.labels = images[held:], labels[held:]

    def steps(self, batch_size: int) -> int:
        return len(self.images) // batch_size

    def epoch(self, epoch: int, seed: int, batch_size: int) -> Tensor:
        """Return the indices of each step of *epoch*, steps x batch; what does not fill a batch is left out."""
        order = torch.randperm(len(self.images), generator=seeded(seed, 1, epoch))
        return order[: self.steps(batch_size) * batch_size].view(-1, batch_size)


def read_digits(folder: Path | None) -> tuple[Tensor, Tensor]:
    """Return images and labels from *folder*/digits.npz if it is there, else scikit-learn's."""
    if folder and (folder / "digits.npz").exists():
        with np.load(folder / "digits.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
    else:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images, labels = bunch.images, bunch.target
    return torch.as_tensor(images, dtype=torch.float32) / 8 - 1, torch.as_tensor(labels, dtype=torch.int64)


def seeded(*numbers: int) -> torch.Generator:
    """Return a generator that depends on *numbers* only."""
    mixed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(mixed % 2**63)


def save(path: Path, state: object) -> None:
    """Write *state* so that *path* is absent, the old or the new one at any moment, and never a part of it."""
    content = io.BytesIO()
    torch.save(state, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        unfinished.write_bytes(content.getbuffer())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class Training:
    """The run of one rank: weights, optimizer and the number of steps done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.digits = Digits(options.train, options.seed)
        self.share = options.batch_size // hvd.size()
        if self.share < 1 or self.share * hvd.size() != options.batch_size:
            sys.exit(f"--batch-size: expected a multiple of the {hvd.size()} ranks, got {options.batch_size}")
        self.steps_per_epoch = self.digits.steps(options.batch_size)
        if self.steps_per_epoch < 1:
            sys.exit(f"--batch-size: expected at most {len(self.digits.images)} (the images), got {options.batch_size}")
        torch.manual_seed(options.seed)
        self.model = network(options.width)
        plain = torch.optim.AdamW(self.model.parameters(), lr=options.learning_rate)
        self.optimizer = hvd.DistributedOptimizer(plain, named_parameters=self.model.named_parameters())
        self.step = 0
        self.checkpoint = options.checkpoint_dir / "checkpoint.pt"
        self.resume()  # After the wrapping, which makes a new optimizer and forgets the old one's moments.
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def resume(self) -> None:
        """Take up rank 0's checkpoint if there is one; the other ranks may not see its disk."""
        state = None
        if hvd.rank() == 0 and self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
        # With a name: by itself it is called after its type, which only rank 0 knows, and the ranks wait for ever.
        state = hvd.broadcast_object(state, root_rank=0, name="checkpoint")
        if state is None:
            return
        if state["width"] != self.options.width:
            sys.exit(
                f"{self.checkpoint}: made with --width {state['width']}, this job has {self.options.width}: "
                "use another folder"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        self.say(f"resumed from {self.checkpoint} after step {self.step}")

    def save_checkpoint(self) -> None:
        if hvd.rank() == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            save(self.checkpoint, {**state, "step": self.step, "width": self.options.width})

    def run(self) -> bool:
        """Train to the end and return True, or until a stop is asked for and return False."""
        self.say(
            f"training on {len(self.digits.images)} images, {len(self.digits.held_images)} held out: "
            f"{hvd.size()} ranks x {self.share} images a step, {torch.get_num_threads()} threads each, "
            f"{sum(weight.numel() for weight in self.model.parameters())} weights"
        )
        for epoch in range(self.step // self.steps_per_epoch, self.options.epochs):
            if not self.run_epoch(epoch):
                self.save_checkpoint()
                self.say(f"stopped on request: checkpoint saved after step {self.step}")
                return False
            self.save_checkpoint()
        return True

    def run_epoch(self, epoch: int) -> bool:
        """Train what is left of *epoch* (counted from 0) and measure; False if a stop was asked for."""
        options, started, begun_at = self.options, time.perf_counter(), self.step
        part = slice(hvd.rank() * self.share, (hvd.rank() + 1) * self.share)
        losses: list[float] = []
        for batch in self.digits.epoch(epoch, options.seed, options.batch_size)[self.step % self.steps_per_epoch :]:
            loss, stop = self.take_step(self.digits.images[batch[part]], self.digits.labels[batch[part]])
            losses.append(loss)
            if self.step % options.log_interval == 0:
                self.say(f"epoch={epoch + 1} step={self.step} loss={loss:.4f} learning_rate={self.rate:.3e}")
            if stop:
                return False
        step_time = (time.perf_counter() - started) / max(1, self.step - begun_at)
        table = self.confusion()
        self.say(
            f"epoch={epoch + 1} step={self.step} loss={sum(losses) / max(1, len(losses)):.4f} "
            f"accuracy={float(table.trace() / table.sum()):.4f} step_time={step_time:.4f} "
            f"images_per_second={options.batch_size / step_time:.0f}"
        )
        return True

    def take_step(self, images: Tensor, labels: Tensor) -> tuple[float, bool]:
        """Return the loss over all ranks, and True if any rank was asked to stop: one mean tells both to every rank.

        So all ranks leave the loop after the same step, and none waits in a collective for one that has left.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        told = hvd.allreduce(torch.stack([loss.detach(), torch.tensor(float(STOP.wanted))]), name="told")
        return float(told[0]), float(told[1]) > 0

    @property
    def rate(self) -> float:
        """The learning rate after the steps that are done."""
        done = self.step / (self.options.epochs * self.steps_per_epoch)
        return float(self.options.learning_rate) * 0.5 * (1 + math.cos(math.pi * done))

    @torch.inference_mode()
    def confusion(self) -> Tensor:
        """Return how often each digit (row) was read as which (column), over all held-out images."""
        part = slice(hvd.rank(), None, hvd.size())
        read = self.model(self.digits.held_images[part]).argmax(1)
        table = torch.bincount(self.digits.held_labels[part] * CLASSES + read, minlength=CLASSES**2)
        summed: Tensor = hvd.allreduce(table, op=hvd.Sum, name="confusion")
        return summed.view(CLASSES, CLASSES)

    def finish(self) -> None:
        """Write the model, what it takes to use it, and the confusion table; rank 0's work."""
        table = self.confusion()
        if hvd.rank() != 0:
            return
        accuracy = float(table.trace() / table.sum())
        save(self.options.model_dir / "model.pt", self.model.state_dict())
        about = {"width": self.options.width, "labels": list(range(CLASSES)), "pixel": "value / 8 - 1"}
        about |= {"accuracy": accuracy, "steps": self.step, "ranks": hvd.size(), "torch": torch.__version__}
        write_json(self.options.model_dir / "metadata.json", about)
        write_json(self.options.output_data_dir / "confusion.json", table.tolist())
        self.say(f"accuracy={accuracy:.4f} model={self.options.model_dir / 'model.pt'}")

    def say(self, text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    options = parse()
    hvd.init()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    training = Training(options)
    if training.run():
        training.finish()
    hvd.shutdown()


if __name__ == "__main__":
    main()
