"""Runs a script as a rank: through the rank hook, with a status folder, and reads the step times that it leaves."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.forking import Fork
from toolkit.status_pages import layout as layout
from toolkit.traces import windows
from toolkit.traces.windows import TracedRank, TracedWindow
from toolkit.train.launchers.environment import HOOK

ROOT = Path(__file__).parents[3]
TENSORFLOW = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "tensorflow/bin/python"
Test = TypeVar("Test", bound=Callable[..., None])


def needs_torch(test: Test) -> Test:
    """Mark *test* as one that needs torch."""
    has_torch = any((Path(folder) / "torch").is_dir() for folder in sys.path)
    marked: Test = pytest.mark.torch(pytest.mark.skipif(not has_torch, reason="torch is not installed")(test))
    return marked


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
    own_backward: int | None
    evaluation: int | None
    collection: int | None
    pause: int | None
    compile: int | None
    cpu: int | None
    data_cpu: int | None
    evaluation_cpu: int | None
    saving_cpu: int | None
    pause_cpu: int | None


def run(
    folder: Path,
    code: str,
    *,
    python: str | Path = sys.executable,
    path: Path | None = ROOT,
    starts: bool = False,
    **more: str,
) -> "subprocess.CompletedProcess[str]":
    """Run *code* as script.py in *folder*; its status folder is *folder*/status. *path*: where toolkit is found.
    *starts*: it is a process of its own, as with another *python* or *path*, and else a fork of one that has imported
    torch (tests/forking.py)."""
    (folder / "status").mkdir(exist_ok=True)
    (folder / "script.py").write_text(code)
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(str(entry) for entry in (HOOK, path) if entry),
        "TOOLKIT_STATUS_FOLDER": str(folder / "status"),
        "TOOLKIT_STEP_TIMES": "on",
        "SM_OUTPUT_DIR": str(folder / "output"),
        "SM_CURRENT_HOST": "algo-1",
        "RANK": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        **more,
    }
    argv = [str(python), "-W", "ignore", "script.py"]
    if starts or python != sys.executable or path != ROOT:
        return subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    fork = Fork(Path("script.py"), environ=environ, folder=folder, warnings="ignore")
    try:
        stdout, stderr = fork.communicate(240)
    finally:
        fork.kill()
    return subprocess.CompletedProcess(argv, fork.wait(240), stdout, stderr)


def listed(folder: Path) -> TracedRank:
    """Return the list of windows of the only rank."""
    (listing,) = windows.read(folder / "output/profiler/framework")
    return listing


def trace(folder: Path, window: TracedWindow) -> dict[str, Any]:
    """Return the trace of *window*."""
    with gzip.open(folder / "output/profiler/framework" / window.file) as file:
        document: dict[str, Any] = json.load(file)
    return document


def traced_steps(trace: dict[str, Any]) -> list[int]:
    """Return the numbers of the steps in *trace*."""
    events = sorted((event for event in trace["traceEvents"] if event["ph"] == "X"), key=lambda event: event["ts"])
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    return [int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#")]


def steps(folder: Path) -> dict[int, list[Step]]:
    """Return the steps in the rings of *folder*/status by pid."""
    return {int(path.name[6:]): ring(path.read_bytes()) for path in sorted((folder / "status").glob("steps-*"))}


def ring(content: bytes) -> list[Step]:
    """Return the records of a ring that is not yet full."""
    version, _, capacity, written = layout.STEPS_HEAD.unpack_from(content)
    assert (version, capacity) == (layout.VERSION, layout.STEPS_KEPT)
    assert len(content) == layout.STEPS_HEAD.size + capacity * layout.STEPS_RECORD.size
    start = layout.STEPS_HEAD.size
    rows = [
        layout.STEPS_RECORD.unpack_from(content, start + index * layout.STEPS_RECORD.size) for index in range(written)
    ]
    return [Step(*row[:3], *(None if value == layout.NONE else value for value in row[3:])) for row in rows]
