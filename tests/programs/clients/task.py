"""The scripts in this folder share this task, whose result is the same on any number of ranks.

In each step every rank computes the gradient of its own share of the rows. Averaged over the ranks that is the gradient
of all rows, so after STEPS steps of plain SGD every rank of every job has the weights that one process would have.
"""

import argparse
import json
import os
import time

import torch

torch.set_num_threads(1)
ROWS, WIDTH, STEPS, RATE = 48, 8, 5, 0.1
FOREVER = 100_000
MODEL = os.path.join(os.environ["SM_MODEL_DIR"], "model.pt")
CHECKPOINTS = os.environ["SM_CHECKPOINT_DIR"]

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["end", "fail", "stop"], default="end")
parser.add_argument("--hosts", type=int, default=1)
parser.add_argument("--devices", type=int, default=1)
options, _ = parser.parse_known_args()
steps = FOREVER if options.mode == "stop" else STEPS


def rows():
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    return x, x.sum(dim=1, keepdim=True).sin()


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


def after_step(step, rank, world):
    """Act as the job's mode says after step *step*, counted from 1."""
    if options.mode == "fail" and step == 3 and rank == world - 1:
        raise ValueError("a bad batch")
    if options.mode == "stop":
        if step == 3:
            print("under way", flush=True)
        time.sleep(0.05)


def report(model, *, rank, world, local, node):
    """Print this rank's numbers, and the loss of its model on all rows."""
    with torch.no_grad():
        loss = loss_of(model.float(), *rows()).item()
    facts = {"rank": rank, "world": world, "local": local, "node": node, "loss": round(loss, 5)}
    print("client " + json.dumps(facts), flush=True)


def save(model, rank, path=MODEL):
    if rank == 0:
        torch.save(model.state_dict(), path)
