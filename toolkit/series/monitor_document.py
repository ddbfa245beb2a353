"""output/monitor/monitor.json: what the monitor of a host measured with, for the reader of its samples."""

from pathlib import Path
from typing import Any

import msgspec

from toolkit import files
from toolkit.records import Record, encode

NAME = "monitor.json"


class Measured(Record, frozen=True, kw_only=True):
    """The hardware of the host."""

    cores: int | None = None  # Those that the job may use.
    gpus: tuple[str, ...] = ()  # Their names.
    memory_limit_bytes: float | None = None
    boot_id: str = ""  # Of the machine's kernel: hosts with the same one share a machine. Empty: not known.


class OwnCost(Record, frozen=True, kw_only=True):
    """The resources that the monitor itself used since its start."""

    samples: int = 0  # The number of samples.
    own_cpu_s: float = 0.0  # CPU time in user mode.
    kernel_cpu_s: float = 0.0  # CPU time in the kernel.
    cpu_percent: float = 0.0  # Of one core.
    memory_bytes: int = 0  # Its memory.
    interval_s: float = 0.0  # The time between two samples in the end.


class About(Record, frozen=True, kw_only=True):
    """The monitor of one host. Times in seconds since the epoch."""

    host: str  # The host's name.
    start_s: float  # The start of the ranks.
    end_s: float | None = None  # None: it still runs, or was killed.
    interval_s: float  # The time between two samples.
    attempt: int = 1  # 1, then more with each restart of the ranks.
    machine: Measured = Measured()  # What the host has.
    clock_offset_s: float = 0.0  # Added to the monotonic clock's seconds to make them seconds since the epoch.
    # (time, new offset) where the clock was set; stored times keep the first offset.
    clock_steps: tuple[tuple[float, float], ...] = ()
    rules: Any = None  # Profiler rule configurations as the job gave them.
    own: OwnCost = OwnCost()  # What the monitor itself took.
    notes: tuple[str, ...] = ()  # What could not be measured, and why.


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
