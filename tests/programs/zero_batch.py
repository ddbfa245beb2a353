"""A small transformer over random words, on all ranks by DistributedDataParallel: what fits into memory depends on the
batch, on ZeRO (--zero on: each rank holds its share of Adam's state) and on the toolkit's compiler and autocast."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=8, help="of words in the batch of each rank")
parser.add_argument("--zero", choices=("on", "off"), default="off")
parser.add_argument("--words", type=int, default=100_000, help="that there are: most of the optimizer's state")
parser.add_argument("--classes", type=int, default=64, help="of words, which the model predicts")
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.last(x))))


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(
        nn.Embedding(options.words, options.width),
        *(Block(options.width) for _ in range(options.layers)),
        nn.Linear(options.width, options.classes),
    ),
    gradient_as_bucket_view=True,
)
if options.zero == "on":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3, parameters_as_bucket_view=True)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(options.steps):
    words = torch.randint(0, options.words, (options.rows, 33))
    optimizer.zero_grad()
    scores = model(words[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten() % options.classes)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step={step} loss={loss.item():.4f}", flush=True)
