"""Ranks of a program on this host, started as a launcher starts them."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.forking import TORCH, Fork
from tests.ports import free_port
from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests/programs"
WITHIN_S = 300


def ranks(
    program: Path,
    *arguments: str,
    environ: dict[str, str],
    size: int = 2,
    compat: str = "smddp",
    python: str = sys.executable,
    modules: tuple[str, ...] = TORCH,
) -> list[Fork]:
    """Start *size* ranks of *program* as a launcher would, with the compat folder *compat*, and *environ* on top.
    *modules*: what they import that is imported already (tests/forking.py)."""
    shared = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "SM"))},
        "PYTHONPATH": str(HOOK),
        "TOOLKIT_COMPAT_PATH": str(FOLDER / compat),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        **environ,
    }
    return [
        Fork(
            program,
            *arguments,
            environ={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            modules=modules,
            python=python,
            server_number=rank % 2,
        )
        for rank in range(size)
    ]


def ended(processes: Sequence[Fork]) -> list[tuple[str, str]]:
    """Return (stdout, stderr) of each, all with exit code 0 in time; none is left."""
    try:
        outputs = [process.communicate(timeout=WITHIN_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs
