"""Ranks of a program of the model parallel library for TensorFlow, in the bed of scripts/beds/tensorflow."""

import os
import signal
import subprocess
from pathlib import Path

import psutil

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
    """Run *size* ranks of *program* under the bed's mpirun; 0: one process without it.

    Raises:
        AssertionError: they did not end in time; with the Python stacks of all ranks, and how long each computed.
    """
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "SM"))},
        "PATH": f"{bed / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "PYTHONFAULTHANDLER": "1",  # A rank shows its stacks when it gets SIGABRT.
        "TOOLKIT_COMPAT_PATH": str(FOLDER / "smp"),
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **environ,
    }
    argv = ("python", str(PROGRAMS / program), *arguments)
    if size:
        argv = (*MPIRUN, "-np", str(size), "python", "-m", "mpi4py", *argv[1:])
    # In a session of their own, as `train` starts them. Linux divides the cores between sessions first (autogroup in
    # man 7 sched): in pytest's session all ranks and all its workers have one share together, as large as that of each
    # single rank which `train` starts for another test.
    with subprocess.Popen(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {WITHIN_S} s\n{_end_and_describe(process)}") from None
        finally:
            process.kill()  # If Ctrl-C ends the test: another session does not get it.
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def _end_and_describe(process: "subprocess.Popen[str]") -> str:
    """End *process* and its ranks. Return whether each rank computed, waited or lacked a core, and all output."""
    parent = psutil.Process(process.pid)
    parent.suspend()  # mpirun passes the stacks on when all ranks have written theirs: they do not mix.
    lines = []
    for rank in parent.children() or [parent]:
        cpu = rank.cpu_times()
        _, waited_ns, _ = Path(f"/proc/{rank.pid}/schedstat").read_text().split()
        lines.append(
            f"process {rank.pid} used {cpu.user + cpu.system:.0f} s of CPU time; its main thread was ready to run and "
            f"waited for a core for {int(waited_ns) / 1e9:.0f} s"
        )
        rank.send_signal(signal.SIGABRT)
    psutil.wait_procs(parent.children(), timeout=20)
    parent.resume()
    try:
        outputs = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        outputs = process.communicate()
    return "\n".join((*lines, *outputs))
