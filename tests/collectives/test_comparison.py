"""The comparison finds the call that differs or is missing, and accuses no rank with an equal history."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from toolkit.collectives.comparison import MOST_GROUPS, compare
from toolkit.collectives.records import CollectiveCall, GroupCalls, RankCalls, keep_newest


def call(
    number: int, operation: str = "all_reduce", payload: str = "4 Float", *, waits: bool = False
) -> CollectiveCall:
    return CollectiveCall(
        number=number, operation=operation, payload=payload, is_complete=not waits, file="train.py", line=61
    )


def group(*calls: CollectiveCall, name: str = "0", ranks: tuple[int, ...] = (0, 1, 2)) -> GroupCalls:
    return GroupCalls(name=name, description="default_pg" if name == "0" else "", ranks=ranks, calls=calls)


def ranks(groups_by_rank: Mapping[int, tuple[GroupCalls, ...]], *, is_whole: bool = True) -> list[RankCalls]:
    return [RankCalls(rank=rank, groups=groups, is_whole=is_whole) for rank, groups in groups_by_rank.items()]


def test_a_rank_that_never_reached_the_call_in_which_the_others_wait_is_blamed() -> None:
    waiting = group(call(1), call(2, waits=True))

    (comparison,) = compare(ranks({0: (waiting,), 1: (waiting,), 2: (group(call(1)),)}))

    assert (comparison.state, comparison.number, comparison.operation) == ("missing", 2, "all_reduce")
    assert (comparison.absent, comparison.blamed) == ((2,), (2,))
    assert (comparison.common_number, comparison.common_operation) == (1, "all_reduce")
    assert [(place.ranks, place.line) for place in comparison.places] == [((0, 1), 61)]


def test_a_rank_without_any_call_in_the_group_is_blamed_if_its_recorder_has_dropped_nothing() -> None:
    waiting = group(call(1, waits=True))

    (whole,) = compare(ranks({0: (waiting,), 1: (waiting,), 2: ()}))
    (cut,) = compare(ranks({0: (waiting,), 1: (waiting,), 2: ()}, is_whole=False))

    assert (whole.state, whole.blamed, whole.unread) == ("missing", (2,), ())
    assert (cut.state, cut.blamed, cut.unread) == ("shared", (), (2,))


def test_another_operation_under_one_number_differs_also_when_complete() -> None:
    most = group(call(1), call(2))

    (comparison,) = compare(ranks({0: (most,), 1: (group(call(1), call(2, "broadcast")),), 2: (most,)}))

    assert (comparison.state, comparison.number, comparison.blamed) == ("differs", 2, (1,))
    assert [(place.ranks, place.operation) for place in comparison.places] == [
        ((0, 2), "all_reduce"),
        ((1,), "broadcast"),
    ]


def test_another_payload_differs_only_while_a_rank_waits_and_of_two_ranks_none_is_blamed() -> None:
    def both(*, waits: bool) -> list[RankCalls]:
        members = (0, 1)
        other = group(call(1, payload="5 Float"), ranks=members)
        return ranks({0: (group(call(1, waits=waits), ranks=members),), 1: (other,)})

    (waiting,), (complete,) = compare(both(waits=True)), compare(both(waits=False))

    assert (waiting.state, waiting.number, waiting.blamed) == ("differs", 1, ())
    assert complete.state == "idle"


def test_a_rank_that_waits_in_another_group_is_not_blamed_but_the_one_that_it_waits_for() -> None:
    pair = (1, 2)
    job = compare(
        ranks(
            {
                0: (group(call(1, waits=True)),),
                1: (group(), group(call(4, waits=True), name="p", ranks=pair)),
                2: (group(), group(call(3), name="p", ranks=pair)),
            }
        )
    )

    assert [(comparison.group, comparison.state, comparison.blamed) for comparison in job] == [
        ("the default group", "missing", (2,)),
        ("group p", "missing", (2,)),
    ]


def test_of_two_crossed_groups_no_rank_is_blamed() -> None:
    def rank(waits_in: str) -> tuple[GroupCalls, ...]:
        return tuple(
            group(*([call(1, waits=True)] if name == waits_in else []), name=name, ranks=(0, 1)) for name in ("a", "b")
        )

    crossed = compare(ranks({0: rank("a"), 1: rank("b")}))

    assert [(comparison.state, comparison.absent, comparison.blamed) for comparison in crossed] == [
        ("missing", (1,), ()),
        ("missing", (0,), ()),
    ]


def test_a_call_that_all_ranks_are_in_is_shared_and_the_first_of_several() -> None:
    waiting = group(call(1), call(2, waits=True), call(3, waits=True), ranks=(0, 1))

    (comparison,) = compare(ranks({0: (waiting,), 1: (waiting,)}))

    assert (comparison.state, comparison.number, comparison.absent) == ("shared", 2, ())


def test_a_rank_that_appears_twice_makes_the_comparison_void() -> None:
    waiting = RankCalls(rank=0, groups=(group(call(1, waits=True)),), is_whole=True)

    assert compare([waiting, waiting]) == ()


def test_what_is_wrong_comes_first_and_the_groups_are_limited() -> None:
    fine = [group(call(1), name=str(name), ranks=(0, 1)) for name in range(1, 20)]
    waiting, behind = group(call(1, waits=True), ranks=(0, 1)), group(ranks=(0, 1))

    job = compare(ranks({0: (*fine, waiting), 1: (*fine, behind)}))

    assert len(job) == MOST_GROUPS
    assert [comparison.state for comparison in job] == ["missing"] + ["idle"] * (MOST_GROUPS - 1)


CALLS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["all_reduce", "broadcast", "barrier"]), st.integers(1, 3)),
    max_size=20,
)


@given(
    history=CALLS,
    cuts=st.lists(st.integers(0, 20), min_size=2, max_size=4),
    kept=st.integers(1, 20),
    waits=st.booleans(),
)
def test_equal_histories_accuse_nobody_whatever_part_of_each_ring_is_kept(
    history: list[tuple[str, str, int]], cuts: list[int], kept: int, waits: bool
) -> None:
    members = tuple(range(len(cuts)))
    numbers = {"a": 0, "b": 0}
    calls: list[tuple[str, CollectiveCall]] = []
    for position, (name, operation, size) in enumerate(history):
        numbers[name] += 1
        is_last = position == len(history) - 1
        calls.append((name, call(numbers[name], operation, f"{size} Float", waits=waits and is_last)))

    def rank_calls(rank: int, cut: int) -> RankCalls:
        left = calls[cut:]
        groups = [
            group(*(reached for other, reached in left if other == name), name=name, ranks=members)
            for name in ("a", "b")
            if any(other == name for other, _ in left)
        ]
        return keep_newest(RankCalls(rank=rank, groups=tuple(groups), is_whole=cut == 0), kept)

    job = compare([rank_calls(rank, cut) for rank, cut in enumerate(cuts)])

    assert {comparison.state for comparison in job} <= {"idle", "shared"}
    assert all(not comparison.blamed for comparison in job)


@given(
    history=st.lists(st.sampled_from(["all_reduce", "barrier"]), min_size=2, max_size=12),
    behind=st.integers(1, 11),
    cuts=st.lists(st.integers(0, 11), min_size=3, max_size=3),
)
def test_the_rank_behind_is_blamed_whatever_else_is_dropped(history: list[str], behind: int, cuts: list[int]) -> None:
    reached = [len(history), len(history), min(behind, len(history) - 1)]

    job = compare(
        RankCalls(
            rank=rank,
            groups=(
                group(
                    *(
                        call(number, operation, waits=number > reached[2])
                        for number, operation in enumerate(history[:last], start=1)
                        if number > min(cut, last - 1)
                    )
                ),
            ),
        )
        for rank, (last, cut) in enumerate(zip(reached, cuts, strict=True))
    )

    (comparison,) = job
    assert (comparison.state, comparison.blamed) == ("missing", (2,))
    # The first call that it did not reach, of those that are left.
    assert comparison.number == max(reached[2] + 1, min(min(cut, len(history) - 1) + 1 for cut in cuts[:2]))


def test_calls_of_1000_ranks_with_full_rings_are_compared() -> None:
    members = tuple(range(1000))
    full = tuple(call(number) for number in range(1, 2001))
    waiting = group(*full[1:], call(2001, waits=True), ranks=members)

    job = compare(ranks({**dict.fromkeys(range(999), (waiting,)), 999: (group(*full, ranks=members),)}))

    assert [(comparison.state, comparison.number, comparison.blamed) for comparison in job] == [
        ("missing", 2001, (999,))
    ]
