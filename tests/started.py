"""Ranks of a program on this host, started as a launcher starts them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.ports import free_port
from toolkit.launchers.compat import FOLDER
from toolkit.launchers.environment import HOOK

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
) -> "list[subprocess.Popen[str]]":
    """Start *size* ranks of *program* as a launcher would, with the compat folder *compat*, and *environ* on top."""
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
        subprocess.Popen(
            [python, str(program), *arguments],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(processes: "list[subprocess.Popen[str]]") -> list[tuple[str, str]]:
    """Return (stdout, stderr) of each, all with exit code 0 in time; none is left."""
    try:
        # All at once: a rank that waits for a full pipe would keep the others waiting.
        with ThreadPoolExecutor(len(processes)) as pool:
            said = list(pool.map(lambda process: process.communicate(timeout=WITHIN_S), processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said
