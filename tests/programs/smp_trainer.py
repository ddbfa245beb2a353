"""Hugging Face's Trainer on a small GPT-2, as a user writes it: FOLDER [CHECKPOINT]. Each rank prints the losses as JSON."""

import json
import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

folder, checkpoint = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
set_seed(3)
config = GPT2Config(
    vocab_size=97,
    n_positions=32,
    n_embd=32,
    n_layer=4,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
model = GPT2LMHeadModel(config)
generator = torch.Generator().manual_seed(5)
rows = [{"input_ids": (ids := torch.randint(1, 97, (32,), generator=generator)), "labels": ids} for _ in range(64)]
arguments = TrainingArguments(
    folder,
    use_cpu="SM_HP_MP_PARAMETERS" not in os.environ,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    max_steps=12,
    logging_steps=1,
    learning_rate=0.1,
    optim="sgd",
    max_grad_norm=0.5,
    save_steps=6,
    report_to=[],
    eval_strategy="steps",
    eval_steps=6,
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:16])
trainer.model_accepts_loss_kwargs = False  # Without it plain Trainer divides by the number of tokens.
trainer.train(resume_from_checkpoint=checkpoint)
trainer.save_model(f"{folder}/final")
history = trainer.state.log_history
report = {
    "losses": [entry["loss"] for entry in history if "loss" in entry],
    "eval_losses": [entry["eval_loss"] for entry in history if "eval_loss" in entry],
    "norms": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
    "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.device.type != "meta"),
}
print(json.dumps(report), flush=True)
