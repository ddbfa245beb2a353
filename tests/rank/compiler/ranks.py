"""Runs a script as ranks whose models are compiled, and reads what the compiler told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forking import GLOOS_LINE, TORCH, Fork
from tests.ports import free_ports
from toolkit.train.launchers.environment import HOOK

ROOT = Path(__file__).parents[3]
# Inductor takes half a minute of a core for each model, most of it in g++. Where a test is not about the code that
# comes out, the same graphs run by torch's own backends for such tests: as they are, or divided into forward and
# backward pass before that, which takes twice as long. Both by the eager kernels.
BACKEND = """
import torch
def _quick(self, graph, inputs):
    from torch._dynamo.backends.registry import lookup_backend
    return lookup_backend("%s")(graph, inputs)
torch._TorchCompileInductorWrapper.__call__ = _quick
"""
QUICK, DIVIDED = BACKEND % "eager", BACKEND % "aot_eager"
NET = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 10)
    def forward(self, x):
        x = nn.functional.gelu(self.norm(self.a(x)))
        return self.out(nn.functional.dropout(nn.functional.gelu(self.b(x)), 0.1, self.training))
inputs, targets = torch.randn(16, 32), torch.randint(0, 10, (16,))
def train(model, steps, *, inputs=inputs, targets=targets):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets); loss.backward(); optimizer.step()
        losses.append(loss.item())
    return losses
"""


class Ran:
    """The output of ranks. `facts`: those of the compiler, by rank; empty if it was not asked."""

    def __init__(self, stdout: list[str], stderr: str, codes: list[int], facts: list[dict[str, Any]]) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.codes = codes
        self.facts = facts

    @property
    def lines(self) -> list[str]:
        """The lines of the compiler."""
        return [line for line in self.stderr.splitlines() if line.startswith("[toolkit] compiler:")]


def run(
    folder: Path,
    code: str,
    *,
    compile: str = "off",
    autocast: str = "off",
    ranks: int = 1,
    python: "str | Path" = sys.executable,
    debug: bool = False,
    budget_s: "float | None" = None,
    **more: str,
) -> Ran:
    """Run *code* in *folder* as *ranks* ranks, and wait for them. They are forks (tests/forking.py), but with *debug*
    or *budget_s*, which act on torch's import. *more*: variables that nothing reads on import."""
    status = folder / "status"
    status.mkdir(exist_ok=True)
    for each in status.iterdir():
        each.unlink()
    (folder / "script.py").write_text(code)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "TOOLKIT_STATUS_FOLDER": str(status),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # More are processes, each of which imports torch.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
        "WORLD_SIZE": str(ranks),
        **more,
    }
    if compile != "off" or autocast != "off":
        asked = {
            "compile": compile,
            "autocast": autocast,
            "cache": str(folder / "cache"),
            "debug": debug,
            "budget_s": budget_s,
        }
        environ["TOOLKIT_COMPILER"] = json.dumps({**asked, "dump": str(folder / "dump")})
    environs = [{**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    if debug or budget_s is not None:
        codes, streams = _started(str(python), folder, environs)
    else:
        codes, streams = _forked(str(python), folder, environs)
    told = [json.loads(path.read_text()) for path in status.glob("compiler-*.json")]
    stdout, stderr = zip(*streams, strict=True)
    return Ran(list(stdout), "".join(stderr), codes, sorted(told, key=lambda each: each["rank"]))


def _started(python: str, folder: Path, environs: "list[dict[str, str]]") -> "tuple[list[int], list[tuple[str, str]]]":
    running: list[subprocess.Popen[str]] = []
    for rank, environ in enumerate(environs):
        with (folder / f"errors-{rank}").open("w") as errors:
            running.append(
                subprocess.Popen(
                    [python, "-W", "ignore", "script.py"],
                    env=environ,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            )
    try:
        stdout = [GLOOS_LINE.sub("", process.communicate(timeout=600)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    stderr = [(folder / f"errors-{rank}").read_text() for rank in range(len(environs))]
    return [process.returncode for process in running], list(zip(stdout, stderr, strict=True))


def _forked(python: str, folder: Path, environs: "list[dict[str, str]]") -> "tuple[list[int], list[tuple[str, str]]]":
    modules: tuple[str, ...] = (*TORCH, "torch._inductor.compile_fx")
    if python != sys.executable:
        modules = (*modules, "accelerate", "transformers.masking_utils")
    running = [
        Fork(Path("script.py"), environ=environ, modules=modules, python=python, folder=folder, warnings="ignore")
        for environ in environs
    ]
    try:
        streams = [process.communicate(timeout=600) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [process.wait() for process in running], streams
