"""Compares the collective calls of all ranks: which call differs, and who never reached the one that others wait in.

It accuses nobody by a call that a recorder has dropped: only calls that are there are compared, and a rank is behind
only by its newest call. Equal histories are never called different, whatever part of each is left.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from toolkit.collectives.records import MOST_RANKS, CollectiveCall, GroupCalls, Name, Number, Path, RankCalls
from toolkit.records import Record, meaning

# In a result, which is in outcome.json and in messages: groups, and different places of one call.
MOST_GROUPS = 8
MOST_PLACES = 8
Ranks = Annotated[tuple[Number, ...], Meta(max_length=MOST_RANKS)]
State = Literal["differs", "missing", "shared", "idle"]


class CallPlace(Record, frozen=True, kw_only=True):
    """The newest call, in one group, of the ranks that made it in the same place."""

    ranks: Annotated[Ranks, meaning("the ranks")]
    number: Annotated[Number, meaning("the number of the call in its group, as torch counts; 0: none was made")] = 0
    operation: Annotated[Name, meaning("what was called: all_reduce")] = ""
    payload: Annotated[Name, meaning("elements and types that must be equal on all ranks: 4 Float")] = ""
    is_complete: Annotated[bool, meaning("false: the ranks wait in it")] = False
    file: Annotated[Path, meaning("the file of the innermost frame in the user's own code; empty: not known")] = ""
    line: Annotated[Number, meaning("the line of that frame")] = 0
    function: Annotated[Name, meaning("the function of that frame")] = ""


class GroupComparison(Record, frozen=True, kw_only=True):
    """The calls of all ranks of one process group, compared."""

    group: Annotated[str, Meta(max_length=256, description="the process group: the default group, group 3 (tensor)")]
    state: Annotated[
        State,
        meaning(
            "differs: ranks made different calls under one number; missing: ranks wait in a call that others never"
            " reached; shared: all ranks are in the same call; idle: no rank waits in this group"
        ),
    ]
    common_number: Annotated[Number, meaning("the last call that all ranks have completed; 0: none that is known")] = 0
    common_operation: Annotated[Name, meaning("what that call was")] = ""
    number: Annotated[Number, meaning("the first call that differs, or that ranks wait in; 0: none")] = 0
    operation: Annotated[Name, meaning("what that call is; where it differs, of most ranks")] = ""
    places: Annotated[
        tuple[CallPlace, ...],
        Meta(
            max_length=MOST_PLACES,
            description="that call of each rank that has made it; if no rank waits, the newest call of each",
        ),
    ] = ()
    absent: Annotated[Ranks, meaning("the ranks that have not made that call")] = ()
    unread: Annotated[Ranks, meaning("the ranks of the group whose calls could not be read")] = ()
    blamed: Annotated[
        Ranks, meaning("those of them that wait for no other rank, or the fewer ones with a different call")
    ] = ()


def compare(all_calls: Iterable[RankCalls]) -> tuple[GroupComparison, ...]:
    """Return the comparison of each process group, what is wrong first; at most MOST_GROUPS.

    *all_calls*: of each rank that could be read, in any order. A rank that is there twice, as of two jobs in one, makes
    the comparison void: () is returned.
    """
    calls_by_rank: dict[int, RankCalls] = {}
    for rank_calls in all_calls:
        if rank_calls.rank in calls_by_rank:
            return ()
        calls_by_rank[rank_calls.rank] = rank_calls
    groups: dict[tuple[str, str], dict[int, GroupCalls]] = {}
    for rank, rank_calls in sorted(calls_by_rank.items()):
        for group in rank_calls.groups:
            groups.setdefault((group.name, group.description), {})[rank] = group
    compared = [_compare_group(by_rank, calls_by_rank) for by_rank in groups.values()]
    order: tuple[State, ...] = ("differs", "missing", "shared", "idle")
    return tuple(sorted(compared, key=lambda group: (order.index(group.state), not group.blamed)))[:MOST_GROUPS]


def _compare_group(by_rank: Mapping[int, GroupCalls], calls_by_rank: Mapping[int, RankCalls]) -> GroupComparison:
    """Return the comparison of one group; *by_rank*: of the ranks that made a call in it."""
    title = next(iter(by_rank.values())).title
    members = {rank for group in by_rank.values() for rank in group.ranks} | by_rank.keys()
    numbered = {rank: {call.number: call for call in group.calls} for rank, group in by_rank.items()}
    # A rank that has recorded nothing in this group has made no call, unless its recorder has dropped some.
    idle = {
        rank for rank in members if not numbered.get(rank) and rank in calls_by_rank and calls_by_rank[rank].is_whole
    }
    newest = {rank: max(calls) for rank, calls in numbered.items() if calls} | dict.fromkeys(idle, 0)
    unread = tuple(sorted(members - newest.keys()))
    numbers = sorted({number for calls in numbered.values() for number in calls})
    common, common_operation = _find_common(numbered, newest)
    calls_by_number = {
        number: {rank: calls[number] for rank, calls in numbered.items() if number in calls} for number in numbers
    }
    state, number, blamed = _find_fault(calls_by_number, newest, calls_by_rank)
    if state == "idle":
        calls = {rank: numbered[rank][last] for rank, last in newest.items() if last}
    else:
        calls = calls_by_number[number]
    return GroupComparison(
        group=title,
        state=state,
        common_number=common,
        common_operation=common_operation,
        number=number,
        operation=_most_common([call.operation for call in calls.values()]) if number else "",
        places=_group_places(calls),
        absent=_find_absent(newest, number),
        unread=unread,
        blamed=blamed,
    )


def _find_fault(
    calls_by_number: Mapping[int, Mapping[int, CollectiveCall]],
    newest: Mapping[int, int],
    calls_by_rank: Mapping[int, RankCalls],
) -> tuple[State, int, tuple[int, ...]]:
    """Return the group's state, the number of the call that shows it (0: none does), and the ranks to blame."""
    shared = 0
    for number, calls in calls_by_number.items():
        if _differ(calls.values()):
            return "differs", number, _find_fewer(calls)
        if all(call.is_complete for call in calls.values()):
            continue
        absent = _find_absent(newest, number)
        if absent:
            # If the groups wait for each other in a circle, nobody is to blame.
            return "missing", number, tuple(rank for rank in absent if not _is_waiting(calls_by_rank[rank]))
        shared = shared or number
    return ("shared", shared, ()) if shared else ("idle", 0, ())


def _find_absent(newest: Mapping[int, int], number: int) -> tuple[int, ...]:
    """Return the ranks that have not made call *number*, by the number of the *newest* call of each."""
    return tuple(sorted(rank for rank, last in newest.items() if last < number))


def _differ(calls: Iterable[CollectiveCall]) -> bool:
    """Return whether these calls with one number cannot belong together.

    Where all are complete, other sizes were no fault: only what is called must agree.
    """
    calls = tuple(calls)
    if len({call.operation for call in calls}) > 1:
        return True
    return len({call.payload for call in calls}) > 1 and not all(call.is_complete for call in calls)


def _find_fewer(calls: Mapping[int, CollectiveCall]) -> tuple[int, ...]:
    """Return the ranks whose call differs from that of more than half of them; () if there is no such majority."""
    ranks_by_call: dict[tuple[str, str], list[int]] = {}
    for rank, call in calls.items():
        ranks_by_call.setdefault((call.operation, call.payload), []).append(rank)
    most = max(ranks_by_call.values(), key=len)
    return tuple(sorted(calls.keys() - set(most))) if 2 * len(most) > len(calls) else ()


def _find_common(numbered: Mapping[int, Mapping[int, CollectiveCall]], newest: Mapping[int, int]) -> tuple[int, str]:
    """Return the last call that all ranks have, complete, as (number, operation); (0, ""): none is known."""
    if any(not number for number in newest.values()) or not numbered:
        return 0, ""
    shared = set.intersection(*({n for n, call in calls.items() if call.is_complete} for calls in numbered.values()))
    if not shared:
        return 0, ""
    return max(shared), next(iter(numbered.values()))[max(shared)].operation


def _group_places(calls: Mapping[int, CollectiveCall]) -> tuple[CallPlace, ...]:
    ranks_by_call: dict[CollectiveCall, list[int]] = {}
    for rank, call in sorted(calls.items()):
        ranks_by_call.setdefault(call, []).append(rank)
    places = [
        CallPlace(
            ranks=tuple(ranks),
            number=call.number,
            operation=call.operation,
            payload=call.payload,
            is_complete=call.is_complete,
            file=call.file,
            line=call.line,
            function=call.function,
        )
        for call, ranks in ranks_by_call.items()
    ]
    return tuple(sorted(places, key=lambda place: (place.is_complete, place.ranks)))[:MOST_PLACES]


def _most_common(names: list[str]) -> str:
    return max(names, key=names.count)


def _is_waiting(rank_calls: RankCalls) -> bool:
    """Return whether the rank's newest call in one of its groups is not complete."""
    return any(group.calls and not group.calls[-1].is_complete for group in rank_calls.groups)
