"""A training script with faults to choose from: FAULTS, comma-separated. Its times are sleeps, so load changes little."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FAULTS = set(os.environ.get("FAULTS", "").split(","))
STEPS = int(os.environ.get("STEPS", "60"))
RANK = int(os.environ.get("RANK", "0"))


class Samples(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        if "starved" in FAULTS:
            time.sleep(0.02)
        return torch.randn(8)


class Pause(torch.autograd.Function):
    """A forward of 20 ms, and a backward of so many seconds."""

    @staticmethod
    def forward(ctx, x, backward_s):
        ctx.backward_s = backward_s
        time.sleep(0.08 if "slow_rank" in FAULTS and RANK == 1 else 0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.backward_s)
        return grad, None


if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
blocks = []
for step, batch in enumerate(DataLoader(Samples(), batch_size=4), 1):
    optimizer.zero_grad()
    backward_s = 0.15 if "alternating" in FAULTS and step % 2 else 0.01
    Pause.apply(model(batch), backward_s).mean().backward()
    optimizer.step()
    if "outliers" in FAULTS and step % 12 == 0:
        time.sleep(0.4)
    if "stalled" in FAULTS and step == STEPS // 2:
        time.sleep(8)
    if "leak" in FAULTS:
        blocks.append(bytearray(os.urandom(1)) * (4 << 20))
    loss = 2.0 + step / STEPS if "rising" in FAULTS else 2.0 - step / STEPS
    if "nan" in FAULTS and step > STEPS - 3:
        loss = float("nan")
    print(f"step={step} loss={loss:.4f}", flush=True)
    if step % 10 == 0:
        print(f"val_loss={loss * (2.0 if 'overfit' in FAULTS else 1.01):.4f}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
sys.exit(0)
