"""The result of one check."""

from typing import Literal

from toolkit.records import Record

Status = Literal["ok", "warn", "fail"]


class CheckResult(Record, frozen=True, kw_only=True):
    """A line of the preflight table.

    `status`: fail means that the job would not start on this host, warn that it would start and might fail later.
    `advice`: what to do about a warn or fail, unless `found` says so.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def worst(results: tuple[CheckResult, ...]) -> Status:
    """Return the worst status among *results*."""
    order: tuple[Status, ...] = ("ok", "warn", "fail")
    return max((result.status for result in results), key=order.index, default="ok")
