"""Hugging Face accelerate."""

import os

import task
import torch
from accelerate import Accelerator

from toolkit import status

accelerator = Accelerator(cpu=True)
rank, world = accelerator.process_index, accelerator.num_processes
model = task.network()
optimizer = torch.optim.SGD(model.parameters(), lr=task.RATE)
dataset = torch.utils.data.TensorDataset(*task.rows())
loader = torch.utils.data.DataLoader(dataset, batch_size=task.ROWS // world)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step in range(1, task.steps + 1):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(task.loss_of(model, x, y))
        optimizer.step()
    task.after_step(step, rank, world)
    if status.should_stop(step):
        accelerator.save_state(os.path.join(task.CHECKPOINTS, "stopped"))
        break
else:
    accelerator.wait_for_everyone()
    inner = accelerator.unwrap_model(model)
    task.save(inner, rank)
    local = accelerator.local_process_index
    task.report(inner, rank=rank, world=world, local=local, node=int(os.environ.get("GROUP_RANK", -1)))
accelerator.end_training()
