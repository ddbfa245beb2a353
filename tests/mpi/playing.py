"""The hosts of a job under mpirun, real `train` processes on this machine in the test bed of one MPI."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ports import free_ports
from tests.train.base import ROOT, Base, Done
from tests.train.live import Live, live

BEDS = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds")
# What each script begins with.
MPI = """
import os, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
"""


def python(bed: str) -> Path:
    return BEDS / bed / "bin/python"


class Hosts:
    """A base and its `train` for each host of one job, by name."""

    def __init__(
        self, folder: Path, bed: str, *, names: Sequence[str] = ("algo-1", "algo-2"), per_host: int = 1
    ) -> None:
        self.bases = {name: Base(folder / name) for name in names}
        self._command = (str(python(bed)), "-m", "toolkit.cli.main", "train")
        port, link_port = free_ports(2)
        self.environ = {
            "PATH": f"{python(bed).parent}:/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),  # This tree's toolkit, wherever the bed was made.
            "MASTER_PORT": str(port),
            "TOOLKIT_LINK_PORT": str(link_port),
        }
        if len(names) > 1:
            self.environ["TOOLKIT_HOST_ADDRESSES"] = ",".join(f"{name}=127.0.0.1" for name in names)
        self.hyperparameters(sagemaker_mpi_num_of_processes_per_host=per_host)
        for name, base in self.bases.items():
            base.resources(list(names), current=name, network_interface_name="lo")

    def hyperparameters(self, **more: object) -> None:
        parameters = {"sagemaker_mpi_enabled": True, **more}
        for base in self.bases.values():
            base.hyperparameters({name: json.dumps(value) for name, value in parameters.items()})

    def program(self, text: str) -> None:
        for base in self.bases.values():
            base.program(MPI + text)

    @contextlib.contextmanager
    def start(self, prefix: Sequence[str] = (), **more: str) -> Iterator[dict[str, Live]]:
        """Start `train` on every host, through the command *prefix*."""
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(live(base, command=(*prefix, *self._command), **{**self.environ, **more}))
                for name, base in self.bases.items()
            }

    def run(self, prefix: Sequence[str] = (), **more: str) -> dict[str, Done]:
        """Run all to their ends."""
        with self.start(prefix, **more) as running:
            return {name: host.end() for name, host in running.items()}
