"""Records the work of this rank for each microbatch, in some steps, for the report page (parallelism/timeline.py).

Nothing is measured in the other steps, so that recording costs nothing.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from toolkit.parallelism import timeline
from toolkit.parallelism.timeline import RankStep, Span
from toolkit.rank.modelparallel import output

EVERY = 1000

Kind = Literal["forward", "backward", "recompute"]


def is_recorded(step: int) -> bool:
    """Return whether step *step* is recorded: the second to fourth (the first one traces the model), then every
    1000th."""
    return 1 <= step <= 3 or (step > 0 and step % EVERY == 0)


class Meter(Protocol):
    """Counts the bytes that the forward pass saves for the backward pass; torch/saved.py has PyTorch's."""

    def watching(self) -> AbstractContextManager[object]:
        """Count what this thread saves inside."""

    def take_peak(self) -> int:
        """Return the most bytes that were saved at once since the last call."""


class Recorder:
    """Appends the recorded steps of rank *rank* to a file below *folder*, the job's output/data.

    One thread calls `begin` and `end` for each step; `span` may be called by any thread between them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        pp_rank: int,
        rdp_rank: int,
        pipeline: str,
        meter: Meter | None = None,
        is_recorded: Callable[[int], bool] = is_recorded,
    ) -> None:
        self._file = folder / timeline.FOLDER / f"{timeline.PREFIX}{rank}.jsonl"
        self._place = {"rank": rank, "pp_rank": pp_rank, "rdp_rank": rdp_rank}
        self._pipeline = pipeline
        self._meter = meter
        self._is_recorded = is_recorded
        self._step = -1
        self._begin_ns = 0
        self._spans: list[Span] | None = None  # None: this step is not recorded.

    def begin(self) -> None:
        """The next step begins."""
        self._step += 1
        if self._is_recorded(self._step):
            self._spans = []
            self._begin_ns = time.monotonic_ns()
            if self._meter is not None:
                self._meter.take_peak()

    def span(self, kind: Kind, microbatch: int) -> AbstractContextManager[object]:
        """Record the time inside as *kind* of *microbatch*."""
        return contextlib.nullcontext() if self._spans is None else self._recorded(kind, microbatch)

    @property
    def is_recording(self) -> bool:
        """True while this step is recorded."""
        return self._spans is not None

    def watching(self) -> AbstractContextManager[object]:
        """Count what this thread saves for the backward pass inside, if this step is recorded."""
        is_counting = self._meter is not None and self._spans is not None
        return self._meter.watching() if self._meter is not None and is_counting else contextlib.nullcontext()

    def add(self, kind: Kind, microbatch: int, begin_ns: int) -> None:
        """Record that *kind* of *microbatch* has taken from *begin_ns* until now."""
        if self._spans is not None:
            self._spans.append(Span(kind=kind, microbatch=microbatch, begin_ns=begin_ns, end_ns=time.monotonic_ns()))

    @contextlib.contextmanager
    def _recorded(self, kind: Kind, microbatch: int) -> Iterator[None]:
        begin_ns = time.monotonic_ns()
        try:
            with self.watching():
                yield
        finally:
            self.add(kind, microbatch, begin_ns)

    def end(
        self,
        *,
        path: Literal["server", "chain", "graph"],
        microbatches: int,
        parameter_bytes: int,
        server_reason: str = "",
    ) -> None:
        """The step ends. *path* ran it, *server_reason*: see RankStep; *parameter_bytes*: held by this rank."""
        spans, self._spans = self._spans, None
        if spans is None:
            return
        step = RankStep(
            **self._place,
            step=self._step,
            path=path,
            pipeline=self._pipeline,
            microbatches=microbatches,
            begin_ns=self._begin_ns,
            end_ns=time.monotonic_ns(),
            monotonic_ns=time.monotonic_ns(),
            wall_ns=time.time_ns(),
            parameter_bytes=parameter_bytes,
            peak_activation_bytes=None if self._meter is None else self._meter.take_peak(),
            spans=tuple(sorted(spans, key=lambda span: span.begin_ns)),
            server_reason=server_reason,
        )
        output.try_to(lambda: self._write(step), "the timeline of a step")

    def _write(self, step: RankStep) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(step) + b"\n")
