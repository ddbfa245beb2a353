"""A job of transformers' Trainer: its data, evaluation, saving and steps are measured by a clock of its own."""

import argparse

import torch
from clock import Clock, compute
from torch import nn
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--data-ms", type=float, default=0.0)
parser.add_argument("--evaluate-every", type=int, default=0)
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument("--output", default="/tmp/truth-trainer")
options = parser.parse_args()
torch.set_num_threads(1)
clock = Clock()
BATCH = 32


class Samples(torch.utils.data.Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        with clock.part("data" if self.size > 1000 else "evaluation"):
            compute(options.data_ms / 1000 / BATCH)
            return {"inputs": torch.randn(512), "labels": torch.tensor(index % 10)}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(outputs, labels), "logits": outputs}


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    with clock.part("evaluation" if Timed.evaluates else "data"):
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


class Timed(Trainer):
    evaluates = False

    def evaluate(self, *arguments, **keywords):
        Timed.evaluates = True
        with clock.part("evaluation"):
            try:
                return super().evaluate(*arguments, **keywords)
            finally:
                Timed.evaluates = False

    def _save_checkpoint(self, *arguments, **keywords):
        with clock.part("checkpoints"):
            return super()._save_checkpoint(*arguments, **keywords)

    def get_batch_samples(self, *arguments, **keywords):
        with clock.part("data"):
            return super().get_batch_samples(*arguments, **keywords)


arguments = TrainingArguments(
    output_dir=options.output,
    max_steps=options.steps,
    per_device_train_batch_size=BATCH,
    logging_steps=20,
    eval_strategy="steps" if options.evaluate_every else "no",
    eval_steps=options.evaluate_every or None,
    save_strategy="steps" if options.save_every else "no",
    save_steps=options.save_every or 500,
    save_total_limit=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Timed(
    model=Classifier(),
    args=arguments,
    data_collator=collate,
    train_dataset=Samples(options.steps * BATCH + 1001),
    eval_dataset=Samples(640),
).train()
clock.write()
