"""The lists of trace windows that ranks write below profiler/framework, and which share of the run they cover."""

from pathlib import Path
from typing import Literal

from toolkit import files, folders
from toolkit.errors import ContractError
from toolkit.records import Record, decode


class TracedWindow(Record, frozen=True, kw_only=True):
    """One trace: `file` relative to the folder of the lists. Steps are counted from 1; times in seconds since the
    epoch. `request`: the number of the request that asked for it, if one did."""

    file: str
    reason: Literal["setting", "request", "smppy"]
    steps: int
    start_s: float
    end_s: float
    first_step: int | None = None
    last_step: int | None = None
    request: int | None = None
    activities: tuple[str, ...] = ()
    bytes: int = 0


class TracedRank(Record, frozen=True, kw_only=True):
    """What one process has traced. `share`: steps traced of steps run, 0 to 1; None where no step was counted."""

    version: int
    host: str
    rank: int
    world_size: int
    pid: int
    framework: str
    steps_run: int
    steps_traced: int
    windows: tuple[TracedWindow, ...]
    share: float | None = None


def read(framework: Path) -> tuple[TracedRank, ...]:
    """Return the lists in *framework*, the folder profiler/framework of an output, by rank; those that cannot be read
    are left out."""
    found = []
    for path in folders.matching(framework, "*.json", folders.named_elsewhere):
        try:
            found.append(decode(files.read(path), TracedRank, str(path)))
        except (OSError, ContractError):
            continue  # Another tool's file, or one on its way.
    return tuple(sorted(found, key=lambda each: (each.rank, each.host, each.pid)))
