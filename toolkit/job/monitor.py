"""The configuration of a job's system monitor. Platforms make it of profilerconfig.json, settings and job file."""

from pathlib import Path
from typing import Any

from toolkit.records import Record

# Seconds between two samples, if nothing asks for others, and the limits (CreateTrainingJob, ProfilingIntervalIn-
# Milliseconds: 100 to 60,000).
INTERVAL_S, SHORTEST_S, LONGEST_S = 0.5, 0.1, 60.0


class DebuggerFiles(Record, frozen=True, kw_only=True):
    """The files of SageMaker Debugger's profiler that a job asks for."""

    folder: Path
    """LocalPath."""
    most_bytes: int = 10 << 20
    """A file is closed when it has this size."""
    most_s: float = 60.0
    """A file is closed after this time."""
    sampled_s: float | None = None
    """Seconds for which samples are written, from the job's start; None: until its end."""


class Monitor(Record, frozen=True, kw_only=True):
    """The system monitor of a job."""

    interval_s: float = INTERVAL_S
    """The time between two samples."""
    debugger: DebuggerFiles | None = None
    """None: the job asks for no files of the Debugger."""
    rules: tuple[dict[str, Any], ...] = ()
    """Profiler rule configurations as the SDK writes them in its request; none means ProfilerReport."""
    parameters: dict[str, Any] = {}
    """ProfilingParameters, unchanged."""
