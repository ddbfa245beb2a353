"""The findings of a diagnosis: one JSON object a line in output/monitor/findings.jsonl."""

from typing import Literal

from toolkit.records import Record

# What happens to the job: nothing but a record; one line in the log; that and a message to TOOLKIT_NOTIFY; a stop with
# the whole grace (status "stopped").
FindingAction = Literal["record", "warn", "notify", "stop"]


class Number(Record, frozen=True, kw_only=True):
    """A measured value in a finding."""

    name: str  # What it measures.
    value: float  # Finite.
    unit: str = ""  # "percent", "s", "bytes", ...
    formula: str = ""  # How it was calculated, in words.
    limit: float | None = None  # The value that it was compared with.


class Finding(Record, frozen=True, kw_only=True):
    """One thing that is wrong with a job, or wasteful, and how to check it.

    Rule, subject, host and rank tell whether two findings are about the same.
    """

    rule: str  # The name of the rule (CPUBottleneck).
    text: str  # A sentence with the numbers.
    start_s: float  # Start of the window that was judged, seconds since the epoch.
    end_s: float  # Its end.
    subject: str = ""  # What of the host it concerns ("cpu3", "gpu0", "loss", "").
    host: str = ""  # The host's name.
    rank: int | None = None  # None: of no single rank.
    numbers: tuple[Number, ...] = ()  # What was measured.
    refuted_by: str = ""  # The observation that would show that it is wrong.
    change: str = ""  # One change to try.
    lost_s: float | None = None  # Seconds of the job's wall time that this cost, within the window; None: not known.
    action: FindingAction = "warn"  # What happens to the job.
    live: bool = False  # It was found while the job ran.
    note: str = ""  # What the reader must know besides (a patience that was scaled to a short job).
    attempt: int = 0  # Of the ranks, 0 for the first: no finding is about several.
