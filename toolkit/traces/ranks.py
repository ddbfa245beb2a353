"""Traces of several ranks beside each other: who waits for whom, and whether communication runs beside computation."""

from collections.abc import Sequence
from statistics import median

from toolkit.records import Record
from toolkit.traces import intervals, names, nesting
from toolkit.traces.chrome import ANNOTATION, DEVICE, KERNEL, OPERATOR, Event, Trace
from toolkit.traces.figures import step_times

_MICRO = 1e-6
# A rank is the straggler if it came last to this share of the collectives, and the others lost this share of the time.
_OFTEN, _MUCH = 0.6, 0.02


class Collective(Record, frozen=True, kw_only=True):
    """A collective in which all ranks took part. `late_s`: by how much each of `ranks` came after the first.

    `step` None: outside of steps. `index` counts those of its name within the step.
    """

    name: str
    step: int | None
    index: int
    ranks: tuple[int, ...]
    late_s: tuple[float, ...]

    @property
    def last(self) -> int:
        """Return the rank that came last."""
        return self.ranks[self.late_s.index(max(self.late_s))]

    @property
    def spread_s(self) -> float:
        """Return how long the first rank waited for the last."""
        return max(self.late_s)


class RankTimes(Record, frozen=True, kw_only=True):
    """A rank's part, in seconds. `waited_s`: in collectives until the last rank came. `overlapped_s`: communication
    while the rank computed; the rest of `communication_s` is time that training lost. `computation_s`: in kernels, on a
    CPU in operators, that do not communicate. `last`: in how many collectives it came last."""

    rank: int
    step_s: float | None
    computation_s: float
    communication_s: float
    overlapped_s: float
    waited_s: float
    last: int


class Together(Record, frozen=True, kw_only=True):
    """What the traces of several ranks say. `straggler`: the rank that the others wait for, None if there is none.

    `clocks`: "same host", or "aligned": clocks of hosts differ, so that the ends of collectives, which all ranks leave
    together, were laid upon each other; lateness is then known to about a millisecond.
    """

    ranks: tuple[RankTimes, ...]
    collectives: tuple[Collective, ...]
    straggler: int | None
    clocks: str


def together(traces: Sequence[Trace]) -> Together:
    """Return what *traces*, one of each rank and of the same steps, say. A trace that names no rank counts as the place
    that it has in the list."""
    by_rank = {place if trace.rank is None else trace.rank: trace for place, trace in enumerate(traces)}
    found = {rank: _collectives(trace) for rank, trace in by_rank.items()}
    shared = sorted(set.intersection(*(set(each) for each in found.values())), key=str) if found else []
    same_host = len({trace.host for trace in traces}) <= 1
    shift = _shifts(by_rank, found, shared, aligned=not same_host)
    collectives = []
    waiting: dict[int, list[intervals.Span]] = {rank: [] for rank in by_rank}
    ranks = tuple(sorted(by_rank))
    for key in shared:
        arrived = {rank: found[rank][key].ts + shift[rank] for rank in ranks}
        first, last = min(arrived.values()), max(arrived.values())
        for rank in ranks:
            waiting[rank].append((arrived[rank], min(last, arrived[rank] + found[rank][key].dur)))
        step, name, index = key
        late = tuple((arrived[rank] - first) * _MICRO for rank in ranks)
        collectives.append((first, Collective(name=name, step=step, index=index, ranks=ranks, late_s=late)))
    in_order = tuple(each for _, each in sorted(collectives, key=lambda each: each[0]))
    # Several collectives may be under way at once: a second of waiting in two of them is one second.
    waited = {rank: intervals.length(intervals.union(spans)) * _MICRO for rank, spans in waiting.items()}
    times = tuple(_times(rank, by_rank[rank], waited[rank], in_order) for rank in ranks)
    return Together(
        ranks=times,
        collectives=in_order,
        straggler=_straggler(times, in_order),
        clocks="same host" if same_host else "aligned",
    )


_Key = tuple[int | None, str, int]


def _collectives(trace: Trace) -> dict[_Key, Event]:
    """Return the collectives of *trace* by step, name and place in the step, which are the same on every rank."""
    events = [event for event in trace.of(KERNEL) if names.communicates(event.name)]
    events = events or [event for event in trace.of(ANNOTATION) if names.communicates(event.name)]
    steps = [
        (event.ts, number) for event in trace.of(ANNOTATION) if (number := names.step_number(event.name)) is not None
    ]
    steps.sort()
    counts: dict[tuple[int | None, str], int] = {}
    found = {}
    place = 0
    for event in sorted(events, key=lambda event: event.ts):
        while place < len(steps) and steps[place][0] <= event.ts:
            place += 1
        step = steps[place - 1][1] if place else None
        name = names.collective(event.name)
        index = counts.get((step, name), 0)
        counts[step, name] = index + 1
        found[step, name, index] = event
    return found


def _shifts(
    by_rank: dict[int, Trace], found: dict[int, dict[_Key, Event]], shared: Sequence[_Key], *, aligned: bool
) -> dict[int, float]:
    """Return what to add to each rank's times, in microseconds, so that they are of one clock."""
    base = min(trace.base_s for trace in by_rank.values()) if by_rank else 0.0
    shift = {rank: (trace.base_s - base) / _MICRO for rank, trace in by_rank.items()}
    if not aligned or not shared:
        return shift
    first = min(by_rank)
    return {rank: median(found[first][key].end - found[rank][key].end for key in shared) for rank in by_rank}


def _times(rank: int, trace: Trace, waited_s: float, collectives: Sequence[Collective]) -> RankTimes:
    communication = intervals.union((event.ts, event.end) for event in _collectives(trace).values())
    computation = _computation(trace)
    steps = step_times(trace.of(ANNOTATION), 0.0)
    return RankTimes(
        rank=rank,
        step_s=median(step.duration_s for step in steps) if steps else None,
        computation_s=intervals.length(computation) * _MICRO,
        communication_s=intervals.length(communication) * _MICRO,
        overlapped_s=intervals.length(intervals.common(communication, computation)) * _MICRO,
        waited_s=waited_s,
        last=sum(1 for each in collectives if each.last == rank),
    )


def _computation(trace: Trace) -> list[intervals.Span]:
    device = trace.of(*DEVICE)
    if device:
        return intervals.union((event.ts, event.end) for event in device if not names.communicates(event.name))
    operators = trace.of(OPERATOR)
    calls = intervals.union((event.ts, event.end) for event in operators if names.communicates(event.name))
    # An operator that calls a collective waits in it.
    return intervals.without(intervals.union((event.ts, event.end) for event in nesting.outermost(operators)), calls)


def _straggler(times: Sequence[RankTimes], collectives: Sequence[Collective]) -> int | None:
    if len(times) < 2 or not collectives:
        return None
    most = max(times, key=lambda each: each.last)
    lost = max(each.waited_s for each in times)
    whole = max(each.computation_s + each.communication_s for each in times)
    return most.rank if most.last >= _OFTEN * len(collectives) and lost >= _MUCH * whole else None
