"""The plan of the outages, and what is accepted as a report of them."""

import random
from typing import Literal

import pytest

from tests.soak.outages import OUTAGE_S, PAUSE_S, Outage, Outages, Report, Span


def of(*all_: Outage) -> Outages:
    outages = Outages(random.Random(1), 0.0)
    outages.all = list(all_)
    return outages


def outage(began_s: float, ended_s: float, *failed_s: float) -> Outage:
    outage = Outage(began_s, ended_s, ("500",))
    outage.failed_s = list(failed_s)
    return outage


def test_requests_fail_in_outages_alone() -> None:
    outages = Outages(random.Random(1), 0.0)

    failed = [bool(outages.fault(float(now_s))) for now_s in range(3600)]

    assert [any(outage.began_s <= now_s < outage.ended_s for outage in outages.all) for now_s in range(3600)] == failed
    assert 3600 / (PAUSE_S[1] + OUTAGE_S[1]) <= len(outages.all) <= 3600 / (PAUSE_S[0] + OUTAGE_S[0])
    assert sum(len(outage.failed_s) for outage in outages.all) == sum(failed)


@pytest.mark.parametrize("down", [False, True])
def test_at_the_end_storage_works_or_fails_for_good(down: bool) -> None:
    outages = Outages(random.Random(1), 0.0)
    outages.fault(outages.all[0].began_s)

    outages.end(outages.all[0].began_s + 1, down=down)

    assert {bool(outages.fault(outages.all[0].began_s + later_s)) for later_s in range(1, 1000)} == {down}


FAILS: tuple[float, Report] = (125.0, "fails")
WORKS: tuple[float, Report] = (150.0, "works")
UNFOUNDED = "a failed upload was reported while storage worked"
UNREPORTED = "an outage of 35 s was not reported"


@pytest.mark.parametrize(
    ("reports", "restarts", "faults"),
    [
        ([FAILS, WORKS], [], []),
        ([FAILS, (126.0, "fails"), WORKS], [], []),  # Another process after a restart.
        ([], [], [UNREPORTED]),
        ([(280.0, "fails")], [], [UNFOUNDED, UNREPORTED]),
        ([], [(118.0, 121.0)], []),
        ([], [(80.0, 90.0)], [UNREPORTED]),
        ([(90.0, "fails"), FAILS, WORKS], [], [UNFOUNDED]),
        ([FAILS, WORKS, (151.0, "works")], [], ["it was reported twice in a row that uploads work again"]),
    ],
)
def test_reports_fit_the_outages(
    reports: list[tuple[float, Literal["fails", "works"]]], restarts: list[Span], faults: list[str]
) -> None:
    outages = of(outage(100.0, 135.0, 105.0), outage(200.0, 230.0, 229.0), outage(240.0, 250.0))

    assert outages.faults(reports, restarts) == faults


def test_an_answer_that_a_busy_machine_delays_is_a_reason_for_a_report() -> None:
    outages = of(outage(1000.0, 1030.0))
    outages.answered(80.0, 81.0)

    faults = outages.faults([(95.0, "fails")], [])
    outages.answered(80.0, 85.0)

    assert (faults, outages.faults([(95.0, "fails")], [])) == ([UNFOUNDED], [])
