"""Runs a script as a rank: through the rank hook, with a status folder, and reads the step times that it leaves."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from toolkit import status_layout as layout
from toolkit.launchers.environment import HOOK

ROOT = Path(__file__).parents[2]


class Step(NamedTuple):
    """A record of the ring; times in ns, None where not measured."""

    number: int
    step: int
    end: int
    whole: int | None
    data: int | None
    forward: int | None
    backward: int | None
    optimizer: int | None
    saving: int | None


def run(
    folder: Path, code: str, *, python: str | Path = sys.executable, path: Path | None = ROOT, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run *code* as script.py in *folder*; its status folder is *folder*/status. *path*: where toolkit is found."""
    (folder / "status").mkdir(exist_ok=True)
    (folder / "script.py").write_text(code)
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(str(each) for each in (HOOK, path) if each),
        "TOOLKIT_STATUS_FOLDER": str(folder / "status"),
        "TOOLKIT_STEP_TIMES": "on",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        **more,
    }
    argv = [str(python), "-W", "ignore", "script.py"]
    return subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def steps(folder: Path) -> dict[int, list[Step]]:
    """Return the steps in the rings of *folder*/status by pid."""
    return {int(path.name[6:]): ring(path.read_bytes()) for path in sorted((folder / "status").glob("steps-*"))}


def ring(found: bytes) -> list[Step]:
    """Return the records of a ring that is not yet full."""
    version, _, kept, written = layout.STEPS_HEAD.unpack_from(found)
    assert (version, kept) == (layout.VERSION, layout.STEPS_KEPT)
    assert len(found) == layout.STEPS_HEAD.size + kept * layout.STEPS_RECORD.size
    start = layout.STEPS_HEAD.size
    rows = [layout.STEPS_RECORD.unpack_from(found, start + at * layout.STEPS_RECORD.size) for at in range(written)]
    return [Step(*row[:3], *(None if each == layout.NONE else each for each in row[3:])) for row in rows]
