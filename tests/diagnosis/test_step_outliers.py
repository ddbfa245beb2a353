"""Long steps among others: what is told of them, and what is nobody's fault."""

import random
from collections.abc import Callable

import pytest

from tests.diagnosis.made import find_by_rule
from tests.diagnosis.test_steps import job

Excess = Callable[[int], float]


def steps(excess: Excess, part: str = "forward_s", count: int = 300) -> list[dict[str, float]]:
    """Return steps of some 100 ms; *excess* says by how much each is longer, in *part*."""
    noise = random.Random(count)
    rows = []
    for number in range(count):
        row = {"step_s": 0.1 * noise.uniform(0.9, 1.1), "forward_s": 0.04, "backward_s": 0.05}
        row["step_s"] += excess(number)
        row[part] = row.get(part, 0.0) + excess(number)
        rows.append(row)
    return rows


def every(period: int, seconds: float) -> Excess:
    return lambda number: seconds if number % period == period - 1 else 0.0


def scattered(number: int) -> float:
    return 0.9 if number in {20, 31, 77, 90, 114, 166, 171, 199, 230, 255, 271, 288} else 0.0


@pytest.mark.parametrize(
    ("excess", "part", "text"),
    [
        (
            every(10, 1.4),
            "forward_s",
            "Every 10th step of rank 0 takes 1.5 s, 14.9 times the median one (101 ms): it costs 42 s, 58 % of the time"
            " of the steps; most of it in the forward pass.",
        ),
        (
            lambda number: 10.0 if number == 150 else 0.0,
            "backward_s",
            "Just one step of rank 0, number 150, took 10.1 s instead of 100 ms, the median: it cost 10 s, 25 % of the"
            " time of the steps; most of it in the backward pass.",
        ),
        (
            lambda number: 0.5 if 120 <= number < 160 else 0.0,
            "optimizer_s",
            "Steps 120 to 159 of rank 0, for 24 s, are slow: 600 ms each, 5.9 times the median one (102 ms). They cost"
            " 20 s, 40 % of the time of the steps; most of it in the optimizer.",
        ),
        (
            scattered,
            "forward_s",
            "12 steps of rank 0 took more than 150 ms, the longest 1.01 s, at no regular distance; 100 ms is the"
            " median: they cost 11 s, 27 % of the time of the steps; most of it in the forward pass.",
        ),
    ],
    ids=["periodic", "single", "burst", "scattered"],
)
def test_long_steps_are_told_by_how_they_lie_in_time(excess: Excess, part: str, text: str) -> None:
    findings = find_by_rule(job([steps(excess, part)]))

    assert findings.keys() == {"StepOutlier"}
    assert _words(findings["StepOutlier"].text) == _words(text)
    lost_s = sum(map(excess, range(300)))
    assert findings["StepOutlier"].lost_s == pytest.approx(lost_s, rel=0.03)


@pytest.mark.parametrize(("computed", "is_found"), [(0.95, False), (0.2, True)])
def test_scattered_steps_that_have_more_to_do_are_nobodys_fault(computed: float, is_found: bool) -> None:
    """LBFGS calls the model as often as it needs; a thread that waits does not compute."""
    rows = steps(scattered)
    for number, row in enumerate(rows):
        row["cpu_s"] = 0.09 + computed * scattered(number)

    assert ("StepOutlier" in find_by_rule(job([rows]))) is is_found


def test_an_outlier_does_not_hide_the_others() -> None:
    """The mean and its standard deviation would: they are those of the longest."""
    finding = find_by_rule(job([steps(lambda number: scattered(number) * (20 if number == 77 else 1))]))["StepOutlier"]

    assert finding.text.startswith("12 steps of rank 0 took more than")


@pytest.mark.parametrize("period", [10, 50, 100])
@pytest.mark.parametrize("part", ["evaluation_s", "checkpoint_s"])
def test_evaluation_and_small_checkpoints_every_nth_step_accuse_nobody(period: int, part: str) -> None:
    seconds = 0.3 if part == "evaluation_s" else 0.08

    assert find_by_rule(job([steps(every(period, seconds), part)])) == {}


def test_every_nth_step_may_be_evaluation_where_no_part_of_a_step_is_known() -> None:
    rows = [{"step_s": row["step_s"]} for row in steps(every(50, 2.0))]

    assert find_by_rule(job([rows])) == {}


@pytest.mark.parametrize(("part", "rule"), [("collection_s", "GarbageCollection"), ("pause_s", "StepPause")])
def test_what_has_a_rule_of_its_own_draws_one_finding(part: str, rule: str) -> None:
    assert find_by_rule(job([steps(every(10, 1.4), part)])).keys() == {rule}
    assert find_by_rule(job([steps(every(2, 0.4), part)])).keys() == {rule}


def test_a_hiccup_of_a_short_job_is_no_finding() -> None:
    assert find_by_rule(job([steps(lambda number: 0.7 if number == 30 else 0.0, count=60)])) == {}


def test_long_steps_among_other_programs_may_be_theirs() -> None:
    columns = {"cpu/all/used_percent": [98.0] * 200, "rank/0/cpu_percent": [100.0] * 200}  # Of four cores.

    assert find_by_rule(job([steps(lambda number: scattered(number) / 3)], columns)) == {}
    finding = find_by_rule(job([steps(scattered)], columns))["StepOutlier"]
    assert finding.text.endswith(
        "Other programs held 73 % of the cores meanwhile: part of any time on this host may be theirs."
    )


def test_steps_that_slow_down_are_found_with_the_part_that_grows() -> None:
    findings = find_by_rule(job([steps(lambda number: 0.3 * number / 300)]))

    assert findings.keys() == {"StepSlowdown"}
    finding = findings["StepSlowdown"]
    assert finding.text.startswith("The steps of rank 0 slow down over the job: from 11")
    assert "most of it in the forward pass" in finding.text
    # The first tenth has 15 ms more on average, the last 285.
    assert finding.lost_s == pytest.approx(300 * (0.15 - 0.015), rel=0.05)


def test_steps_that_slow_down_since_others_take_the_cores_are_not_the_jobs() -> None:
    others = {
        "cpu/all/used_percent": [25.0 + 0.35 * index for index in range(200)],
        "rank/0/cpu_percent": [100.0] * 200,
    }

    assert "StepSlowdown" not in find_by_rule(job([steps(lambda number: 0.3 * number / 300)], others))


@pytest.mark.parametrize(("count", "is_found"), [(150, False), (400, True)])
def test_steps_that_grow_by_half_slow_down_if_the_job_is_no_short_one(count: int, is_found: bool) -> None:
    grows = steps(lambda number: 0.1 + 0.1 * number / count, count=count)  # In 38 and 100 s.

    assert ("StepSlowdown" in find_by_rule(job([grows]))) is is_found


@pytest.mark.parametrize("shape", [lambda number: 0.0, lambda number: 0.2 * (300 - number) / 300, every(7, 0.02)])
def test_steps_that_stay_or_get_faster_do_not_slow_down(shape: Excess) -> None:
    assert "StepSlowdown" not in find_by_rule(job([steps(shape)]))


def _words(text: str) -> list[str]:
    """Return the words of *text* without its numbers' digits: those vary by the noise of the steps."""
    return ["#" if word.strip("(),:;").replace(".", "", 1).isdecimal() else word for word in text.split()]
