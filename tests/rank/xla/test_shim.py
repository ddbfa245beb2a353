"""The stand-in for torch_xla on a machine without it, on CPU; a job asks for it with TOOLKIT_COMPAT=torch_xla."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ToolkitRun
from toolkit.train.launchers.compat import FOLDER

ROOT = Path(__file__).parents[3]
MISSING = [name for name in ("torch", "sklearn") if find_spec(name) is None]

# One rank alone: what the names give, and that none of them needs a process group.
ALONE = """
import io, torch, torch_xla
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.parallel_loader as pl, torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.distributed.xla_backend, torch_xla.debug.metrics as met
from torch_xla.amp import GradScaler, autocast, syncfree

seen = []
xmp.spawn(lambda index, word: seen.append((index, word)), args=("x",), nprocs=8)
torch_xla.launch(lambda index: seen.append(index))
assert seen == [(0, "x"), 0], seen
device = xm.xla_device()
assert device == torch_xla.device() == torch.device("cpu") and xm.xla_device_hw(device) == "CPU"
assert (xm.xrt_world_size(), xr.world_size(), xr.global_ordinal(), xr.device_type()) == (1, 1, 0, "CPU")
value = torch.tensor([1.0, 2.0])
assert xm.all_reduce(xm.REDUCE_SUM, value).tolist() == [1.0, 2.0]
assert xm.all_gather(value).tolist() == xm.reduce_scatter("sum", value, 1.0, 0, 1).tolist() == [1.0, 2.0]
assert xm.mesh_reduce("x", {"a": value}, list)[0]["a"].tolist() == [1.0, 2.0] and xm.rendezvous("x", b"y") == [b"y"]
assert xm.do_on_ordinals(max, ((1, 2),)) == 2
loader = pl.MpDeviceLoader([{"x": value, "y": [value, 3]}], device)
assert len(loader) == 1 and [batch["y"][1] for batch in loader] == [3]
assert [len(batch) for batch in pl.ParallelLoader([(value,)], [device]).per_device_loader(device)] == [1]
model = torch.nn.Linear(2, 1).to(device)
optimizer = syncfree.AdamW(model.parameters(), 0.1)
scaler = GradScaler()
before = model.weight.detach().clone()
with autocast(device, dtype=torch.bfloat16):
    loss = model(value).sum()
scaler.scale(loss).backward()
xm.add_step_closure(seen.append, args=("closed",))
scaler.step(optimizer)
scaler.update()
xm.optimizer_step(optimizer, barrier=True)
assert seen[-1] == "closed" and not torch.equal(before, model.weight)
file = io.BytesIO()
xm.save(model.state_dict(), file)
assert torch.equal(torch.load(io.BytesIO(file.getvalue()))["weight"], model.weight)
assert torch_xla.compile(lambda x: x) is not None and met.counter_names() == []
with torch_xla.step():
    xm.master_print("right")
"""


def python(code: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    path = f"{ROOT / 'toolkit/rank/hook/site'}:{ROOT}"
    argv = [sys.executable, "-c", code]
    return subprocess.run(
        argv, env={**variables, "PYTHONPATH": path, **environ}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(find_spec("torch_xla") is not None, reason="the real torch_xla is installed here")
def test_nobody_finds_it_who_has_not_asked() -> None:
    """Hugging Face's libraries turn to XLA when they find a torch_xla."""
    code = "import importlib.util; print(importlib.util.find_spec('torch_xla'))"

    assert python(code).stdout == "None\n"
    assert "compat/torch_xla" in python(code, TOOLKIT_COMPAT_PATH=str(FOLDER / "torch_xla")).stdout


@pytest.mark.torch
@pytest.mark.skipif(bool(MISSING), reason="needs torch")
def test_one_rank_has_everything_that_the_compilers_scripts_call() -> None:
    done = python(ALONE, TOOLKIT_COMPAT_PATH=str(FOLDER / "torch_xla"), CUDA_VISIBLE_DEVICES="")

    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.skipif(bool(MISSING), reason="needs torch and scikit-learn")
def test_an_old_script_trains_on_two_hosts_without_torch_xla(tmp_path: Path) -> None:
    words = ("--distribution", "pytorchxla", "--hosts", "2", "--hyperparameter", "epochs=3")
    with ToolkitRun(tmp_path, "xla_digits.py", *words, TOOLKIT_COMPAT="torch_xla", CUDA_VISIBLE_DEVICES="") as job:
        assert job.end() == 0, job.console

    by_rank = dict(re.findall(r"rank=(\d+ of=\d+) weights=([0-9a-f]{64})", job.console))
    assert set(by_rank) == {"0 of=2", "1 of=2"}
    assert len(set(by_rank.values())) == 1
    assert float(re.findall(r"accuracy=([\d.]+)", job.console)[-1]) > 0.9
