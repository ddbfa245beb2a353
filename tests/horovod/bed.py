"""The beds that scripts/beds/horovod makes, one for each framework, and `toolkit run` in them."""

import os
from pathlib import Path

from tests.commands.simulate.toolkit_run import ToolkitRun

ROOT = Path(__file__).parents[2]
BEDS = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds"))
TORCH = BEDS / "horovod/bin"
TENSORFLOW = BEDS / "horovod-tf/bin"


def lacks(folder: Path) -> str | None:
    """Return why tests that need the bed with this bin/ cannot run, None if they can."""
    return None if (folder.parent / ".ready").exists() else f"{folder.parent} is not ready: run scripts/beds/horovod"


class WithTorch(ToolkitRun):
    """`toolkit run` as one has it after `. .beds/horovod/bin/activate`."""

    bin = TORCH
    deadline_s = 180  # Every rank computes for five seconds before its first word: imports.

    def __init__(self, folder: Path, program: str, *words: str) -> None:
        self.python = str(self.bin / "python")
        super().__init__(folder, program, *words, PATH=f"{self.bin}:{os.environ['PATH']}")


class WithTensorflow(WithTorch):
    """The same in .beds/horovod-tf."""

    bin = TENSORFLOW
