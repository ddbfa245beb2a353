"""Conv1D of transformers under tensor parallelism, against one process. Two ranks; prints one JSON object."""

import json

import torch
import torch.nn as nn
from transformers.pytorch_utils import Conv1D

import smdistributed.modelparallel.torch as smp


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj, self.conv = Conv1D(20, 7), Conv1D(7, 20), nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        x = self.c_proj(torch.nn.functional.gelu(self.c_fc(x)))
        return self.conv(x.flatten(0, 1).unsqueeze(1))


def make():
    torch.manual_seed(2)
    return Model()


def loss_of(output):
    return (output**2).mean()


smp.init({"partitions": 1, "tensor_parallel_degree": 2, "ddp": True, "microbatches": 2})
samples = torch.randn(8, 3, 7, generator=torch.Generator().manual_seed(5))
plain = make()
ordinary = torch.optim.SGD(plain.parameters(), 0.1)
module = make()
smp.set_tensor_parallelism(module)
model = smp.DistributedModel(module)
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))


@smp.step
def train(x):
    loss = loss_of(model(x))
    model.backward(loss)
    return loss


for _ in range(3):
    ordinary.zero_grad()
    loss_of(plain(samples)).backward()
    ordinary.step()
    optimizer.zero_grad()
    train(samples[4 * smp.dp_rank() : 4 * smp.dp_rank() + 4])
    optimizer.step()

held = {name: list(one.shape) for name, one in model.local_named_parameters()}
found = model.state_dict()
error = max((found[name] - one).abs().max().item() for name, one in plain.state_dict().items())
print(json.dumps({"held": held, "error": error, "kind": type(module.c_fc).__name__}))
