"""What a look at one thing found."""

from typing import Literal

from toolkit.records import Record

Status = Literal["ok", "warn", "fail"]


class Finding(Record, frozen=True, kw_only=True):
    """A line of the preflight table. `advice` says what to do about a warn or fail, where `found` does not.

    fail: the job would not start, or not here; warn: it would start, and this may spoil it.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def worst(findings: tuple[Finding, ...]) -> Status:
    """Return the worst status among *findings*."""
    order: tuple[Status, ...] = ("ok", "warn", "fail")
    return max((finding.status for finding in findings), key=order.index, default="ok")
