import torch_xla.core.xla_model as xm
import torch

device = xm.xla_device()
weight = torch.ones(1, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
weight.sum().backward()
xm.optimizer_step(optimizer)
print("trained", weight, flush=True)
