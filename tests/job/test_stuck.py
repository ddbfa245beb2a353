"""A hang is described from the places of all its ranks (docs/hangs.md)."""

import msgspec
import pytest

from toolkit.job.stuck import MOST, Activity, StuckRank, advise, culprits, described


def rank(number: int, kind: Activity, line: int = 30, state: str = "") -> StuckRank:
    function = {12: "step", 30: "evaluate"}.get(line, "other")
    has_stack = kind not in ("silent", "unobserved")
    file = "/opt/ml/code/train.py" if has_stack else ""
    return StuckRank(
        process=f"rank {number}", activity=kind, process_state=state, file=file, line=line, function=function
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
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
def test_only_a_rank_that_differs_is_named_else_the_lines_of_all(ranks: list[StuckRank], expected: list[str]) -> None:
    assert described({"algo-1": ranks}, alone=True) == expected


def test_calls_that_never_meet_are_named() -> None:
    def in_call(number: int, call: str) -> StuckRank:
        return msgspec.structs.replace(rank(number, "waits", 12 + 18 * number), call=call)

    def said(*calls: str) -> list[str]:
        return described({"algo-1": [in_call(number, call) for number, call in enumerate(calls)]}, alone=True)

    def advised(*calls: str) -> str:
        return advise({"algo-1": [in_call(number, call) for number, call in enumerate(calls)]})

    assert "the same collective calls in the same order" in advised("all_reduce", "broadcast")
    assert advised("all_reduce", "all_reduce") == ""
    reduces = "rank 0 at train.py:12 in step (all_reduce)"
    assert said("all_reduce", "broadcast") == [
        f"the ranks wait in different calls: {reduces}",
        "rank 1 at train.py:30 in evaluate (broadcast)",
    ]
    assert said("all_reduce", "all_reduce") == [reduces, "rank 1 at train.py:30 in evaluate (all_reduce)"]
    assert said("all_reduce", "") == [reduces, "rank 1 at train.py:30 in evaluate"]


def test_a_rank_is_told_from_those_of_other_hosts() -> None:
    hosts = {"algo-1": [rank(0, "waits"), rank(1, "waits")], "algo-2": [rank(2, "waits"), rank(3, "works", 12)]}

    assert culprits(hosts) == [("algo-2", "rank 3 is in step (/opt/ml/code/train.py:12)")]
    assert described(hosts, alone=False) == ["rank 3 is in step (/opt/ml/code/train.py:12) on host algo-2"]


def test_a_stopped_rank_of_one_host_clears_the_working_ranks_of_another() -> None:
    hosts = {"algo-1": [rank(0, "works", 12)], "algo-2": [rank(1, "silent", state="stopped (SIGSTOP)")]}

    assert described(hosts, alone=False) == ["rank 1 is stopped (SIGSTOP) on host algo-2"]


def test_hosts_are_told_apart_where_their_processes_have_one_name() -> None:
    script = StuckRank(process="script", activity="works", file="/opt/ml/code/train.py", line=12, function="step")

    assert described({"algo-1": [script], "algo-2": [script]}, alone=False) == [
        "script on host algo-1 and script on host algo-2 at train.py:12 in step"
    ]


def test_a_thousand_lines_are_not_all_told() -> None:
    lines = described({"algo-1": [rank(n, "waits", 100 + n) for n in range(1000)]}, alone=True)

    assert lines[MOST:] == ["992 more"]


@pytest.mark.parametrize(
    ("ranks", "place"),
    [
        ([rank(0, "waits"), rank(1, "works", 12)], "train.py:12, where rank 1 is: the others wait for it."),
        ([rank(0, "works"), rank(1, "silent", state="stopped (SIGSTOP)")], ""),
        ([rank(0, "works", 12), rank(1, "silent")], ""),
        ([rank(0, "works", 12), rank(1, "works")], ""),
    ],
)
def test_the_place_of_a_rank_that_is_named_is_where_to_look(ranks: list[StuckRank], place: str) -> None:
    advice = advise({"algo-1": ranks})

    assert advice == (f"Look at /opt/ml/code/{place}" if place else "")
