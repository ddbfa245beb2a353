"""The newest calls of each rank go into a message, as many as it holds."""

from toolkit.collectives.records import CollectiveCall, GroupCalls, RankCalls, fit_calls
from toolkit.records import encode


def make_calls(count: int) -> tuple[RankCalls, ...]:
    calls = tuple(CollectiveCall(number=number, operation="all_reduce") for number in range(count))
    group = GroupCalls(name="0", calls=calls)
    return tuple(RankCalls(rank=rank, groups=(group,)) for rank in range(8))


def test_the_newest_calls_of_each_rank_are_kept_in_the_room_of_a_message() -> None:
    everything = make_calls(2000)

    kept = fit_calls(everything, 128 << 10)

    assert 64 << 10 < len(encode(kept)) <= 128 << 10
    assert {rank_calls.groups[0].calls[-1].number for rank_calls in kept} == {1999}
    assert fit_calls(make_calls(5), 128 << 10) == make_calls(5)
    assert fit_calls(everything, 10) == ()
