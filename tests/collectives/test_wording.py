"""A hang is described by collectives where they show who is missing, else by stacks."""

from toolkit.collectives.records import CollectiveCall, GroupCalls, RankCalls
from toolkit.collectives.wording import HangDescription, describe_hang
from toolkit.job.stuck import MOST, Activity, StuckRank

SAVES = "rank 3 (host algo-2) is in save (train.py:88)"
WAIT = "all_reduce #1042 of the default group, in which ranks 0-2 wait (train.py:61)"
WAITING = "ranks 0-2 wait in all_reduce #1042 of the default group (train.py:61)"


def call(number: int, operation: str = "all_reduce", *, waits: bool = False, line: int = 61) -> CollectiveCall:
    payload = "" if operation == "barrier" else "4 Float"
    return CollectiveCall(
        number=number, operation=operation, payload=payload, is_complete=not waits, file="/code/train.py", line=line
    )


BEFORE, LAST = call(1041), call(1042, waits=True)


def rank_calls(rank: int, *calls: CollectiveCall, process: str = "", size: int = 4) -> RankCalls:
    group = GroupCalls(name="0", description="default_pg", ranks=tuple(range(size)), calls=calls)
    return RankCalls(rank=rank, process=process or f"rank {rank}", groups=(group,))


def stuck(process: int | str, kind: Activity = "works", state: str = "", file: str = "/code/train.py") -> StuckRank:
    name = process if isinstance(process, str) else f"rank {process}"
    return StuckRank(process=name, activity=kind, process_state=state, file=file, line=88, function="save")


THREE_WAIT = tuple(rank_calls(rank, BEFORE, LAST) for rank in range(3))


def describe_one_host(fourth: StuckRank, *calls: CollectiveCall) -> HangDescription:
    """Three ranks wait, and the fourth, with these calls, may not."""
    waiting = tuple(stuck(rank, "waits") for rank in range(3))
    all_calls = (*THREE_WAIT, rank_calls(3, *calls)) if calls else THREE_WAIT
    return describe_hang({"algo-1": (*waiting, fourth)}, {"algo-1": all_calls}, alone=True)


def test_the_rank_that_is_missing_is_named_with_its_place_and_the_call_that_it_did_not_reach() -> None:
    described = describe_hang(
        {"algo-1": (stuck(0, "waits"), stuck(1, "waits")), "algo-2": (stuck(2, "waits"), stuck(3))},
        {"algo-1": THREE_WAIT[:2], "algo-2": (THREE_WAIT[2], rank_calls(3, BEFORE))},
        alone=False,
    )

    assert described.sentences == (f"{SAVES} and never reached {WAIT}",)
    assert described.hosts == {"algo-2"}
    assert [(one.state, one.number) for one in described.compared] == [("missing", 1042)]


def test_the_only_host_is_not_named() -> None:
    described = describe_one_host(stuck(3), BEFORE)

    assert described.sentences == (f"rank 3 is in save (train.py:88) and never reached {WAIT}",)


def test_a_script_whose_name_has_no_number_is_known_by_its_calls() -> None:
    described = describe_hang(
        {"algo-1": (stuck("script", "waits"),), "algo-2": (stuck("script"),), "algo-3": (stuck("helper"),)},
        {
            "algo-1": (rank_calls(0, BEFORE, LAST, process="script", size=2),),
            "algo-2": (rank_calls(1, BEFORE, process="script", size=2),),
        },
        alone=False,
    )

    assert described.sentences == (
        "rank 1 (host algo-2) is in save (train.py:88) and never reached all_reduce #1042 of the default group,"
        " in which rank 0 waits (train.py:61)",
    )


def test_a_rank_whose_stack_is_not_known_runs_and_a_stopped_one_is_stopped() -> None:
    runs = describe_one_host(stuck(3, "unobserved", file=""), BEFORE)
    stopped = describe_one_host(stuck(3, "works", "stopped (SIGSTOP)"), BEFORE)

    assert runs.sentences == (f"rank 3 runs and never reached {WAIT}",)
    assert stopped.sentences == (f"rank 3 is stopped (SIGSTOP) and never reached {WAIT}",)


def test_a_rank_that_waits_by_its_stack_is_not_named_alone() -> None:
    described = describe_one_host(stuck(3, "waits"), BEFORE)

    assert described.sentences == ("ranks 0-3 at train.py:88 in save", f"{WAITING}, which rank 3 never reached")
    assert described.hosts == frozenset()


def test_a_stopped_rank_that_wrote_no_calls_is_named_with_what_the_others_wait_in() -> None:
    described = describe_one_host(stuck(3, "silent", "stopped (SIGSTOP)"))

    assert described.sentences == ("rank 3 is stopped (SIGSTOP)", WAITING)
    assert described.hosts == {"algo-1"}


def test_a_call_that_all_ranks_are_in_is_told_after_their_places() -> None:
    described = describe_one_host(stuck(3, "waits"), BEFORE, LAST)

    assert described.sentences == (
        "ranks 0-3 at train.py:88 in save",
        "ranks 0-3 wait in all_reduce #1042 of the default group (train.py:61), all of the group",
    )


def test_calls_that_differ_are_told_the_most_frequent_first() -> None:
    described = describe_hang(
        {"algo-1": (stuck(0), stuck(1), stuck(2)), "algo-2": (stuck(3),)},
        {"algo-1": THREE_WAIT, "algo-2": (rank_calls(3, BEFORE, call(1042, "barrier", waits=True, line=7)),)},
        alone=False,
    )

    assert described.sentences == (
        "call #1042 of the default group differs: ranks 0-2 in all_reduce of 4 Float (train.py:61),"
        " rank 3 (host algo-2) in barrier (train.py:7)",
    )
    assert described.hosts == {"algo-2"}


def test_a_call_without_frames_has_the_line_at_which_its_rank_is() -> None:
    bare = CollectiveCall(number=1042, operation="all_reduce", payload="4 Float")
    waits = StuckRank(process="rank 0", activity="waits", file="/code/train.py", line=7, function="step")

    described = describe_hang(
        {"algo-1": (waits, stuck(1))},
        {"algo-1": (rank_calls(0, BEFORE, bare, size=2), rank_calls(1, BEFORE, size=2))},
        alone=True,
    )

    assert described.sentences[0].endswith("in which rank 0 waits (train.py:7)")


def test_no_more_than_some_ranks_are_named() -> None:
    absent = range(1, 20)

    described = describe_hang(
        {"algo-1": tuple(stuck(number) for number in range(20))},
        {
            "algo-1": (
                rank_calls(0, BEFORE, LAST, size=20),
                *(rank_calls(number, BEFORE, size=20) for number in absent),
            )
        },
        alone=True,
    )

    assert len(described.sentences) == MOST + 1
    assert described.sentences[-1] == f"{len(absent) - MOST} more"


def test_without_collectives_the_stacks_decide() -> None:
    described = describe_hang({"algo-2": (stuck(0, "waits"), stuck(3))}, {}, alone=False)

    assert described.sentences == ("rank 3 is in save (/code/train.py:88) on host algo-2",)
    assert described.compared == ()
