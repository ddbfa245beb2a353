from pathlib import Path
from typing import Any

import pytest

from toolkit.commands.simulate import report
from toolkit.commands.simulate.lifecycle import JobEnd, Lifecycle
from toolkit.job.cause import Cause
from toolkit.job.file.job_file import Kill
from toolkit.job.outcome import Exit, Outcome
from toolkit.job.report import HostReport, JobReport
from toolkit.metrics.sample import Sample, json_value


def failed(at_ns: int, code: int = 1, *, of: str = "") -> Outcome:
    """Return the outcome of a host with a rank that failed at *at_ns*; *of*: the host that the outcome blames."""
    end = Exit(process="rank", pid=1, started_ns=0, ended_ns=at_ns, code=code)
    return Outcome(status="failed", exit_code=code, exits=(end,), cause_host=of)


def lifecycle(*ends: tuple[str, int], kills: Any = ()) -> Lifecycle:
    lifecycle = Lifecycle([host for host, _ in ends], kills=kills)
    lifecycle.due(10)
    for host, code in ends:
        lifecycle.ended(host, code, 11)
    return lifecycle


FAILED = lifecycle(("algo-1", 1), ("algo-2", 1))


@pytest.mark.parametrize(
    ("of_hosts", "outcomes", "first"),
    [
        (FAILED, {"algo-1": failed(20), "algo-2": failed(10)}, "algo-2"),
        (FAILED, {"algo-1": failed(10), "algo-2": failed(20)}, "algo-1"),
        (FAILED, {"algo-1": Outcome(status="stopped", exit_code=143), "algo-2": failed(20)}, "algo-2"),
        (FAILED, {"algo-1": Outcome(status="failed", exit_code=75), "algo-2": failed(20)}, "algo-2"),
        (FAILED, {"algo-2": failed(20)}, "algo-2"),
        (FAILED, {"algo-1": failed(10, of="algo-2"), "algo-2": failed(20, of="algo-2")}, "algo-2"),
        (FAILED, {"algo-1": failed(20, of="algo-1"), "algo-2": failed(10, of="algo-2")}, "algo-2"),
        (FAILED, {}, "algo-1"),
        (lifecycle(("algo-1", 0)), {}, ""),
        (
            lifecycle(("algo-1", 1), ("algo-2", 137), kills=[Kill(host="algo-2", after_s=5)]),
            {"algo-1": failed(1)},
            "algo-2",
        ),
    ],
)
def test_the_first_failure_is_found_by_what_the_hosts_tell(
    of_hosts: Lifecycle, outcomes: dict[str, Outcome], first: str
) -> None:
    assert report.first_failure(of_hosts, outcomes) == first


@pytest.mark.parametrize(
    ("status", "vanished", "failure", "reason"),
    [
        ("Failed", False, "Boom:\nExitCode 3\n", "AlgorithmError: Boom:\nExitCode 3"),
        ("Failed", False, "x" * 3000, "AlgorithmError: " + "x" * 1024),
        ("Failed", False, "", "AlgorithmError: algo-2 ended with exit code 3"),
        ("Failed", True, "anything", "InternalServerError: host algo-2 vanished"),
        ("Stopped", False, "Stopped", ""),
    ],
)
def test_the_reason_has_the_platforms_form(status: Any, vanished: bool, failure: str, reason: str) -> None:
    end = JobEnd(status=status, secondary=status, exit_code=3, host="algo-2")

    assert report.failure_reason(end, vanished, failure) == reason


def sample(name: str, value: float, rank: int | None = None) -> Sample:
    return Sample(name=name, value=value, time_s=0, host="algo-1", rank=rank)


def test_the_newest_value_is_shown_and_of_several_ranks_the_firsts() -> None:
    samples = [sample("a", 1, 1), sample("a", 2, 0), sample("a", 3, 1), sample("b", 1), sample("b", 2)]

    last_values = report.last_values(samples)

    assert {name: sample.value for name, sample in last_values.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(status="succeeded", exit_code=0), ""),
        (
            Outcome(
                status="failed",
                exit_code=1,
                cause_host="a",
                cause=Cause(process="rank 1", process_end="ended with code 1", message="ValueError: x"),
            ),
            "rank 1 ended with code 1",
        ),
        (
            Outcome(
                status="failed",
                exit_code=1,
                cause_host="b",
                cause=Cause(process="rank 1", message="ValueError: x"),
                this_host_end="was healthy",
            ),
            "was healthy; host b was the cause",
        ),
        (
            Outcome(
                status="failed",
                exit_code=1,
                cause_host="b",
                cause=Cause(process="rank 1", peer_lost=True),
                this_host_end="lost it",
            ),
            "lost it; host b was the cause",
        ),
        (
            Outcome(
                status="failed", exit_code=124, cause_host="b", cause=Cause(kind="Hang", message="no rank has written")
            ),
            "hung",
        ),
        (
            Outcome(status="failed", exit_code=78, cause_host="a", cause=Cause(message="no 'trian.py'\nhere")),
            "no 'trian.py'",
        ),
        (
            Outcome(status="stopped", exit_code=143, cause_host="b", cause=Cause(message="stopped by SIGTERM")),
            "stopped by SIGTERM",
        ),
    ],
)
def test_each_host_tells_what_happened_on_itself(outcome: Outcome, message: str) -> None:
    assert report.host_end(outcome, "a") == message


def test_times_are_utc() -> None:
    assert report.moment(0.25) == "1970-01-01T00:00:00.250Z"


def test_the_summary_says_what_a_person_wants_to_know() -> None:
    job_report = JobReport(
        name="digits",
        status="Failed",
        secondary_status="Failed",
        failure_reason="AlgorithmError: Boom\n\nTraceback (most recent call last):\n...\nValueError: Boom",
        failed_host="algo-2",
        exit_code=3,
        hosts={
            "algo-1": HostReport(exit_code=3, cause="was healthy; host algo-2 was the cause"),
            "algo-2": HostReport(exit_code=3, cause="rank 1 ended with code 3"),
        },
        training_seconds=1.5,
        billable_seconds=3.0,
        metrics={"loss": 0.123456789, "ratio": "NaN", "validation:mean_squared_error": 2.5},
        artifacts={"model": "model.tar.gz"},
        notes=("something",),
    )

    assert report.summary(job_report, Path("jobs/digits")).splitlines() == [
        "digits: Failed, exit code 3",
        "",
        "AlgorithmError: Boom",
        "",
        "  algo-1      exit code 3: was healthy; host algo-2 was the cause",
        "  algo-2      exit code 3: rank 1 ended with code 3",
        "  loss                    0.123457",
        "  ratio                   NaN",
        "  validation:mean_squared_error 2.5",
        "  1.5 s of training, 3 s billable",
        "  note: something",
        "  jobs/digits: job.json, model.tar.gz",
    ]


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("-inf"), "-Infinity"), (0.5, 0.5)])
def test_values_that_json_has_no_number_for_are_words(value: float, word: float | str) -> None:
    assert json_value(value) == word


def test_the_summary_has_hosts_in_natural_order_and_marks_a_metric_that_is_misread() -> None:
    hosts = {f"algo-{number}": HostReport(exit_code=0) for number in (1, 10, 11, 2)}
    job_report = JobReport(
        name="j", status="Completed", exit_code=0, hosts=hosts, metrics={"a": 1.0, "b": 2.0}, misread=("b",)
    )

    lines = report.summary(job_report, Path("jobs/j")).splitlines()

    assert [line.split()[0] for line in lines if "exit code 0" in line][1:] == [
        "algo-1",
        "algo-2",
        "algo-10",
        "algo-11",
    ]
    marked = [line for line in lines if "misreads some numbers" in line]
    assert [line.split()[:2] for line in marked] == [["b", "2"]]
