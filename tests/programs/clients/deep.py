"""DeepSpeed, ZeRO stage 1."""

import os

import deepspeed
import task
import torch

from toolkit import status

deepspeed.init_distributed(dist_backend="gloo")
rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
network = task.network()
config = {
    "train_micro_batch_size_per_gpu": task.ROWS // world,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.SGD(network.parameters(), lr=task.RATE)
engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
x, y = (column[rank::world] for column in task.rows())
for step in range(1, task.steps + 1):
    engine.backward(task.loss_of(engine, x, y))
    engine.step()
    task.after_step(step, rank, world)
    if status.should_stop(step):
        engine.save_checkpoint(task.CHECKPOINTS, tag="stopped")
        break
else:
    task.save(network, rank)
    local = int(os.environ["LOCAL_RANK"])
    task.report(network, rank=rank, world=world, local=local, node=int(os.environ.get("GROUP_RANK", -1)))
deepspeed.comm.destroy_process_group()
