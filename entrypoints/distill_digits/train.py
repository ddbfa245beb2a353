"""Distil a small Vision Transformer (the student) from a larger one (the teacher), on handwritten digits, over smddp.

The recipe of a published story of KT's with SageMaker's data parallel library: the teacher stays as it is, the student
learns its scores; DistributedDataParallel over backend "smddp" under its old import name, ZeroRedundancyOptimizer, so
that each rank keeps only its share of the optimizer's state, and autocast to bfloat16. Here the teacher is trained
first, in the same job and the same way, because there is none to download.

A plain PyTorch script for the toolkit's smddp launcher (`toolkit run entrypoints/distill_digits/job.toml`); without a
launcher it runs as one process and imports nothing old. Data: the 1,797 images of `sklearn.datasets.load_digits`, one
fifth held out; `accuracy` is measured on it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SIDE = 8  # pixels
CLASSES = 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A student Vision Transformer learns from a teacher.")
    parser.add_argument("--teacher-epochs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=16, help="of the student")
    parser.add_argument("--batch-size", type=int, default=64, help="images a step, over all ranks together")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="falls to a tenth, in a line")
    parser.add_argument("--teacher-dim", type=int, default=96, help="width of a token; a multiple of 4")
    parser.add_argument("--dim", type=int, default=32, help="of the student")
    parser.add_argument("--temperature", type=float, default=2.0, help="divides the scores before they are compared")
    parser.add_argument(
        "--share", type=float, default=0.7, help="of the teacher in the student's loss, the labels' rest"
    )
    parser.add_argument("--loader-workers", type=int, default=0, help="processes of each rank that prepare batches")
    parser.add_argument("--zero", choices=("on", "off"), default="on", help="off: each rank holds all optimizer state")
    parser.add_argument("--autocast", choices=("on", "off"), default="on", help="off: compute in float32")
    parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", "0")))
    parser.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    parser.add_argument("--model-dir", type=Path, default=Path(os.environ.get("SM_MODEL_DIR", "model")))
    return parser.parse_args()


class VisionTransformer(nn.Module):
    """Patches of 2 x 2 pixels -> tokens -> blocks -> mean of the tokens -> scores."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.place = nn.Parameter(torch.randn(1, 16, dim) * 0.5)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, functional.gelu, batch_first=True, norm_first=True)
                for _ in range(depth)
            ),
            nn.LayerNorm(dim),
        )
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(1, 2).flatten(2)
        scores: Tensor = self.head(self.blocks(self.embed(patches) + self.place).mean(1))
        return scores


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels; a batch is fetched at once, by the list of its indices."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, part: list[int]) -> tuple[Tensor, Tensor]:
        return self.images[part], self.labels[part]


class Job:
    """One rank's part of the job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rank, self.size = options, options.rank, options.world_size
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        elif "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        if "RANK" in os.environ:
            import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend

            dist.init_process_group(backend="smddp", rank=options.rank, world_size=options.world_size)
        else:
            store = dist.HashStore()
            dist.init_process_group(backend="gloo", store=store, rank=0, world_size=1)
        from sklearn.datasets import load_digits

        found = load_digits()
        order = torch.randperm(len(found.images), generator=torch.Generator().manual_seed(1))
        images = (torch.as_tensor(found.images, dtype=torch.float32) / 8 - 1)[order]
        labels = torch.as_tensor(found.target, dtype=torch.int64)[order]
        held = len(images) // 5
        self.held = (images[:held].to(self.device), labels[:held].to(self.device))
        self.train = Digits(images[held:], labels[held:])
        self.share = options.batch_size // self.size
        if self.share * self.size != options.batch_size:
            raise SystemExit(f"--batch-size: expected a multiple of {self.size} ranks, got {options.batch_size}")

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def teacher(self) -> nn.Module:
        """Return the teacher, trained on the labels; nothing of it changes any more."""
        torch.manual_seed(1)
        model = VisionTransformer(self.options.teacher_dim, depth=3).to(self.device)

        def loss(scores: Tensor, _images: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(scores, labels)

        self.learn("teacher", model, self.options.teacher_epochs, loss)
        return model.requires_grad_(False).eval()

    def student(self, teacher: nn.Module) -> nn.Module:
        """Return the student, trained on the teacher's scores and a little on the labels."""
        torch.manual_seed(2)
        model = VisionTransformer(self.options.dim, depth=2).to(self.device)
        heat, share = self.options.temperature, self.options.share

        def loss(scores: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                taught = functional.log_softmax(teacher(images).float() / heat, 1)
            said = functional.log_softmax(scores / heat, 1)
            soft = functional.kl_div(said, taught, reduction="batchmean", log_target=True) * heat**2
            return share * soft + (1 - share) * functional.cross_entropy(scores, labels)

        self.learn("student", model, self.options.epochs, loss)
        return model

    def learn(
        self, name: str, model: nn.Module, epochs: int, loss_of: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        """Train *model* in place."""
        parallel = DistributedDataParallel(model)
        optimizer = self.optimizer(parallel)
        steps = len(self.train) // self.options.batch_size
        for epoch in range(epochs):
            begun, total = time.perf_counter(), torch.zeros((), device=self.device)
            for step, (images, labels) in enumerate(self.batches(epoch, steps)):
                rate = self.options.learning_rate * (1 - 0.9 * (epoch * steps + step) / (epochs * steps))
                for group in optimizer.param_groups:
                    group["lr"] = rate
                images, labels = images.to(self.device), labels.to(self.device)
                with self.autocast():
                    loss = loss_of(parallel(images).float(), images, labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                total += loss.detach()
            step_time = (time.perf_counter() - begun) / steps
            dist.all_reduce(total)
            self.say(
                f"{name}: epoch={epoch + 1} step={(epoch + 1) * steps} loss={total.item() / steps / self.size:.4f} "
                f"accuracy={self.accuracy(model):.4f} step_time={step_time:.4f}"
            )
        self.tell_state(name, optimizer, sum(weight.nbytes for weight in model.parameters()))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AdamW; under --zero on, each rank holds and updates only its share of the state."""
        rate, decay = self.options.learning_rate, 0.02
        if self.options.zero == "off":
            return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
        return ZeroRedundancyOptimizer(
            model.parameters(),
            optimizer_class=torch.optim.AdamW,
            parameters_as_bucket_view=True,  # One broadcast a rank and step, not one a parameter.
            lr=rate,
            weight_decay=decay,
        )

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.options.autocast == "on")

    def batches(self, epoch: int, steps: int) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return this rank's batches of the epoch: images of shape (batch / ranks, 8, 8) and labels."""
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(1000 + epoch)).tolist()
        first, batch = self.rank * self.share, self.options.batch_size
        parts = [order[at + first : at + first + self.share] for at in range(0, steps * batch, batch)]
        return DataLoader(
            self.train, batch_sampler=parts, num_workers=self.options.loader_workers, collate_fn=lambda made: made
        )

    def accuracy(self, model: nn.Module) -> float:
        images, labels = self.held
        part = slice(self.rank, None, self.size)
        with torch.inference_mode(), self.autocast():
            right = (model(images[part]).argmax(1) == labels[part]).sum()
        dist.all_reduce(right)
        return right.item() / len(images)

    def tell_state(self, name: str, optimizer: torch.optim.Optimizer, weight_bytes: int) -> None:
        """Print the optimizer state that each rank really holds."""
        held = sum(
            value.nbytes
            for state in getattr(optimizer, "optim", optimizer).state.values()
            for value in state.values()
            if torch.is_tensor(value)
        )
        every = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(every, torch.tensor([held], device=self.device))
        each = [int(one) for one in every]
        self.say(
            f"{name}: optimizer_state_bytes={max(each)} on the fullest of {self.size} ranks ({each}, all {sum(each)})"
            f" for {weight_bytes} bytes of weights"
        )


def main() -> None:
    options = parse()
    job = Job(options)
    teacher = job.teacher()
    student = job.student(teacher)
    sizes = {
        name: sum(w.numel() for w in one.parameters()) for name, one in (("teacher", teacher), ("student", student))
    }
    accuracy = job.accuracy(student)
    job.say(f"accuracy={accuracy:.4f} student_weights={sizes['student']} teacher_weights={sizes['teacher']}")
    if job.rank == 0:
        options.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(student.state_dict(), options.model_dir / "student.pt")
        about = {"accuracy": accuracy, "weights": sizes, "ranks": job.size, "backend": dist.get_backend()}
        (options.model_dir / "metadata.json").write_text(json.dumps(about, indent=2) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
