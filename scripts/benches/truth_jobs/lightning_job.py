"""A job of Lightning's Trainer, its parts measured by a clock of its own."""

import argparse

import lightning
import torch
from clock import Clock, compute
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--data-ms", type=float, default=0.0)
parser.add_argument("--evaluate-every", type=int, default=0)
options = parser.parse_args()
torch.set_num_threads(1)
clock = Clock()
BATCH = 32


class Samples(torch.utils.data.Dataset):
    def __init__(self, size: int, part: str) -> None:
        self.size, self.part = size, part

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with clock.part(self.part):
            compute(options.data_ms / 1000 / BATCH)
            return torch.randn(512), torch.tensor(index % 10)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10)
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def on_validation_start(self) -> None:
        self.part = clock.part("evaluation")
        self.part.__enter__()

    def on_validation_end(self) -> None:
        self.part.__exit__(None, None, None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


trainer = lightning.Trainer(
    max_steps=options.steps,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    val_check_interval=options.evaluate_every or None,
    check_val_every_n_epoch=None if options.evaluate_every else 1,
    limit_val_batches=20 if options.evaluate_every else 0,
    num_sanity_val_steps=0,
)
trainer.fit(
    Classifier(),
    DataLoader(Samples(options.steps * BATCH, "data"), BATCH),
    DataLoader(Samples(640, "evaluation"), BATCH) if options.evaluate_every else None,
)
clock.write()
