"""A loop with Accelerate and gradient accumulation, its parts measured by a clock of its own."""

import argparse

import torch
from accelerate import Accelerator
from clock import Clock, compute
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--data-ms", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=2)
options = parser.parse_args()
torch.set_num_threads(1)
clock = Clock()
BATCH = 32


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return options.steps * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        compute(options.data_ms / 1000 / BATCH)
        return torch.randn(512), torch.tensor(index % 10)


accelerator = Accelerator(gradient_accumulation_steps=options.accumulate, cpu=True)
layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10))
model, optimizer, loader = accelerator.prepare(
    layers, torch.optim.AdamW(layers.parameters(), lr=1e-4), DataLoader(Samples(), BATCH)
)
with clock.part("data"):
    batches = iter(loader)
step = 0
while True:
    with clock.part("data"):
        batch = next(batches, None)
    if batch is None:
        break
    step += 1
    with accelerator.accumulate(model):
        with clock.part("forward"):
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        with clock.part("backward"):
            accelerator.backward(loss)
        with clock.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step={step} loss={loss.item():.4f}", flush=True)
clock.write()
