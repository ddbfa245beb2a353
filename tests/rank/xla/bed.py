"""The bed that scripts/beds/xla makes, and jobs that run in it."""

import os
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT, ToolkitRun

BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "xla"
READY = (BED / ".ready").exists()
needs_bed = [
    pytest.mark.xla,
    pytest.mark.skipif(not READY, reason=f"{BED} is not ready: run scripts/beds/xla"),
]


class InBed(ToolkitRun):
    """A run of `toolkit run` by the bed's interpreter, whose `python` leads PATH; a thread for each rank."""

    python = str(BED / "bin/python")
    deadline_s = 240  # Importing torch_xla takes 4 s of CPU, compiling a step as much again.

    def __init__(self, folder: Path, program: str, *words: str, **environ: str) -> None:
        path = f"{BED / 'bin'}:{os.environ['PATH']}"
        super().__init__(folder, program, *words, **{"PATH": path, "OMP_NUM_THREADS": "1", **environ})
