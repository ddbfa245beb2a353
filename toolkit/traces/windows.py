"""The lists of trace windows that ranks write below profiler/framework, and the share of the run that they cover."""

from pathlib import Path
from typing import Literal

from toolkit import files, folders
from toolkit.errors import ContractError
from toolkit.records import Record, decode


class TracedWindow(Record, frozen=True, kw_only=True):
    """One trace."""

    file: str
    """The path relative to the folder of the lists."""
    reason: Literal["setting", "request", "smppy"]
    """The origin of the request to trace: a setting, `toolkit profile`, or the script's smppy."""
    steps: int
    """The number of steps."""
    start_s: float
    """The begin, seconds since the epoch."""
    end_s: float
    """The end, seconds since the epoch."""
    first_step: int | None = None
    """The first step, counted from 1; None without steps."""
    last_step: int | None = None
    """The last step, counted from 1; None without steps."""
    request: int | None = None
    """The number of the request, if one asked for the trace."""
    activities: tuple[str, ...] = ()
    """The traced activities, such as "cpu" and "cuda"."""
    bytes: int = 0
    """The size of the file."""


class TracedRank(Record, frozen=True, kw_only=True):
    """The traces of one process."""

    version: int
    """The version of the file's format."""
    host: str
    """The name of the host."""
    rank: int
    """The rank."""
    world_size: int
    """The number of ranks of the job."""
    pid: int
    """The process."""
    framework: str
    """The traced framework, such as "pytorch"."""
    steps_run: int
    """The steps that it ran."""
    steps_traced: int
    """The steps that were traced."""
    windows: tuple[TracedWindow, ...]
    """The traces, in order of time."""
    share: float | None = None
    """The share of traced steps, 0 to 1; None if no step was counted."""


def read(framework: Path) -> tuple[TracedRank, ...]:
    """Return the lists in *framework*, the folder profiler/framework of an output, by rank. Those that cannot be read
    are skipped."""
    ranks = []
    for path in folders.matching(framework, "*.json", folders.named_elsewhere):
        try:
            ranks.append(decode(files.read(path), TracedRank, str(path)))
        except (OSError, ContractError):
            continue  # Another tool's file, or one that is being written.
    return tuple(sorted(ranks, key=lambda rank: (rank.rank, rank.host, rank.pid)))
