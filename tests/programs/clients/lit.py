"""Lightning's Trainer with its strategy ddp."""

import os

import lightning
import task
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = task.network()

    def training_step(self, batch, index):
        return task.loss_of(self.network, *batch)

    def on_train_batch_end(self, outputs, batch, index):
        task.after_step(self.trainer.global_step, self.trainer.global_rank, self.trainer.world_size)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=task.RATE)


callbacks = [ModelCheckpoint(task.CHECKPOINTS, save_top_k=0)]
if task.options.mode == "stop":
    # Only here: it saves with all ranks, so it would wait for ever if only one rank raised an exception.
    callbacks.append(OnExceptionCheckpoint(task.CHECKPOINTS))
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=task.options.devices,
    num_nodes=task.options.hosts,
    max_steps=task.steps,
    max_epochs=-1,
    callbacks=callbacks,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
    log_every_n_steps=1,
    default_root_dir=task.CHECKPOINTS,
)
dataset = torch.utils.data.TensorDataset(*task.rows())
loader = torch.utils.data.DataLoader(dataset, batch_size=task.ROWS // trainer.world_size)
module = Module()
trainer.fit(module, loader)
trainer.save_checkpoint(os.path.join(os.environ["SM_MODEL_DIR"], "model.ckpt"))
task.report(
    module.network,
    rank=trainer.global_rank,
    world=trainer.world_size,
    local=trainer.local_rank,
    node=trainer.node_rank,
)
