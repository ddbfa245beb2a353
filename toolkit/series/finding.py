"""What a diagnosis found: one JSON object a line in output/monitor/findings.jsonl."""

from typing import Literal

from toolkit.records import Record

# What happens to the job: nothing but a record; one line in the log; a stop with the whole grace (status "stopped").
FindingAction = Literal["record", "warn", "stop"]


class Number(Record, frozen=True, kw_only=True):
    """A measured value in a finding. `formula`: how it was made, in words. `limit`: what it was compared with."""

    name: str
    value: float
    unit: str = ""
    formula: str = ""
    limit: float | None = None


class Finding(Record, frozen=True, kw_only=True):
    """One thing that is wrong with a job, or wasteful, and how to check it.

    `rule`: the name of the rule (CPUBottleneck); `subject`: what of the host it concerns ("cpu3", "gpu0", "loss", "");
    with the host and the rank these tell whether two findings are about the same. `text`: a sentence with the numbers.
    `start_s`, `end_s`: the window that was looked at, seconds since the epoch. `refuted_by`: which observation would
    show that it is wrong. `change`: one change to try. `live`: found while the job ran. `note`: what the reader must
    know besides (a patience that was scaled to a short job). `attempt`: of the ranks, 0 for the first: no
    finding is about several.
    """

    rule: str
    text: str
    start_s: float
    end_s: float
    subject: str = ""
    host: str = ""
    rank: int | None = None
    numbers: tuple[Number, ...] = ()
    refuted_by: str = ""
    change: str = ""
    action: FindingAction = "warn"
    live: bool = False
    note: str = ""
    attempt: int = 0
