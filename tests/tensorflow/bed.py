"""The bed that scripts/beds/tensorflow makes, and jobs that run in it."""

import os
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT, ToolkitRun

BED = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds").absolute() / "tensorflow"
needs_bed = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason=f"{BED} is not ready: run scripts/beds/tensorflow"),
]


class InBed(ToolkitRun):
    """A run of `toolkit run` by the bed's interpreter, whose `python` leads PATH; a thread for each process."""

    python = str(BED / "bin/python")
    deadline_s = 240  # Importing TensorFlow takes 3 s of CPU, and a job does it four times.

    def __init__(self, folder: Path, program: str, *words: str, **environ: str) -> None:
        path = f"{BED / 'bin'}:{os.environ['PATH']}"
        super().__init__(folder, program, *words, **{"PATH": path, "OMP_NUM_THREADS": "1", **environ})
