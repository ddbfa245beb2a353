"""output/monitor/monitor.json: what the monitor of a host measured with, for the reader of its samples."""

from pathlib import Path
from typing import Any

import msgspec

from toolkit import files
from toolkit.records import Record, encode

NAME = "monitor.json"


class Measured(Record, frozen=True, kw_only=True):
    """What the host has. `cores`: those that the job may use. `gpus`: their names."""

    cores: int | None = None
    gpus: tuple[str, ...] = ()
    memory_limit_bytes: float | None = None


class OwnCost(Record, frozen=True, kw_only=True):
    """What the monitor itself took since its start. `interval_s`: the time between two samples in the end."""

    samples: int = 0
    own_cpu_s: float = 0.0
    kernel_cpu_s: float = 0.0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    interval_s: float = 0.0


class About(Record, frozen=True, kw_only=True):
    """The monitor of one host. Times in seconds since the epoch; `end_s` None: it still runs, or was killed.

    `clock_offset_s`: what was added to the monotonic clock's seconds to make them seconds since the epoch;
    `clock_steps`: (time, new offset) where the clock was set meanwhile: stored times keep the first offset.
    `rules`: profiler rule configurations as they were given. `notes`: what could not be measured, and why.
    """

    host: str
    start_s: float
    end_s: float | None = None
    interval_s: float
    attempt: int = 1
    machine: Measured = Measured()
    clock_offset_s: float = 0.0
    clock_steps: tuple[tuple[float, float], ...] = ()
    rules: Any = None
    own: OwnCost = OwnCost()
    notes: tuple[str, ...] = ()


def write(path: Path, about: About) -> None:
    """Write *about* to *path*, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}")
    new.write_bytes(encode(about) + b"\n")
    new.replace(path)


def read(path: Path) -> About | None:
    """Return what the file at *path* says, None if there is none that can be read."""
    try:
        return msgspec.json.decode(files.read(path), type=About)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
