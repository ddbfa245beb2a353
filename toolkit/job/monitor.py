"""What the system monitor of a job should do. Platforms make it of profilerconfig.json, settings and job file."""

from pathlib import Path
from typing import Any

from toolkit.records import Record

# Seconds between two samples, if nothing asks for others, and the limits (CreateTrainingJob, ProfilingIntervalIn-
# Milliseconds: 100 to 60,000).
INTERVAL_S, SHORTEST_S, LONGEST_S = 0.5, 0.1, 60.0


class DebuggerFiles(Record, frozen=True, kw_only=True):
    """The files of SageMaker Debugger's profiler that a job asks for.

    `folder`: LocalPath. A file is closed when it has `most_bytes`, or after `most_s`. `sampled_s`: samples are written
    for so many seconds from the job's start, None: until its end.
    """

    folder: Path
    most_bytes: int = 10 << 20
    most_s: float = 60.0
    sampled_s: float | None = None


class Monitor(Record, frozen=True, kw_only=True):
    """The system monitor of a job.

    `interval_s`: the time between two samples. `rules`: profiler rule configurations as the SDK writes them in
    its request; none means ProfilerReport. `parameters`: ProfilingParameters as they were given.
    """

    interval_s: float = INTERVAL_S
    debugger: DebuggerFiles | None = None
    rules: tuple[dict[str, Any], ...] = ()
    parameters: dict[str, Any] = {}
