"""A timeline of collectives as a Chrome trace (chrome://tracing, Perfetto), as AWS's start_profiler wrote one."""

import json
import time
from pathlib import Path
from typing import Any


class Timeline:
    """Collects events of one rank until it is written."""

    def __init__(self, file: Path, rank: int) -> None:
        self.file = file
        self.rank = rank
        self.events: list[dict[str, Any]] = []

    def watch(self, name: str, size_bytes: int, work: Any) -> None:
        """Add *work*, which begins now, when it ends. On CUDA it ends when its kernel is queued."""
        begun_us = time.time_ns() // 1000
        if work is None:
            return self._add(name, size_bytes, begun_us)
        work.get_future().add_done_callback(lambda _: self._add(name, size_bytes, begun_us))
        return None

    def _add(self, name: str, size_bytes: int, begun_us: int) -> None:
        took_us = max(1, time.time_ns() // 1000 - begun_us)
        event = {"name": name, "cat": "collective", "ph": "X", "ts": begun_us, "dur": took_us}
        self.events.append({**event, "pid": self.rank, "tid": 0, "args": {"bytes": size_bytes}})

    def write(self) -> None:
        """Write the file, completely or not at all."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_name(self.file.name + ".unfinished")
        unfinished.write_text(json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}))
        unfinished.replace(self.file)
