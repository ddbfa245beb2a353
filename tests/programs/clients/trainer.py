"""Hugging Face Trainer."""

import os

import task
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = task.network()

    def forward(self, x, y):
        output = self.network(x)
        return {"loss": torch.nn.functional.mse_loss(output, y), "logits": output}


class AfterStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        task.after_step(state.global_step, args.process_index, args.world_size)


world = int(os.environ.get("WORLD_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE") or 1)
arguments = TrainingArguments(
    output_dir=task.CHECKPOINTS,
    use_cpu=True,
    per_device_train_batch_size=task.ROWS // world,
    max_steps=task.steps,
    optim="sgd",
    learning_rate=task.RATE,
    lr_scheduler_type="constant",
    max_grad_norm=0,
    save_strategy="no",
    report_to="none",
    logging_steps=1,
    enable_jit_checkpoint=True,
)
x, y = task.rows()
dataset = [{"x": features, "y": other} for features, other in zip(x, y)]
model = Model()
trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[AfterStep()])
trainer.train()
if task.options.mode != "stop":
    trainer.save_model(os.environ["SM_MODEL_DIR"])
    task.report(
        model.network,
        rank=arguments.process_index,
        world=arguments.world_size,
        local=arguments.local_process_index,
        node=int(os.environ.get("GROUP_RANK", -1)),
    )
