"""Tests that need a machine with NVIDIA GPUs. `scripts/prove-gpu` runs them; docs/gpu.md says what was never run."""

from pathlib import Path

import pytest

from tests.rank.dataparallel.test_cuda import gpus
from tests.train.base import Base, Done

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(gpus() == 0, reason="needs an NVIDIA GPU"),
]

NCCL = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
for step in range(5):
    if step == 3 and dist.get_rank() == 1:
        raise ValueError("loss is nan at step 3")
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()
"""
MEMORY = "import torch\nkept = [torch.empty(1 << 30, device='cuda') for _ in range(10_000)]\n"
ASSERT = """
import torch
torch.arange(4, device="cuda")[torch.tensor([7], device="cuda")]
torch.cuda.synchronize()
"""
GRAPH = """
import torch
x, w = torch.ones(64, 64, device="cuda"), torch.eye(64, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        x @ w
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x @ w + 1
for step in range(20):
    x.fill_(step)
    graph.replay()
    assert y.sum().item() == 64 * 64 * (step + 1), (step, y.sum().item())
print("graphs replayed: 20", flush=True)
"""


def ran(folder: Path, program: str, **environ: str) -> Done:
    base = Base(folder)
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program(program)
    return base.train(environ, deadline_s=300.0)


@pytest.mark.skipif(gpus() < 2, reason="needs two NVIDIA GPUs")
def test_a_rank_that_fails_under_nccl_is_the_cause_not_its_peers(tmp_path: Path) -> None:
    done = ran(tmp_path, NCCL)

    assert done.status == 1
    assert done.failure is not None and "ValueError: loss is nan at step 3" in done.failure[:1024]


def test_cudas_out_of_memory_is_the_cause_with_advice(tmp_path: Path) -> None:
    done = ran(tmp_path, MEMORY)

    assert done.status == 1
    assert done.failure is not None and "OutOfMemoryError" in done.failure[:1024]


def test_a_device_side_assert_is_reported_with_the_devices_words(tmp_path: Path) -> None:
    done = ran(tmp_path, ASSERT)

    assert done.status != 0
    assert done.failure is not None and "device-side assert" in done.failure


def test_cuda_graphs_replay_under_monitor_and_profiler_as_without(tmp_path: Path) -> None:
    done = ran(tmp_path, GRAPH, TOOLKIT_MONITOR="on", TOOLKIT_PROFILE="seconds 0-5")

    assert (done.status, b"graphs replayed: 20" in done.stdout) == (0, True), done
