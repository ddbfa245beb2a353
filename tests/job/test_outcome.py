"""Outcomes: times for reports, and the names of signals."""

import signal

from toolkit.job.cause import Cause
from toolkit.job.outcome import Exit, Outcome, dated, signal_name
from toolkit.job.restart import Restart


def test_times_of_a_report_are_those_of_the_wall_clock_and_unknown_ones_stay_unknown() -> None:
    exits = (
        Exit(process="rank 0", pid=7, started_ns=1, ended_ns=5, exception_raised_ns=4),
        Exit(process="rank 1", pid=8, started_ns=2, ended_ns=0),
    )
    outcome = Outcome(
        status="failed",
        exit_code=1,
        cause=Cause(failed_ns=4),
        exits=exits,
        restarts=(Restart(attempt=1, host="a", message="lost", failed_ns=3),),
    )

    report = dated(outcome, 100)

    assert report.cause.failed_ns == 104
    assert [(end.started_ns, end.ended_ns, end.exception_raised_ns) for end in report.exits] == [
        (101, 105, 104),
        (102, 0, None),
    ]
    assert [restart.failed_ns for restart in report.restarts] == [103]


def test_a_signal_without_a_name_is_its_number() -> None:
    assert [signal_name(number) for number in (signal.SIGTERM, 63)] == ["SIGTERM", "signal 63"]
