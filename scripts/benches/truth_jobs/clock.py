"""Measures a planted job by its own clock: the seconds of each part of its steps, independently of the toolkit.

Each rank writes `truth-RANK.json` beside its output data: {"parts": {"data": seconds, ...}, "steps": [seconds, ...]}.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


class Clock:
    """The parts of a rank's steps. Parts may be nested: the inner one's seconds are taken from the outer one's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps: list[float] = []
        self._open: list[tuple[str, float]] = []
        self._step_began = 0.0
        self._left = 0.0
        self._between = 0.0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block as *name*."""
        begin = time.perf_counter()
        if self._open:
            self._add(self._open[-1][0], begin - self._open[-1][1])
        elif self._left:
            self._between += begin - self._left
        self._open.append((name, begin))
        try:
            yield
        finally:
            end = time.perf_counter()
            opened, since = self._open.pop()
            self._add(opened, end - since)
            if self._open:
                self._open[-1] = (self._open[-1][0], end)
            self._left = end

    def step_ended(self) -> None:
        """Note the end of a step, which is where the next one begins. What it did outside of parts is "other"."""
        now = time.perf_counter()
        if self._step_began:
            self.steps.append(now - self._step_began)
            self._add("other", self._between)
        self._between = 0.0
        self._step_began = now

    def begin_steps(self) -> None:
        """Note the begin of the first step."""
        self._step_began = self._left = time.perf_counter()

    def write(self, rank: int = 0) -> None:
        """Write what was measured into the job's output data."""
        folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "."))
        folder.mkdir(parents=True, exist_ok=True)
        document = {"parts": self.seconds, "steps": self.steps}
        (folder / f"truth-{rank}.json").write_text(json.dumps(document), encoding="utf-8")

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def compute(seconds: float) -> None:
    """Keep one core busy for *seconds* of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
