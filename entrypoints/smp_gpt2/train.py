"""A byte-level GPT-2 over several partitions, with SageMaker's model parallel library.

It learns the English of Python's own manual (pydoc_data, part of every Python). Run it under `train` or `toolkit run`,
which hand over mp_parameters.
"""

import argparse
import os
import time
from itertools import islice
from pydoc_data import topics

import smdistributed.modelparallel.torch as smp
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it.

BYTES = 256


class Embedding(nn.Module):
    """(batch, length) of bytes -> (batch, length, width)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(length, width)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.token(text) + self.position(places)


class Block(nn.Module):
    """Masked self-attention and a feed-forward layer: (batch, length, width) in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.before_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.before_feed_forward(x))


def gpt2(layers: int, width: int, heads: int, length: int) -> nn.Sequential:
    """Return the model: embedding, blocks, head."""
    blocks = [Block(width, heads) for _ in range(layers)]
    return nn.Sequential(Embedding(width, length), *blocks, nn.LayerNorm(width), nn.Linear(width, BYTES))


def data(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of length + 1 bytes of text for training and for validation, nine to one."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    whole = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = whole[: len(whole) // (length + 1) * (length + 1)].reshape(-1, length + 1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(7))
    cut = len(rows) * 9 // 10
    return rows[order[:cut]], rows[order[cut:]]


def batches(rows: torch.Tensor, size: int, seed: int):
    """Yield this replica's batches: every partition of a replica sees the same ones."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    whole = size * smp.dp_size()
    for start in range(0, len(order) - whole + 1, whole):
        first = start + size * smp.dp_rank()
        yield rows[order[first : first + size]]


def loss_of(logits: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, BYTES), text[:, 1:].reshape(-1))


@smp.step
def train_step(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model(text[:, :-1]), text)
    model.backward(loss)
    return loss


@smp.step
def test_step(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    return loss_of(model(text[:, :-1]), text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="rows of each replica")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60, help="of each epoch, at most")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--mp_parameters", help="the library's, which reads them itself (SM_HP_MP_PARAMETERS)")
    arguments = parser.parse_args()

    smp.init()
    torch.manual_seed(1)
    model = smp.DistributedModel(gpt2(arguments.layers, arguments.width, arguments.heads, arguments.length))
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate))
    training, validation = data(arguments.length)
    step = -1
    for epoch in range(arguments.epochs):
        model.train()
        for text in islice(batches(training, arguments.batch_size, seed=epoch), arguments.steps):
            step += 1
            began_s = time.perf_counter()
            optimizer.zero_grad()
            loss = train_step(model, text).reduce_mean()
            optimizer.step()
            if smp.rank() == 0 and step % 10 == 0:
                tokens = arguments.batch_size * arguments.length * smp.dp_size()
                speed = tokens / (time.perf_counter() - began_s)
                print(f"epoch={epoch} step={step} loss={loss:.4f} tokens_per_second={speed:.0f}", flush=True)
        model.eval()
        with torch.no_grad():
            losses = [test_step(model, text).reduce_mean() for text in batches(validation, arguments.batch_size, 0)]
        if smp.rank() == 0:
            print(f"epoch={epoch} validation_loss={torch.stack(losses).mean():.4f}", flush=True)
    smp.save_checkpoint(os.environ.get("SM_MODEL_DIR", "model"), tag="gpt2", partial=False, model=model)


if __name__ == "__main__":
    main()
