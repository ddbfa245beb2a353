"""A folder for the examples of one property, emptied before each."""

import atexit
import shutil
import tempfile
from pathlib import Path

_ROOT: list[Path] = []


def fresh(name: str) -> Path:
    """Return an empty folder, the same at every call with this *name*; all go when the process ends."""
    if not _ROOT:
        _ROOT.append(Path(tempfile.mkdtemp(prefix="toolkit-fuzz-")))
        atexit.register(shutil.rmtree, _ROOT[0], ignore_errors=True)
    folder = _ROOT[0] / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
