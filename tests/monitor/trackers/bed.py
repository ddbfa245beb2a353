"""The bed that scripts/beds/trackers makes, and jobs that run in it."""

import os
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT, ToolkitRun

BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "trackers"
PYTHON = str(BED / "bin/python")
READY = (BED / ".ready").exists()
needs_bed = [
    pytest.mark.trackers,
    pytest.mark.skipif(not READY, reason=f"{BED} is not ready: run scripts/beds/trackers"),
]


class InBed(ToolkitRun):
    """A run of `toolkit run` by the bed's interpreter, whose `python` leads PATH."""

    python = PYTHON
    deadline_s = 180

    def __init__(self, folder: Path, program: str, *words: str, **environ: str) -> None:
        path = f"{BED / 'bin'}:{os.environ['PATH']}"
        super().__init__(folder, program, *words, **{"PATH": path, **environ})
