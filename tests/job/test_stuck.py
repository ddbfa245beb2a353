"""What is said of a hang, from where all its ranks are (docs/hangs.md)."""

import pytest

from toolkit.job.stuck import MOST, Activity, StuckRank, culprits, described


def rank(number: int, kind: Activity, line: int = 30, state: str = "") -> StuckRank:
    where = {12: "step", 30: "evaluate"}.get(line, "other")
    seen = kind not in ("silent", "unobserved")
    file = "/opt/ml/code/train.py" if seen else ""
    return StuckRank(process=f"rank {number}", activity=kind, process_state=state, file=file, line=line, function=where)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([rank(0, "waits"), rank(1, "works", 12)], ["rank 1 is in step (/opt/ml/code/train.py:12)"]),
        ([rank(0, "unclear"), rank(1, "works", 12)], ["rank 1 is in step (/opt/ml/code/train.py:12)"]),
        ([rank(0, "works"), rank(1, "silent", state="stopped (SIGSTOP)")], ["rank 1 is stopped (SIGSTOP)"]),
        ([rank(0, "works", 12), rank(1, "silent")], ["rank 1 does not answer: it has written no stack"]),
        (
            [rank(0, "waits", 12), *(rank(n, "waits") for n in (1, 2, 3))],
            ["rank 0 at train.py:12 in step", "ranks 1-3 at train.py:30 in evaluate"],
        ),
        (
            [rank(0, "waits"), rank(1, "unclear", 12), rank(2, "waits")],
            ["ranks 0, 2 at train.py:30 in evaluate", "rank 1 at train.py:12 in step"],
        ),
        (
            [rank(0, "works", 12), rank(1, "works")],
            ["rank 0 at train.py:12 in step", "rank 1 at train.py:30 in evaluate"],
        ),
        ([rank(0, "waits"), rank(1, "waits")], ["ranks 0-1 at train.py:30 in evaluate"]),
        ([rank(0, "waits"), rank(1, "unobserved")], ["rank 0 at train.py:30 in evaluate"]),
        ([rank(0, "silent"), rank(1, "silent")], []),
        ([], []),
    ],
)
def test_only_a_rank_that_differs_is_named_else_the_lines_of_all(ranks: list[StuckRank], said: list[str]) -> None:
    assert described({"algo-1": ranks}, alone=True) == said


def test_a_rank_is_told_from_those_of_other_hosts() -> None:
    found = {"algo-1": [rank(0, "waits"), rank(1, "waits")], "algo-2": [rank(2, "waits"), rank(3, "works", 12)]}

    assert culprits(found) == [("algo-2", "rank 3 is in step (/opt/ml/code/train.py:12)")]
    assert described(found, alone=False) == ["rank 3 is in step (/opt/ml/code/train.py:12) on host algo-2"]


def test_a_stopped_rank_of_one_host_clears_the_working_ranks_of_another() -> None:
    found = {"algo-1": [rank(0, "works", 12)], "algo-2": [rank(1, "silent", state="stopped (SIGSTOP)")]}

    assert described(found, alone=False) == ["rank 1 is stopped (SIGSTOP) on host algo-2"]


def test_hosts_are_told_apart_where_their_processes_have_one_name() -> None:
    script = StuckRank(process="script", activity="works", file="/opt/ml/code/train.py", line=12, function="step")

    assert described({"algo-1": [script], "algo-2": [script]}, alone=False) == [
        "script on host algo-1 and script on host algo-2 at train.py:12 in step"
    ]


def test_a_thousand_lines_are_not_all_told() -> None:
    said = described({"algo-1": [rank(n, "waits", 100 + n) for n in range(1000)]}, alone=True)

    assert said[MOST:] == ["992 more"]
