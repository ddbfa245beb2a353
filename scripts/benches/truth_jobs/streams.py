"""A loop over a stream of WebDataset or of datasets (Hugging Face), without a loader, measured by its own clock."""

import argparse
import io
import itertools
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from clock import Clock, compute
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--library", choices=("webdataset", "datasets"), required=True)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--data-ms", type=float, default=0.0, help="CPU time to make a batch")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
clock = Clock()
BATCH, WIDTH = 32, 512


def decode(sample: dict[str, bytes]) -> dict[str, torch.Tensor]:
    """Return the tensors of a sample, as a script decodes an image and its label."""
    compute(options.data_ms / 1000 / BATCH)
    values = torch.frombuffer(bytearray(sample["bin"]), dtype=torch.float32)
    return {"inputs": values, "labels": torch.tensor(int(sample["cls"]))}


def samples() -> Iterator[dict[str, bytes]]:
    for number in range(BATCH * 8):
        yield {"bin": torch.randn(WIDTH).numpy().tobytes(), "cls": b"%d" % (number % 10)}


def endless_samples() -> Iterator[dict[str, bytes]]:
    while True:
        yield from samples()


def write_shard(path: Path) -> str:
    """Write the samples as a tar file, as WebDataset reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as shard:
        for number, sample in enumerate(samples()):
            for ending, content in sample.items():
                about = tarfile.TarInfo(f"{number:06d}.{ending}")
                about.size = len(content)
                shard.addfile(about, io.BytesIO(content))
    return str(path)


def stream() -> Iterable[dict[str, torch.Tensor]]:
    if options.library == "webdataset":
        import webdataset

        shard = write_shard(Path(os.environ.get("SM_OUTPUT_INTERMEDIATE_DIR", "/tmp"), "samples-000000.tar"))
        return webdataset.WebDataset(shard, shardshuffle=False).repeat().map(decode)  # type: ignore[no-any-return]
    import datasets

    return datasets.IterableDataset.from_generator(endless_samples).map(decode)  # type: ignore[no-any-return]


def batches(source: Iterator[dict[str, torch.Tensor]]) -> Iterator[list[dict[str, torch.Tensor]]]:
    for _ in range(options.steps):
        with clock.part("data"):
            batch = list(itertools.islice(source, BATCH))
        yield batch


model = nn.Sequential(
    *(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())), nn.Linear(WIDTH, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
endless = iter(stream())
clock.begin_steps()
for step, batch in enumerate(batches(endless), 1):
    with clock.part("data"):
        inputs, labels = (torch.stack([sample[name] for sample in batch]) for name in ("inputs", "labels"))
    with clock.part("forward"):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    with clock.part("backward"):
        loss.backward()
    with clock.part("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    clock.step_ended()
    if step % 20 == 0:
        print(f"step={step} loss={loss.item():.4f}", flush=True)
clock.write()
