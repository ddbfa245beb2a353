"""Trains with delays that are known: it writes when each rank was where to $SM_MODEL_DIR/delays-RANK.json."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from toolkit import status

LOADER_S, STRAGGLER_S, CHECKPOINT_S, STEPS, SAVED_AFTER = 0.1, 0.1, 0.6, 20, 15
times = {"loaded": [], "ready": [], "saved": []}


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        began = time.time()
        time.sleep(LOADER_S)
        times["loaded"].append((began, time.time()))
        return torch.randn(8), torch.randn(1)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dist.barrier()
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Slow())):
    if rank == 1:
        time.sleep(STRAGGLER_S)
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    times["ready"].append(time.time())
    loss.backward()
    optimizer.step()
    if step + 1 == SAVED_AFTER:
        began = time.time()
        with status.holding_checkpoint():
            time.sleep(CHECKPOINT_S)
        times["saved"].append((began, time.time()))
dist.barrier()
times["failed"] = time.time()
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"delays-{rank}.json"), "w") as file:
    json.dump(times, file)
if rank == 1:
    raise RuntimeError("injected")
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
until = time.monotonic() + 60
while time.monotonic() < until:
    time.sleep(0.05)
