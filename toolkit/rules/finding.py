"""What a rule found."""

from typing import Literal

from toolkit.records import Record

Action = Literal["label", "warn", "stop", "no-retry"]
Kind = Literal["matched", "late start", "late again", "threshold", "straggler", "recovered"]
# The actions that end a job.
ENDING = ("stop", "no-retry")


class Finding(Record, frozen=True, kw_only=True):
    """One occasion on which a rule has something to say, and what it asks for.

    `text` is the line that matched or, where there is none, what was missed; `message` is the rule's own.
    `value`: the number that was read or measured, None where there is none. `time_s`: of the clock the rule was fed
    with; for what came too late, the moment it was due.
    """

    rule: str
    kind: Kind
    action: Action
    text: str
    time_s: float
    rank: int | None = None
    value: float | None = None
    message: str = ""
