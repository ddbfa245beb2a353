"""What a look at one thing found."""

from typing import Literal

from toolkit.records import Record

Status = Literal["ok", "warn", "fail"]


class CheckResult(Record, frozen=True, kw_only=True):
    """A line of the preflight table. `advice` says what to do about a warn or fail, where `found` does not.

    fail: the job would not start, or not here; warn: it would start, and this may spoil it.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def worst(results: tuple[CheckResult, ...]) -> Status:
    """Return the worst status among *results*."""
    order: tuple[Status, ...] = ("ok", "warn", "fail")
    return max((result.status for result in results), key=order.index, default="ok")
