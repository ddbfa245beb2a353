"""Says in words which rank a job that hangs waits for, by collectives (comparison.py) and the places of its ranks."""

from collections.abc import Mapping

from toolkit.collectives.comparison import CallPlace, GroupComparison, compare
from toolkit.collectives.records import RankCalls
from toolkit.job.stuck import MOST, StuckRank, culprits, described, name_ranks
from toolkit.records import Record

# Groups that a message tells of; outcome.json has more.
MOST_GROUPS = 3
# The host and the place of each rank, by its number.
Places = Mapping[int, tuple[str, StuckRank]]


class HangDescription(Record, frozen=True, kw_only=True):
    """The description of a hang."""

    sentences: tuple[str, ...]
    hosts: frozenset[str]
    """The hosts of the ranks that the others wait for; empty: none is named."""
    compared: tuple[GroupComparison, ...] = ()


def describe_hang(
    ranks_by_host: Mapping[str, tuple[StuckRank, ...]],
    calls_by_host: Mapping[str, tuple[RankCalls, ...]],
    *,
    alone: bool,
) -> HangDescription:
    """Return the description of a hang from the places of all ranks by host, and from their collectives.

    *alone*: the job has one host, which is not named. A rank is named by its collectives if it never reached the one
    that others wait in, and is neither in another one nor, by its stack, in a wait for others. Where the collectives
    show no such rank, the stacks decide (job/stuck.py), and what the others wait in follows.
    """
    compared = compare(rank_calls for all_calls in calls_by_host.values() for rank_calls in all_calls)
    places = _place_ranks(ranks_by_host, calls_by_host)
    faulty = [group for group in compared if group.state in ("differs", "missing")][:MOST_GROUPS]
    hosts: set[str] = set()
    sentences: list[str] = []
    for group in faulty:
        if group.state == "differs":
            sentences.append(_describe_difference(group, places, alone))
            hosts |= {places[rank][0] for rank in group.blamed if rank in places}
            continue
        for rank in group.blamed:
            if rank in places and places[rank][1].activity != "waits":
                wait = _describe_wait(group, places)
                sentences.append(f"{_name_with_place(rank, places, alone)} and never reached {wait}")
                hosts.add(places[rank][0])
    if len(sentences) > MOST:
        sentences = [*sentences[:MOST], f"{len(sentences) - MOST} more"]
    if sentences:
        return HangDescription(sentences=tuple(sentences), hosts=frozenset(hosts), compared=compared)
    waits = [f"{_describe_waiting(group, places)}, which {name_ranks(group.absent)} never reached" for group in faulty]
    shared = [group for group in compared if group.state == "shared"][:MOST_GROUPS]
    waits += [_describe_waiting(group, places) + ("" if group.unread else ", all of the group") for group in shared]
    return HangDescription(
        sentences=(*described(ranks_by_host, alone=alone), *waits),
        hosts=frozenset(host for host, _ in culprits(ranks_by_host)),
        compared=compared,
    )


def _place_ranks(
    ranks_by_host: Mapping[str, tuple[StuckRank, ...]], calls_by_host: Mapping[str, tuple[RankCalls, ...]]
) -> dict[int, tuple[str, StuckRank]]:
    """Return (host, place) of each rank by its number, which its calls tell, or its name: "rank 3"."""
    places = {}
    for host, ranks in ranks_by_host.items():
        numbers = {rank_calls.process: rank_calls.rank for rank_calls in calls_by_host.get(host, ())}
        for rank in ranks:
            digits = rank.process.removeprefix("rank ")
            number = numbers.get(rank.process, int(digits) if digits.isdecimal() else None)
            if number is not None:
                places[number] = (host, rank)
    return places


def _describe_wait(group: GroupComparison, places: Places) -> str:
    """Return "all_reduce #1042 of the default group, in which ranks 0-2 wait (train.py:61)"."""
    waiting = [place for place in group.places if not place.is_complete]
    waits = ", ".join(f"{name_ranks(place.ranks)} wait{_s(place.ranks)}{_line(place, places)}" for place in waiting)
    return f"{group.operation} #{group.number} of {group.group}, in which {waits}"


def _describe_waiting(group: GroupComparison, places: Places) -> str:
    """Return "ranks 0-2 wait in all_reduce #1042 of the default group (train.py:61)"."""
    waiting = [place for place in group.places if not place.is_complete]
    ranks = tuple(sorted(rank for place in waiting for rank in place.ranks))
    lines = ", ".join(filter(None, dict.fromkeys(_line(place, places).strip(" ()") for place in waiting)))
    waits = f"{group.operation} #{group.number} of {group.group}"
    return f"{name_ranks(ranks)} wait{_s(ranks)} in {waits}{f' ({lines})' if lines else ''}"


def _describe_difference(group: GroupComparison, places: Places, alone: bool) -> str:
    """Return "call #12 of the default group differs: ranks 0-2 make it all_reduce of 4 Float (train.py:61), rank 3
    broadcast of 4 Float (train.py:70)"."""
    calls: dict[tuple[str, str, str], list[int]] = {}
    for place in group.places:
        calls.setdefault((place.operation, place.payload, _line(place, places)), []).extend(place.ranks)
    variants = []
    for (operation, payload, line), ranks in sorted(calls.items(), key=lambda entry: -len(entry[1])):
        name = name_ranks(tuple(sorted(ranks)))
        if len(ranks) == 1 and ranks[0] in places and not alone:
            name = f"{name} (host {places[ranks[0]][0]})"
        variants.append(f"{name} in {operation}{f' of {payload}' if payload else ''}{line}")
    return f"call #{group.number} of {group.group} differs: {', '.join(variants)}"


def _name_with_place(rank: int, places: Places, alone: bool) -> str:
    """Return "rank 3 (host algo-2) is in save (train.py:88)"."""
    host, stuck = places[rank]
    name = f"rank {rank}" if alone else f"rank {rank} (host {host})"
    if stuck.process_state:
        return f"{name} is {stuck.process_state}"
    if not stuck.file:
        return f"{name} runs"
    return f"{name} is in {stuck.function} ({stuck.file.rpartition('/')[2]}:{stuck.line})"


def _line(place: CallPlace, places: Places) -> str:
    """Return " (train.py:61)"; of a call without frames, the line at which its first rank is, "" if unknown."""
    file, line = place.file, place.line
    if not file and place.ranks and place.ranks[0] in places:
        stuck = places[place.ranks[0]][1]
        file, line = stuck.file, stuck.line
    return f" ({file.rpartition('/')[2]}:{line})" if file else ""


def _s(ranks: tuple[int, ...]) -> str:
    return "s" if len(ranks) == 1 else ""
