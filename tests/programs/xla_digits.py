"""A script for the Training Compiler as it was written in 2022: old names, _mp_fn(index), handwritten digits."""

import argparse
import hashlib
import os
import signal
import time

STOP = []
signal.signal(signal.SIGTERM, lambda *_: STOP.append(True))

import numpy as np
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from sklearn.datasets import load_digits


def _mp_fn(index):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fails-on", type=int, default=-1)
    options = parser.parse_args()
    device = xm.xla_device()
    torch.manual_seed(1 + index)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 8 - 1
    labels = torch.tensor(digits.target)
    data = torch.utils.data.TensorDataset(images, labels)
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal())
    batches = torch.utils.data.DataLoader(data, batch_size=64 // xm.xrt_world_size(), sampler=sampler, drop_last=True)
    loader = pl.MpDeviceLoader(batches, device)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    xm.broadcast_master_param(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for image, label in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(image), label)
            loss.backward()
            xm.optimizer_step(optimizer)
        if index == options.fails_on:
            raise FileNotFoundError("no shard 7")
        read = model(images.to(device)).argmax(1).cpu() == labels
        accuracy = xm.mesh_reduce("accuracy", read.float().mean().item(), np.mean)
        stop = xm.mesh_reduce("stop", bool(STOP), any)
        xm.master_print(f"epoch={epoch + 1} loss={loss.item():.4f} accuracy={accuracy:.4f}", flush=True)
        if stop:
            xm.master_print("stopped on request", flush=True)
            return
    weights = b"".join(weight.detach().cpu().numpy().tobytes() for weight in model.parameters())
    print(f"rank={index} of={xm.xrt_world_size()} weights={hashlib.sha256(weights).hexdigest()}", flush=True)
    xm.save(model.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
    xm.rendezvous("saved")
