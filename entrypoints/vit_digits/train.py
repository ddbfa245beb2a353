"""Train a small Vision Transformer on handwritten digits (8x8 grey pixels, 10 classes), in one process or many.

A plain PyTorch script: arguments for the hyperparameters, SM_* variables for the folders (all have defaults, so that
`python train.py --epochs 2` works on a laptop), DistributedDataParallel where a launcher set RANK and WORLD_SIZE.

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

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

SIDE = 8  # pixels
CLASSES = 10
SHAPE = ("dim", "depth", "heads", "patch_size")  # the hyperparameters that a checkpoint's weights depend on


def parse() -> argparse.Namespace:
    """Return the hyperparameters and folders. Names may be spelled with dashes or underscores."""
    parser = argparse.ArgumentParser(description="A small Vision Transformer on handwritten digits.")

    def add(name: str, kind: type, default: object, meaning: str) -> None:
        parser.add_argument(
            *dict.fromkeys([name, "--" + name[2:].replace("-", "_")]), type=kind, default=default, help=meaning
        )

    model = Path(os.environ.get("SM_MODEL_DIR", "model"))
    add("--epochs", int, 20, "passes over the training images")
    add("--batch-size", int, 64, "images a step, over all ranks together")
    add("--learning-rate", float, 3e-3, "its peak; warmed up, then down a cosine to 0")
    add("--warmup-epochs", float, 2.0, "epochs until the peak")
    add("--weight-decay", float, 0.05, "of AdamW")
    add("--dim", int, 64, "width of a token")
    add("--depth", int, 3, "transformer blocks")
    add("--heads", int, 4, "attention heads")
    add("--patch-size", int, 2, "side of a patch in pixels; divides 8")
    add("--seed", int, 1, "of weights, split, order and shifts")
    add("--log-interval", int, 10, "steps between two metric lines")
    add("--train", Path, os.environ.get("SM_CHANNEL_TRAIN"), "folder that may hold digits.npz")
    add("--model-dir", Path, model, "where the model goes")
    add("--output-data-dir", Path, os.environ.get("SM_OUTPUT_DATA_DIR", "output"), "where the confusion table goes")
    add("--checkpoint-dir", Path, model.parent / "checkpoints", "where checkpoints are kept and looked for")
    options = parser.parse_args()
    if options.patch_size < 1 or SIDE % options.patch_size:
        parser.error(f"--patch-size: expected a divisor of {SIDE}, got {options.patch_size}")
    if options.heads < 1 or options.dim % options.heads:
        parser.error(f"--dim: expected a multiple of --heads ({options.heads}), got {options.dim}")
    return options


class Ranks:
    """This process among all of the job. Alone (no RANK in the environment) it joins nothing."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
        self.joined = "RANK" in os.environ and "WORLD_SIZE" in os.environ
        if cuda:
            torch.cuda.set_device(self.device)
        elif "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self.local_size))
        if self.joined:
            dist.init_process_group("nccl" if cuda else "gloo", device_id=self.device if cuda else None)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of every rank's *values*."""
        if self.joined:
            dist.all_reduce(values)
        return values

    def from_first(self, value: object) -> object:
        """Return rank 0's *value* on every rank."""
        box = [value]
        if self.joined:
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def leave(self) -> None:
        if self.joined:
            dist.barrier()
            dist.destroy_process_group()


class VisionTransformer(nn.Module):
    """Patches -> tokens -> transformer blocks -> mean of the tokens -> class scores."""

    def __init__(self, dim: int, depth: int, heads: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.embed = nn.Linear(patch_size**2, dim)
        # As large as the patches' own part: with the customary 0.02 the model is long blind to where a patch is.
        self.place = nn.Parameter(torch.randn(1, (SIDE // patch_size) ** 2, dim) * 0.5)
        # Blocks of their own, not nn.TransformerEncoder: that starts all of them with the same weights.
        self.blocks = nn.Sequential(*(transformer_block(dim, heads) for _ in range(depth)), nn.LayerNorm(dim))
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        size = self.patch_size
        patches = images.unfold(1, size, size).unfold(2, size, size).flatten(1, 2).flatten(2)
        scores: Tensor = self.head(self.blocks(self.embed(patches) + self.place).mean(1))
        return scores


def transformer_block(dim: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(
        dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class Digits:
    """Images (values about -1 to 1) and labels, split by the seed, the same on every rank."""

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


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return *images*, one in five moved by a pixel down or up, one in five right or left.

    Without, 97 % of the held-out images are read right, with it 99 %; more moves are too much for 8 pixels.
    """
    count = len(images)
    moves = torch.tensor([0, 2, *[1] * 8])[torch.randint(0, 10, (2, count, 1), generator=generator)]
    padded = functional.pad(images, (1, 1, 1, 1), value=-1.0)
    rows, columns = moves + torch.arange(SIDE)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def learning_rate(step: int, steps: int, warmup: float, peak: float) -> float:
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup)))


def save(path: Path, state: object) -> None:
    """Write *state* so that *path* is absent, the old or the new one at any moment, and never a part of it."""
    content = (
        io.BytesIO()
    )  # On a full disk torch.save into a file says "unexpected pos", this "No space left on device".
    torch.save(state, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class Training:
    """The run of one rank: weights, optimizer and the number of steps done."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        self.options, self.ranks = options, ranks
        self.digits = Digits(options.train, options.seed)
        self.share = options.batch_size // ranks.size
        if self.share < 1 or self.share * ranks.size != options.batch_size:
            sys.exit(f"--batch-size: expected a multiple of the {ranks.size} ranks, got {options.batch_size}")
        self.steps_per_epoch = self.digits.steps(options.batch_size)
        if self.steps_per_epoch < 1:
            sys.exit(f"--batch-size: expected at most {len(self.digits.images)} (the images), got {options.batch_size}")
        torch.manual_seed(options.seed)
        self.model = VisionTransformer(**{name: getattr(options, name) for name in SHAPE}).to(ranks.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, weight_decay=options.weight_decay)
        self.step = 0
        self.checkpoint = options.checkpoint_dir / "checkpoint.pt"
        self.resume()
        on_cuda = [ranks.device] if ranks.device.type == "cuda" else None
        self.parallel = DistributedDataParallel(self.model, device_ids=on_cuda) if ranks.joined else self.model

    @property
    def shape(self) -> dict[str, int]:
        return {name: getattr(self.options, name) for name in SHAPE}

    def resume(self) -> None:
        """Take up rank 0's checkpoint if there is one; the other ranks may not see its disk."""
        state = None
        if self.ranks.is_first and self.checkpoint.exists():
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        state = self.ranks.from_first(state)
        if not isinstance(state, dict):
            return
        if state["shape"] != self.shape:
            sys.exit(f"{self.checkpoint}: made with {state['shape']}, this job has {self.shape}: use another folder")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        self.say(f"resumed from {self.checkpoint} after step {self.step}")

    def save_checkpoint(self) -> None:
        if self.ranks.is_first:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            save(self.checkpoint, {**state, "step": self.step, "shape": self.shape})

    def run(self) -> bool:
        """Train to the end and return True, or until a stop is asked for and return False."""
        self.say(
            f"training on {len(self.digits.images)} images, {len(self.digits.held_images)} held out: "
            f"{self.ranks.size} ranks x {self.share} images a step, {torch.get_num_threads()} threads each, "
            f"{sum(weight.numel() for weight in self.model.parameters())} weights, {self.ranks.device.type}"
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
        first = self.ranks.rank * self.share
        self.parallel.train()
        losses: list[float] = []
        for batch in self.digits.epoch(epoch, options.seed, options.batch_size)[self.step % self.steps_per_epoch :]:
            images = shifted(self.digits.images[batch], seeded(options.seed, 2, self.step))
            part = slice(first, first + self.share)
            loss, stop = self.take_step(images[part], self.digits.labels[batch[part]])
            losses.append(loss)
            if self.step % options.log_interval == 0:
                self.say(f"epoch={epoch + 1} step={self.step} loss={loss:.4f} learning_rate={self.used_rate:.3e}")
            if stop:
                return False
        step_time = (time.perf_counter() - started) / max(1, self.step - begun_at)
        mean, accuracy = sum(losses) / max(1, len(losses)), self.measure()
        self.say(
            f"epoch={epoch + 1} step={self.step} loss={mean:.4f} accuracy={accuracy:.4f} step_time={step_time:.4f} "
            f"images_per_second={options.batch_size / step_time:.0f}"
        )
        return True

    def take_step(self, images: Tensor, labels: Tensor) -> tuple[float, bool]:
        """Return the loss over all ranks, and True if any rank was asked to stop: one sum tells both to every rank.

        So all ranks leave the loop after the same step, and none waits in a collective for one that has left.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        device = self.ranks.device
        loss = functional.cross_entropy(self.parallel(images.to(device)), labels.to(device), label_smoothing=0.05)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        told = self.ranks.sum(torch.stack([loss.detach(), torch.tensor(float(STOP.wanted), device=device)]))
        return float(told[0]) / self.ranks.size, float(told[1]) > 0

    @property
    def used_rate(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def rate(self) -> float:
        options, each = self.options, self.steps_per_epoch
        return learning_rate(self.step, options.epochs * each, options.warmup_epochs * each, options.learning_rate)

    @torch.inference_mode()
    def confusion(self) -> Tensor:
        """Return how often each digit (row) was read as which (column), over all held-out images."""
        self.model.eval()
        part = slice(self.ranks.rank, None, self.ranks.size)
        images, labels = self.digits.held_images[part].to(self.ranks.device), self.digits.held_labels[part]
        read = self.model(images).argmax(1).cpu()
        table = torch.bincount(labels * CLASSES + read, minlength=CLASSES**2).to(self.ranks.device)
        return self.ranks.sum(table).view(CLASSES, CLASSES).cpu()

    def measure(self) -> float:
        table = self.confusion()
        return float(table.diagonal().sum() / table.sum())

    def finish(self) -> None:
        """Write the model, what it takes to use it, and the confusion table; rank 0's work."""
        table = self.confusion()
        if not self.ranks.is_first:
            return
        accuracy = float(table.diagonal().sum() / table.sum())
        weights = {name: weight.cpu() for name, weight in self.model.state_dict().items()}
        save(self.options.model_dir / "model.pt", weights)
        about = {"shape": self.shape, "labels": list(range(CLASSES)), "image_side": SIDE, "pixel": "value / 8 - 1"}
        about |= {"accuracy": accuracy, "steps": self.step, "torch": torch.__version__}
        write_json(self.options.model_dir / "metadata.json", about)
        write_json(self.options.output_data_dir / "confusion.json", table.tolist())
        self.say(f"accuracy={accuracy:.4f} model={self.options.model_dir / 'model.pt'}")

    def say(self, text: str) -> None:
        if self.ranks.is_first:
            print(text, flush=True)


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    options = parse()
    ranks = Ranks()
    training = Training(options, ranks)
    if training.run():
        training.finish()
    ranks.leave()


if __name__ == "__main__":
    main()
