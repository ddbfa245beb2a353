"""The result of one check."""

from typing import Literal

from toolkit.records import Record

Status = Literal["ok", "warn", "fail"]


class CheckResult(Record, frozen=True, kw_only=True):
    """A line of the preflight table. `advice`: what to do about a warn or fail, if `found` does not say it.

    fail: the job would not start on this host; warn: it would start and might fail later.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def worst(results: tuple[CheckResult, ...]) -> Status:
    """Return the worst status among *results*."""
    order: tuple[Status, ...] = ("ok", "warn", "fail")
    return max((result.status for result in results), key=order.index, default="ok")
