"""Data: what the hosts of the matrix need for each launcher: its hyperparameter, and the test bed with its engine."""

import os
import sys
from pathlib import Path
from typing import Any, Literal

from tests.train.base import ROOT
from toolkit.records import Record

Launcher = Literal["script", "torchrun", "mpi", "smddp", "smp", "pytorchxla", "jax"]
BEDS = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds").absolute()


class Engine(Record, frozen=True, kw_only=True):
    """A launcher's row.

    `flag`: the hyperparameter that asks for it, `parameters`: its mp_parameters, `together`: how its ranks step
    together (rank.py). `bed`: the test bed
    whose interpreter runs `train` and the ranks, "" for this one; `made_by`: what makes it. `memory_bytes`: of a host
    with little memory: its ranks begin in it, and what is left is soon eaten. `work_s`: the processor time that a host
    needs from a fault to its end: so much longer it takes for each process that it shares a core with.
    """

    flag: str = ""
    together: Literal["none", "torch", "mpi", "smddp", "smp", "xla", "jax"] = "none"
    parameters: dict[str, Any] = {}
    bed: str = ""
    made_by: str = ""
    memory_bytes: int = 1 << 30
    work_s: float = 1.0
    environ: dict[str, str] = {}

    @property
    def python(self) -> Path:
        """The interpreter of `train` and of the ranks."""
        return BEDS / self.bed / "bin/python" if self.bed else Path(sys.executable)

    @property
    def missing(self) -> str:
        """Name what this machine lacks for it, "" if nothing."""
        if self.bed:
            ready = (BEDS / self.bed / ".ready").exists()
            return "" if ready else f"{BEDS / self.bed} is not ready: run {self.made_by}"
        torch = self.together == "none" or any((Path(folder) / "torch").is_dir() for folder in sys.path)
        return "" if torch else "torch is not installed"


ENGINES: dict[Launcher, Engine] = {
    "script": Engine(memory_bytes=64 << 20),
    "torchrun": Engine(flag="sagemaker_torch_distributed_enabled", together="torch"),
    "mpi": Engine(
        flag="sagemaker_mpi_enabled",
        together="mpi",
        bed="openmpi4",
        made_by="scripts/beds/mpi",
        memory_bytes=256 << 20,
    ),
    "smddp": Engine(flag="sagemaker_distributed_dataparallel_enabled", together="smddp"),
    "smp": Engine(
        flag="sagemaker_torch_distributed_enabled", parameters={"partitions": 2, "ddp": True}, together="smp"
    ),
    "pytorchxla": Engine(
        flag="sagemaker_pytorch_xla_multi_worker_enabled",
        together="xla",
        bed="xla",
        made_by="scripts/beds/xla",
        memory_bytes=3 << 30,
        work_s=2.0,
        environ={"PJRT_DEVICE": "CPU"},
    ),
    "jax": Engine(
        flag="sagemaker_jax_enabled",
        together="jax",
        bed="jax",
        made_by="scripts/beds/jax",
        memory_bytes=1 << 30,
        environ={"JAX_PLATFORMS": "cpu"},
    ),
}
ALL: tuple[Launcher, ...] = tuple(ENGINES)
