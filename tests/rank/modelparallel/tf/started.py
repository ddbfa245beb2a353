"""Ranks of a program of the model parallel library for TensorFlow, in the bed of scripts/beds/tensorflow."""

import os
import subprocess
from pathlib import Path

from tests.commands.simulate.toolkit_run import PROGRAMS, ROOT
from tests.tensorflow.bed import BED
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

# By loopback alone: else Open MPI uses any interface, and hangs once that is gone, as the bridge of a test of Docker.
TCP = ("--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *TCP)
WITHIN_S = 600


def ranks(
    program: str, *arguments: str, size: int, bed: Path = BED, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run *size* ranks of *program* under the bed's mpirun; 0: one process without it."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "SM"))},
        "PATH": f"{bed / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"),
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **environ,
    }
    argv = ("python", str(PROGRAMS / program), *arguments)
    if size:
        argv = (*MPIRUN, "-np", str(size), "python", "-m", "mpi4py", *argv[1:])
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=WITHIN_S)
