"""The rules about parts of steps that cost too much."""

from collections.abc import Mapping

import pytest

from tests.diagnosis.made import START_S, find_by_rule, window
from toolkit.diagnosis.evidence import Evidence, MachineFacts
from toolkit.series.pauses import PauseStack, RankPauses

RULES = {"StepPause", "GarbageCollection", "CheckpointTime", "EvaluationTime", "FirstStep"}


def job(
    count: int = 60,
    *,
    every: int = 1,
    first: dict[str, float] | None = None,
    rank: int = 0,
    part: Mapping[str, float] = {},
) -> Evidence:
    """Return a job of steps of 100 ms; each *every*-th has *part* besides, the first one has *first*."""
    evidence_window = window({"cpu/all/used_percent": [50.0] * 100}, machine=MachineFacts(cores=4))
    now_s = START_S
    for number in range(1, count + 1):
        parts = dict(first or {}) if number == 1 else dict(part) if number % every == 0 else {}
        own_s = parts.pop("own_s", 0.1)
        step_s = own_s + sum(seconds for name, seconds in parts.items() if "cpu" not in name and name != "compile_s")
        now_s += step_s
        evidence_window.step(rank, number, now_s, step_s, **parts)
    stack = PauseStack(count=8, call="fcntl.flock", place="train.py:41", wait="locks_lock_inode_wait")
    evidence_window.pauses = {rank: RankPauses(samples=8, stacks=(stack,))}
    return evidence_window.evidence(now_s, is_over=True)


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("StepPause", "pause_s"),
        ("GarbageCollection", "collection_s"),
        ("CheckpointTime", "checkpoint_s"),
        ("EvaluationTime", "evaluation_s"),
    ],
)
def test_a_part_that_takes_half_of_the_time_is_found_with_its_rhythm_and_cost(rule: str, part: str) -> None:
    findings = find_by_rule(job(every=10, part={part: 1.0}))

    assert findings.keys() & RULES == {rule}
    assert ", every 10th step, 1 s each time: 50 % of their time, 6 s in all." in findings[rule].text
    assert findings[rule].lost_s == pytest.approx(6.0)


@pytest.mark.parametrize("part", ["pause_s", "collection_s", "checkpoint_s", "evaluation_s"])
def test_a_part_of_a_hundredth_of_the_time_is_none(part: str) -> None:
    assert not find_by_rule(job(part={part: 0.001})).keys() & RULES


def test_a_pause_says_where_it_is_and_how_much_of_it_the_thread_waits() -> None:
    finding = find_by_rule(job(rank=2, part={"pause_s": 0.1, "pause_cpu_s": 0.001}))["StepPause"]

    assert "The thread waits, and does not compute, for 99 % of it." in finding.text
    assert finding.text.startswith(
        "The steps of rank 2 wait for a file lock in fcntl.flock (train.py:41), in each step, 100 ms each time: 50 % of"
        " their time, 5.9 s in all. "
    )
    assert finding.rank == 2


@pytest.mark.parametrize(("seconds", "is_one"), [(0.02, False), (0.05, True)])
def test_a_pause_in_which_the_script_computes_is_one_from_a_quarter_of_the_time_on(
    seconds: float, is_one: bool
) -> None:
    computing = PauseStack(count=8, call="average", place="train.py:41")
    evidence = job(part={"pause_s": seconds, "pause_cpu_s": seconds})
    evidence.pauses = {0: RankPauses(samples=8, stacks=(computing,))}

    assert ("StepPause" in find_by_rule(evidence)) is is_one
    assert "StepPause" in find_by_rule(evidence, {"StepPause": {"threshold": 10}})


def test_a_thread_that_other_programs_keep_from_a_core_does_not_wait() -> None:
    computing = PauseStack(count=8, call="average", place="train.py:41")
    evidence = job(part={"pause_s": 0.02, "pause_cpu_s": 0.002})
    evidence.pauses = {0: RankPauses(samples=8, stacks=(computing,))}

    assert "StepPause" in find_by_rule(evidence)
    evidence.is_crowded = True
    assert "StepPause" not in find_by_rule(evidence)


def test_a_first_step_says_how_long_it_compiled() -> None:
    finding = find_by_rule(job(first={"own_s": 12.1, "compile_s": 11.0}))["FirstStep"]

    assert "The first step of rank 0 took 12 s longer than the median one (100 ms): 67 % of" in finding.text
    assert "torch.compile compiled for 11 s of it." in finding.text
    assert finding.lost_s == pytest.approx(12.0)


@pytest.mark.parametrize("first", [{"own_s": 1.5}, {"evaluation_s": 5.0}, {"pause_s": 5.0}])
def test_a_first_step_that_computes_little_longer_is_none(first: dict[str, float]) -> None:
    assert "FirstStep" not in find_by_rule(job(first=first))
