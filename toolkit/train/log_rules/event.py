"""The event that a rule reports."""

from typing import Literal

from toolkit.records import Record

Action = Literal["label", "warn", "stop", "no-retry"]
Kind = Literal["matched", "late start", "late again", "threshold", "straggler", "recovered"]
# The actions that end a job.
ENDING = ("stop", "no-retry")


class RuleEvent(Record, frozen=True, kw_only=True):
    """A rule matched, was missed, or measured too much: the event, and the action to take."""

    rule: str
    kind: Kind
    action: Action
    text: str
    """The line that matched, or a sentence that says which line was missed."""
    time_s: float
    """On the clock of the rule's input; for a late line, the time at which it was due."""
    rank: int | None = None
    value: float | None = None
    """The number that was read or measured, None if there is none."""
    message: str = ""
    """The rule's own text."""
