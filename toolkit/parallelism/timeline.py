"""The recorded timeline of one step: what each device did for which microbatch, when.

Each rank writes one JSON line a recorded step to output/data/modelparallel/timeline-<rank>.jsonl; the report page draws
them.
"""

from typing import Literal

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
    """What one rank did in step *step* (from 0).

    `path`: "server" (module server), "chain" (torch's schedules) or "graph" (TensorFlow's). `why`: on the rank that
    chooses, why the step stayed in the module server; else "". `pp_rank` and `rdp_rank` place the rank.
    `parameter_bytes`: held by this rank; `peak_activation_bytes`: saved for backward at once, at most; None: nobody
    counted (TensorFlow).
    `wall_ns - monotonic_ns` puts hosts on one axis.
    """

    rank: int
    pp_rank: int
    rdp_rank: int
    step: int
    path: Literal["server", "chain", "graph"]
    pipeline: str
    microbatches: int
    begin_ns: int
    end_ns: int
    monotonic_ns: int
    wall_ns: int
    parameter_bytes: int = 0
    peak_activation_bytes: int | None = None
    spans: tuple[Span, ...] = ()
    why: str = ""
