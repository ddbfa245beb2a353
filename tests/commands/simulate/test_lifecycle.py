from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.commands.simulate.lifecycle import GRACE_S, JobEnd, Lifecycle, Order, job_end, next_interrupt, next_start
from toolkit.job.file.job_file import Interrupt, Kill, LocalRun

Orders = list[tuple[Order, str]]
Step = Callable[[Lifecycle], Orders]
TWO = ("algo-1", "algo-2")


def end_host(host: str, code: int, time_s: float) -> Step:
    return lambda lifecycle: lifecycle.ended(host, code, time_s)


def request_stop(time_s: float) -> Step:
    return lambda lifecycle: lifecycle.request_stop(time_s)


def time_is(time_s: float) -> Step:
    return lambda lifecycle: lifecycle.due(time_s)


STOP: Orders = [("stop", "algo-1"), ("stop", "algo-2")]
KILL: Orders = [("kill", "algo-1"), ("kill", "algo-2")]
# Each step's event and orders; then the job's end: status, secondary, exit code, host.
HISTORIES: dict[str, tuple[Lifecycle, list[tuple[Step, Orders]], tuple[str, str, int, str]]] = {
    "both hosts end well": (
        Lifecycle(TWO),
        [(end_host("algo-2", 0, 3), []), (time_is(500), []), (end_host("algo-1", 0, 4), [])],
        ("Completed", "Completed", 0, ""),
    ),
    "a host fails: the other is told, and its own end is not the cause": (
        Lifecycle(TWO),
        [(end_host("algo-2", 3, 1), [("stop", "algo-1")]), (time_is(120), []), (end_host("algo-1", 143, 2), [])],
        ("Failed", "Failed", 3, "algo-2"),
    ),
    "the other does not listen and is killed": (
        Lifecycle(TWO),
        [
            (end_host("algo-2", 3, 1), [("stop", "algo-1")]),
            (time_is(120.9), []),
            (time_is(121), [("kill", "algo-1")]),
            (time_is(122), []),
            (end_host("algo-1", 137, 122), []),
        ],
        ("Failed", "Failed", 3, "algo-2"),
    ),
    "a failure after the other ended well": (
        Lifecycle(TWO),
        [(end_host("algo-1", 0, 1), []), (end_host("algo-2", 1, 2), [])],
        ("Failed", "Failed", 1, "algo-2"),
    ),
    "a person stops, the script ends with 0": (
        Lifecycle(TWO),
        [(request_stop(5), STOP), (end_host("algo-1", 0, 6), []), (end_host("algo-2", 0, 6), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "a person stops, the script dies of it": (
        Lifecycle(TWO),
        [(request_stop(5), STOP), (end_host("algo-1", 143, 6), []), (end_host("algo-2", 143, 6), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "a person asks twice": (
        Lifecycle(TWO),
        [
            (request_stop(5), STOP),
            (request_stop(6), KILL),
            (end_host("algo-1", 137, 6), []),
            (end_host("algo-2", 137, 6), []),
        ],
        ("Stopped", "Stopped", 143, ""),
    ),
    "asked once and ignored": (
        Lifecycle(TWO),
        [
            (request_stop(5), STOP),
            (time_is(5 + GRACE_S), KILL),
            (end_host("algo-1", 137, 126), []),
            (end_host("algo-2", 137, 126), []),
        ],
        ("Stopped", "Stopped", 143, ""),
    ),
    "stop-after": (
        Lifecycle(TWO, stop_after_s=30),
        [(time_is(29), []), (time_is(30), STOP), (end_host("algo-1", 0, 31), []), (end_host("algo-2", 0, 31), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "max-run is said as the platform says it": (
        Lifecycle(TWO, max_run_s=60, stop_after_s=90),
        [(time_is(60), STOP), (time_is(90), []), (end_host("algo-1", 0, 91), []), (end_host("algo-2", 0, 91), [])],
        ("Stopped", "MaxRuntimeExceeded", 143, ""),
    ),
    "a limit that comes after a failure changes nothing": (
        Lifecycle(TWO, max_run_s=2),
        [(end_host("algo-1", 9, 1), [("stop", "algo-2")]), (time_is(2), []), (end_host("algo-2", 143, 3), [])],
        ("Failed", "Failed", 9, "algo-1"),
    ),
    "a person stops a job that is being interrupted": (
        Lifecycle(TWO, interrupt_s=30),
        [
            (time_is(30), STOP),
            (request_stop(31), []),
            (request_stop(33), KILL),
            (end_host("algo-1", 137, 34), []),
            (end_host("algo-2", 137, 34), []),
        ],
        ("Stopped", "Stopped", 143, ""),
    ),
    "a limit that passes while the job is being interrupted ends it": (
        Lifecycle(TWO, interrupt_s=30, max_wait_s=31),
        [(time_is(30), STOP), (time_is(31), []), (end_host("algo-1", 0, 32), []), (end_host("algo-2", 0, 32), [])],
        ("Stopped", "MaxWaitTimeExceeded", 143, ""),
    ),
    "an interruption of a job that fails changes nothing": (
        Lifecycle(TWO, interrupt_s=2),
        [(end_host("algo-1", 9, 1), [("stop", "algo-2")]), (time_is(2), []), (end_host("algo-2", 143, 3), [])],
        ("Failed", "Failed", 9, "algo-1"),
    ),
    "what is due after the last host's end changes nothing": (
        Lifecycle(TWO, interrupt_s=4.5, stop_after_s=5),
        [(end_host("algo-1", 0, 4), []), (end_host("algo-2", 0, 4), []), (time_is(6), [])],
        ("Completed", "Completed", 0, ""),
    ),
    "a host vanishes": (
        Lifecycle(TWO, kills=[Kill(host="algo-2", after_s=5)]),
        [
            (time_is(5), [("kill", "algo-2")]),
            (end_host("algo-2", 137, 5), [("stop", "algo-1")]),
            (end_host("algo-1", 1, 6), []),
        ],
        ("Failed", "Failed", 75, "algo-2"),
    ),
    "a host vanishes and the other is quicker to fail of it": (
        Lifecycle(TWO, kills=[Kill(host="algo-2", after_s=5)]),
        [
            (time_is(5), [("kill", "algo-2")]),
            (end_host("algo-1", 1, 5), [("stop", "algo-2")]),
            (end_host("algo-2", 137, 5), []),
        ],
        ("Failed", "Failed", 75, "algo-2"),
    ),
    "a host that has ended cannot vanish": (
        Lifecycle(TWO, kills=[Kill(host="algo-2", after_s=5)]),
        [(end_host("algo-2", 0, 4), []), (time_is(5), []), (end_host("algo-1", 0, 6), [])],
        ("Completed", "Completed", 0, ""),
    ),
    "Ctrl-C while a failed job is being stopped kills": (
        Lifecycle(TWO),
        [
            (end_host("algo-1", 2, 1), [("stop", "algo-2")]),
            (request_stop(2), [("kill", "algo-2")]),
            (end_host("algo-2", 137, 2), []),
        ],
        ("Failed", "Failed", 2, "algo-1"),
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    lifecycle, steps, (status, secondary, code, host) = HISTORIES[name]

    orders = [step(lifecycle) for step, _ in steps]

    assert orders == [expected for _, expected in steps]
    assert lifecycle.over
    end = job_end(lifecycle)
    assert (end.status, end.secondary, end.exit_code, end.host) == (status, secondary, code, host)


def test_an_interrupted_job_ends_as_shells_expect() -> None:
    lifecycle = Lifecycle(("algo-1",))
    lifecycle.request_stop(1)
    lifecycle.ended("algo-1", 0, 2)

    assert job_end(lifecycle, interrupted=True) == JobEnd(status="Stopped", secondary="Stopped", exit_code=130)


def test_the_cause_may_be_known_better_than_by_the_order_of_ends() -> None:
    lifecycle = Lifecycle(TWO)
    lifecycle.ended("algo-1", 1, 1)
    lifecycle.ended("algo-2", 7, 1.01)

    assert job_end(lifecycle, first="algo-2") == JobEnd(status="Failed", secondary="Failed", exit_code=7, host="algo-2")


def test_the_next_time_to_look_is_the_earliest_thing_due() -> None:
    lifecycle = Lifecycle(TWO, stop_after_s=30, max_run_s=20, kills=[Kill(host="algo-1", after_s=25)])

    assert lifecycle.next_s() == 20
    lifecycle.due(20)
    assert lifecycle.next_s() == 25
    lifecycle.due(30)
    assert lifecycle.next_s() == 20 + GRACE_S
    assert Lifecycle(TWO).next_s() is None


def test_an_interruption_has_the_platforms_grace_and_no_end_of_a_host_is_a_failure() -> None:
    lifecycle = Lifecycle(TWO, interrupt_s=30)

    assert lifecycle.due(29) == []
    assert lifecycle.due(30) == STOP
    assert lifecycle.ended("algo-1", 3, 31) == []
    assert lifecycle.due(30 + GRACE_S) == [("kill", "algo-2")]
    lifecycle.ended("algo-2", 137, 150)
    assert (lifecycle.over, lifecycle.reason, lifecycle.failures) == (True, "interrupted", [])


def test_after_the_last_hosts_end_nothing_is_due() -> None:
    lifecycle = Lifecycle(("algo-1",), stop_after_s=30)
    lifecycle.ended("algo-1", 0, 2)

    assert lifecycle.next_s() is None


def test_the_next_start_has_what_is_left_of_each_limit() -> None:
    run = LocalRun(
        job_dir=Path("job"),
        stop_after_s=100,
        max_run_s=50,
        max_wait_s=200,
        interrupts=(Interrupt(after_s=0), Interrupt(after_s=10, wait_s=3), Interrupt(after_s=20)),
        kills=(Kill(host="algo-1", after_s=5), Kill(host="algo-2", after_s=15)),
    )

    first = next_start(TWO, run)
    second = next_start(TWO, run, trained_s=12, passed_s=15)

    assert first.due(0) == STOP and first.reason == "interrupted"
    assert [next_interrupt(run, at_s) for at_s in (0, 0.1, 12, 21)] == [*run.interrupts, None]
    assert second.next_s() == 3  # algo-2 vanishes.
    assert second.due(3) == [("kill", "algo-2")]
    assert second.next_s() == 8
    reasons = []
    for now_s in (8, 38):
        second.due(now_s)
        reasons.append(second.reason)
    assert reasons == ["interrupted", "max-run"]


def test_the_time_until_max_run_is_known_and_another_limit_is_not_taken_for_it() -> None:
    assert Lifecycle(TWO, max_run_s=60, stop_after_s=20).compute_limit_left_s(45.0) == 15.0
    assert Lifecycle(TWO, stop_after_s=20).compute_limit_left_s(5.0) is None
