from collections.abc import Callable

import pytest

from toolkit.jobfile.spec import Kill
from toolkit.local.course import GRACE_S, Course, Order, Verdict, verdict

Orders = list[tuple[Order, str]]
Step = Callable[[Course], Orders]
TWO = ("algo-1", "algo-2")


def ended(host: str, code: int, at: float) -> Step:
    return lambda course: course.ended(host, code, at)


def asked(at: float) -> Step:
    return lambda course: course.asked_to_stop(at)


def time_is(at: float) -> Step:
    return lambda course: course.due(at)


STOP: Orders = [("stop", "algo-1"), ("stop", "algo-2")]
KILL: Orders = [("kill", "algo-1"), ("kill", "algo-2")]
# What happened and what was ordered, in turn; then the end: status, secondary, exit code, host.
HISTORIES: dict[str, tuple[Course, list[tuple[Step, Orders]], tuple[str, str, int, str]]] = {
    "both hosts end well": (
        Course(TWO),
        [(ended("algo-2", 0, 3), []), (time_is(500), []), (ended("algo-1", 0, 4), [])],
        ("Completed", "Completed", 0, ""),
    ),
    "a host fails: the other is told, and its own end is not the cause": (
        Course(TWO),
        [(ended("algo-2", 3, 1), [("stop", "algo-1")]), (time_is(120), []), (ended("algo-1", 143, 2), [])],
        ("Failed", "Failed", 3, "algo-2"),
    ),
    "the other does not listen and is killed": (
        Course(TWO),
        [
            (ended("algo-2", 3, 1), [("stop", "algo-1")]),
            (time_is(120.9), []),
            (time_is(121), [("kill", "algo-1")]),
            (time_is(122), []),
            (ended("algo-1", 137, 122), []),
        ],
        ("Failed", "Failed", 3, "algo-2"),
    ),
    "a failure after the other ended well": (
        Course(TWO),
        [(ended("algo-1", 0, 1), []), (ended("algo-2", 1, 2), [])],
        ("Failed", "Failed", 1, "algo-2"),
    ),
    "a person stops, the script ends with 0": (
        Course(TWO),
        [(asked(5), STOP), (ended("algo-1", 0, 6), []), (ended("algo-2", 0, 6), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "a person stops, the script dies of it": (
        Course(TWO),
        [(asked(5), STOP), (ended("algo-1", 143, 6), []), (ended("algo-2", 143, 6), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "a person asks twice": (
        Course(TWO),
        [(asked(5), STOP), (asked(6), KILL), (ended("algo-1", 137, 6), []), (ended("algo-2", 137, 6), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "asked once and ignored": (
        Course(TWO),
        [
            (asked(5), STOP),
            (time_is(5 + GRACE_S), KILL),
            (ended("algo-1", 137, 126), []),
            (ended("algo-2", 137, 126), []),
        ],
        ("Stopped", "Stopped", 143, ""),
    ),
    "stop-after": (
        Course(TWO, stop_after_s=30),
        [(time_is(29), []), (time_is(30), STOP), (ended("algo-1", 0, 31), []), (ended("algo-2", 0, 31), [])],
        ("Stopped", "Stopped", 143, ""),
    ),
    "max-run is said as the platform says it": (
        Course(TWO, max_run_s=60, stop_after_s=90),
        [(time_is(60), STOP), (time_is(90), []), (ended("algo-1", 0, 91), []), (ended("algo-2", 0, 91), [])],
        ("Stopped", "MaxRuntimeExceeded", 143, ""),
    ),
    "a limit that comes after a failure changes nothing": (
        Course(TWO, max_run_s=2),
        [(ended("algo-1", 9, 1), [("stop", "algo-2")]), (time_is(2), []), (ended("algo-2", 143, 3), [])],
        ("Failed", "Failed", 9, "algo-1"),
    ),
    "a host vanishes": (
        Course(TWO, kills=[Kill(host="algo-2", after_s=5)]),
        [
            (time_is(5), [("kill", "algo-2")]),
            (ended("algo-2", 137, 5), [("stop", "algo-1")]),
            (ended("algo-1", 1, 6), []),
        ],
        ("Failed", "Failed", 75, "algo-2"),
    ),
    "a host vanishes and the other is quicker to fail of it": (
        Course(TWO, kills=[Kill(host="algo-2", after_s=5)]),
        [
            (time_is(5), [("kill", "algo-2")]),
            (ended("algo-1", 1, 5), [("stop", "algo-2")]),
            (ended("algo-2", 137, 5), []),
        ],
        ("Failed", "Failed", 75, "algo-2"),
    ),
    "a host that has ended cannot vanish": (
        Course(TWO, kills=[Kill(host="algo-2", after_s=5)]),
        [(ended("algo-2", 0, 4), []), (time_is(5), []), (ended("algo-1", 0, 6), [])],
        ("Completed", "Completed", 0, ""),
    ),
    "Ctrl-C while a failed job is being stopped kills": (
        Course(TWO),
        [
            (ended("algo-1", 2, 1), [("stop", "algo-2")]),
            (asked(2), [("kill", "algo-2")]),
            (ended("algo-2", 137, 2), []),
        ],
        ("Failed", "Failed", 2, "algo-1"),
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    course, steps, (status, secondary, code, host) = HISTORIES[name]

    orders = [step(course) for step, _ in steps]

    assert orders == [expected for _, expected in steps]
    assert course.over
    end = verdict(course)
    assert (end.status, end.secondary, end.exit_code, end.host) == (status, secondary, code, host)


def test_an_interrupted_job_ends_as_shells_expect() -> None:
    course = Course(("algo-1",))
    course.asked_to_stop(1)
    course.ended("algo-1", 0, 2)

    assert verdict(course, interrupted=True) == Verdict(status="Stopped", secondary="Stopped", exit_code=130)


def test_the_cause_may_be_known_better_than_by_the_order_of_ends() -> None:
    course = Course(TWO)
    course.ended("algo-1", 1, 1)
    course.ended("algo-2", 7, 1.01)

    assert verdict(course, first="algo-2") == Verdict(status="Failed", secondary="Failed", exit_code=7, host="algo-2")


def test_the_next_time_to_look_is_the_earliest_thing_due() -> None:
    course = Course(TWO, stop_after_s=30, max_run_s=20, kills=[Kill(host="algo-1", after_s=25)])

    assert course.next_s() == 20
    course.due(20)
    assert course.next_s() == 25
    course.due(30)
    assert course.next_s() == 20 + GRACE_S
    assert Course(TWO).next_s() is None
