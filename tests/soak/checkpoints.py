"""The checkpoints that the soak's ranks write, and what makes one whole.

A checkpoint is a folder `step-N` with files of random bytes. Their digests are in its file SUMS, which is written last
and removed first: a folder with SUMS is whole, one without it is half written or half removed.
"""

import hashlib
import json
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

SUMS = "SUMS"
EVERY_S = 8.0
KEPT = 3
# One part of storage, and more than one (8 MiB).
SIZES = {"optimizer.bin": 100_000, "model.bin": 9 << 20}


class Writer:
    """Writes a checkpoint into *folder* every 8 s and keeps the last three."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._due_s = time.monotonic() + random.uniform(0, EVERY_S)

    def write_if_due(self) -> None:
        if time.monotonic() < self._due_s:
            return
        steps = sorted((number(path.name) for path in self._folder.iterdir()), reverse=True)
        write(self._folder / f"step-{steps[0] + 1 if steps else 0}")
        for step in steps[KEPT - 1 :]:
            (self._folder / f"step-{step}" / SUMS).unlink(missing_ok=True)
            shutil.rmtree(self._folder / f"step-{step}")
        self._due_s = time.monotonic() + EVERY_S


def number(name: str) -> int:
    return int(name.removeprefix("step-"))


def write(folder: Path) -> None:
    """Make *folder* a checkpoint."""
    folder.mkdir()
    sums = {}
    for name, size in SIZES.items():
        content = random.randbytes(size)
        (folder / name).write_bytes(content)
        sums[name] = hashlib.sha256(content).hexdigest()
    (folder / SUMS).write_text(json.dumps(sums))


def is_whole(files: Mapping[str, bytes]) -> bool:
    """True if *files*, the contents by name, are all of a checkpoint.

    Raises:
        ValueError: they were whole once, as SUMS says, and are changed or missing.
    """
    if SUMS not in files:
        return False
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != SUMS}
    if json.loads(files[SUMS]) != sums:
        raise ValueError(f"{SUMS} names {json.loads(files[SUMS])}, found {sums}")
    return True


def whole_on_disk(folder: Path) -> set[int]:
    """Return the steps whose checkpoints in *folder* are whole."""
    return {
        number(path.name)
        for path in folder.glob("step-*")
        if is_whole({file.name: file.read_bytes() for file in path.iterdir()})
    }
