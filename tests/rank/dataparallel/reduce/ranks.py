"""Real processes, a rank each, without torch: what starts them, and the store by which they find each other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[4]
WITHIN_S = 60


class FolderStore:
    """A store of files in *folder*, for the ranks of one test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, value: str) -> None:
        path = self._folder / key.replace("/", "-")
        path.with_suffix(".new").write_text(value)
        path.with_suffix(".new").rename(path)

    def get(self, key: str) -> str:
        path = self._folder / key.replace("/", "-")
        deadline_s = time.monotonic() + WITHIN_S
        while not path.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(key)
            time.sleep(0.002)
        return path.read_text()


def run_scene(program: Path, folder: Path, size: int, scene: str) -> list[list[str]]:
    """Return the lines that each of *size* ranks of *program* printed in *scene*; none of one that failed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(folder), str(rank), str(size), scene],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        for rank in range(size)
    ]
    try:
        return [_lines(rank) for rank in ranks]
    finally:
        for rank in ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)  # A forked child too.
            except ProcessLookupError:
                pass
            rank.wait()
            if rank.stdout is not None:
                rank.stdout.close()


def _lines(rank: "subprocess.Popen[str]") -> list[str]:
    # Not communicate: a forked child may hold the pipe.
    rank.wait(WITHIN_S)
    assert rank.stdout is not None
    os.set_blocking(rank.stdout.fileno(), False)
    return os.read(rank.stdout.fileno(), 65536).decode().splitlines() if rank.returncode == 0 else []
