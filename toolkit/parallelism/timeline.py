"""The recorded timeline of one step: the work of each device for each microbatch.

Each rank writes one JSON line a recorded step to output/data/modelparallel/timeline-<rank>.jsonl; the report page draws
them.
"""

from typing import Literal

from msgspec import field

from toolkit.records import Record

FOLDER = "modelparallel"  # below output/data
PREFIX = "timeline-"


class Span(Record, frozen=True, kw_only=True):
    """*kind* of microbatch *microbatch* (from 0); monotonic nanoseconds of this host."""

    kind: Literal["forward", "backward", "recompute"]
    microbatch: int
    begin_ns: int
    end_ns: int


class RankStep(Record, frozen=True, kw_only=True):
    """The work of one rank in one step."""

    rank: int
    """The rank's number in the job."""
    pp_rank: int
    """The number of its partition."""
    rdp_rank: int
    """The number of its replica."""
    step: int
    """The number of the step, from 0."""
    path: Literal["server", "chain", "graph"]
    """"server" (module server), "chain" (torch's schedules) or "graph" (TensorFlow's)."""
    pipeline: str
    """The kind of pipeline, as in `Parameters`."""
    microbatches: int
    """The number of microbatches."""
    begin_ns: int
    """The begin of the step, in monotonic nanoseconds of this host."""
    end_ns: int
    """The end of the step, in monotonic nanoseconds of this host."""
    monotonic_ns: int
    """The monotonic time at `wall_ns`: the difference puts hosts on one axis."""
    wall_ns: int
    """The wall clock's time at `monotonic_ns`."""
    parameter_bytes: int = 0
    """The parameters that this rank holds."""
    peak_activation_bytes: int | None = None
    """The most bytes saved for the backward pass at once; None: not counted (TensorFlow)."""
    spans: tuple[Span, ...] = ()
    """The work for each microbatch, in order of begin."""
    server_reason: str = field(default="", name="why")
    """On the rank that chooses: why the step stayed in the module server; else ""."""
