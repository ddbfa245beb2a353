"""Compares the traces of several ranks: which rank the others wait for, and whether communication overlaps
computation."""

from collections.abc import Sequence
from statistics import median

from toolkit.records import Record
from toolkit.traces import intervals, names, nesting
from toolkit.traces.chrome import ANNOTATION, DEVICE, KERNEL, OPERATOR, ChromeTrace, TraceEvent
from toolkit.traces.figures import step_times

_MICRO = 1e-6
# A rank is the straggler if it was last in this share of the collectives, and the others lost this share of the time.
_OFTEN_LAST, _LOST_SHARE = 0.6, 0.02


class Collective(Record, frozen=True, kw_only=True):
    """A collective in which all ranks took part."""

    name: str
    """Its name, equal on all ranks."""
    step: int | None
    """The number of the step; None outside of steps."""
    index: int
    """Counts the collectives of its name within the step."""
    ranks: tuple[int, ...]
    """The ranks, ascending."""
    late_s: tuple[float, ...]
    """The delay of each of `ranks` after the first to arrive."""

    @property
    def last(self) -> int:
        """The rank that arrived last."""
        return self.ranks[self.late_s.index(max(self.late_s))]

    @property
    def spread_s(self) -> float:
        """The time that the first rank waited for the last."""
        return max(self.late_s)


class RankTimes(Record, frozen=True, kw_only=True):
    """The times of one rank."""

    rank: int
    """The rank."""
    step_s: float | None
    """The median step; None without steps."""
    computation_s: float
    """The time in kernels, on a CPU in operators, that do not communicate."""
    communication_s: float
    """The time in collectives."""
    overlapped_s: float
    """The communication while the rank computed; the rest of `communication_s` is time that training lost."""
    waited_s: float
    """The time in collectives until the last rank arrived."""
    last: int
    """The number of collectives in which it arrived last."""


class RankComparison(Record, frozen=True, kw_only=True):
    """The comparison of several ranks."""

    ranks: tuple[RankTimes, ...]
    """The times of each rank."""
    collectives: tuple[Collective, ...]
    """The collectives in which all took part, in order of time."""
    straggler: int | None
    """The rank that the others wait for; None if there is none."""
    clocks: str
    """"same host", or "aligned": the clocks of hosts differ, so they were aligned by the ends of collectives, which all
    ranks leave together. Delays are then known to about a millisecond."""


def compare_ranks(traces: Sequence[ChromeTrace]) -> RankComparison:
    """Return the comparison of *traces*, one of each rank and of the same steps. A trace that names no rank gets its
    index as its rank."""
    by_rank = {number if trace.rank is None else trace.rank: trace for number, trace in enumerate(traces)}
    collectives_by_rank = {rank: _find_collectives(trace) for rank, trace in by_rank.items()}
    shared_keys: list[_Key] = []
    if collectives_by_rank:
        keys_of_ranks = (set(collectives_of_rank) for collectives_of_rank in collectives_by_rank.values())
        shared_keys = sorted(set.intersection(*keys_of_ranks), key=str)
    same_host = len({trace.host for trace in traces}) <= 1
    shift_by_rank = _clock_shifts(by_rank, collectives_by_rank, shared_keys, aligned=not same_host)
    collectives = []
    waiting: dict[int, list[intervals.Span]] = {rank: [] for rank in by_rank}
    ranks = tuple(sorted(by_rank))
    for key in shared_keys:
        arrived = {rank: collectives_by_rank[rank][key].ts + shift_by_rank[rank] for rank in ranks}
        first, last = min(arrived.values()), max(arrived.values())
        for rank in ranks:
            waiting[rank].append((arrived[rank], min(last, arrived[rank] + collectives_by_rank[rank][key].dur)))
        step, name, index = key
        late = tuple((arrived[rank] - first) * _MICRO for rank in ranks)
        collectives.append((first, Collective(name=name, step=step, index=index, ranks=ranks, late_s=late)))
    in_order = tuple(collective for _, collective in sorted(collectives, key=lambda pair: pair[0]))
    # Several collectives may be under way at once: a second of waiting in two of them is one second.
    waited = {rank: intervals.total_length(intervals.union(spans)) * _MICRO for rank, spans in waiting.items()}
    times = tuple(_measure_rank(rank, by_rank[rank], waited[rank], in_order) for rank in ranks)
    return RankComparison(
        ranks=times,
        collectives=in_order,
        straggler=_find_straggler(times, in_order),
        clocks="same host" if same_host else "aligned",
    )


_Key = tuple[int | None, str, int]


def _find_collectives(trace: ChromeTrace) -> dict[_Key, TraceEvent]:
    """Return the collectives of *trace* by step, name and index in the step, which are equal on all ranks."""
    events = [event for event in trace.of(KERNEL) if names.communicates(event.name)]
    events = events or [event for event in trace.of(ANNOTATION) if names.communicates(event.name)]
    steps = [
        (event.ts, number) for event in trace.of(ANNOTATION) if (number := names.step_number(event.name)) is not None
    ]
    steps.sort()
    counts: dict[tuple[int | None, str], int] = {}
    collectives = {}
    number = 0
    for event in sorted(events, key=lambda event: event.ts):
        while number < len(steps) and steps[number][0] <= event.ts:
            number += 1
        step = steps[number - 1][1] if number else None
        name = names.normalize_collective(event.name)
        index = counts.get((step, name), 0)
        counts[step, name] = index + 1
        collectives[step, name, index] = event
    return collectives


def _clock_shifts(
    by_rank: dict[int, ChromeTrace],
    collectives_by_rank: dict[int, dict[_Key, TraceEvent]],
    shared_keys: Sequence[_Key],
    *,
    aligned: bool,
) -> dict[int, float]:
    """Return the microseconds to add to each rank's times, so that all are of one clock."""
    base = min(trace.base_s for trace in by_rank.values()) if by_rank else 0.0
    shift_by_rank = {rank: (trace.base_s - base) / _MICRO for rank, trace in by_rank.items()}
    if not aligned or not shared_keys:
        return shift_by_rank
    first = min(by_rank)
    return {
        rank: median(collectives_by_rank[first][key].end - collectives_by_rank[rank][key].end for key in shared_keys)
        for rank in by_rank
    }


def _measure_rank(rank: int, trace: ChromeTrace, waited_s: float, collectives: Sequence[Collective]) -> RankTimes:
    communication = intervals.union((event.ts, event.end) for event in _find_collectives(trace).values())
    computation = _computation_times(trace)
    steps = step_times(trace.of(ANNOTATION), 0.0)
    return RankTimes(
        rank=rank,
        step_s=median(step.duration_s for step in steps) if steps else None,
        computation_s=intervals.total_length(computation) * _MICRO,
        communication_s=intervals.total_length(communication) * _MICRO,
        overlapped_s=intervals.total_length(intervals.intersect(communication, computation)) * _MICRO,
        waited_s=waited_s,
        last=sum(1 for collective in collectives if collective.last == rank),
    )


def _computation_times(trace: ChromeTrace) -> list[intervals.Span]:
    device = trace.of(*DEVICE)
    if device:
        return intervals.union((event.ts, event.end) for event in device if not names.communicates(event.name))
    operators = trace.of(OPERATOR)
    calls = intervals.union((event.ts, event.end) for event in operators if names.communicates(event.name))
    # An operator that calls a collective waits in it.
    return intervals.subtract(
        intervals.union((event.ts, event.end) for event in nesting.find_outermost(operators)), calls
    )


def _find_straggler(times: Sequence[RankTimes], collectives: Sequence[Collective]) -> int | None:
    if len(times) < 2 or not collectives:
        return None
    last_most_often = max(times, key=lambda times_of_rank: times_of_rank.last)
    longest_wait_s = max(times_of_rank.waited_s for times_of_rank in times)
    busiest_s = max(times_of_rank.computation_s + times_of_rank.communication_s for times_of_rank in times)
    return (
        last_most_often.rank
        if last_most_often.last >= _OFTEN_LAST * len(collectives) and longest_wait_s >= _LOST_SHARE * busiest_s
        else None
    )
