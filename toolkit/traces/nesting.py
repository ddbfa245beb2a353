"""Self time: the duration of an event without its children, the events of its thread that lie within it."""

from collections.abc import Iterable

from toolkit.traces.chrome import TraceEvent


def self_times(events: Iterable[TraceEvent]) -> list[tuple[TraceEvent, float]]:
    """Return each of *events* with its self time in microseconds, thread by thread, ascending in time.

    Events of one thread nest, or end a little after their parent, as clocks are read one after the other: a child's
    time beyond its parent's end is not the parent's.
    """
    threads: dict[tuple[object, object], list[TraceEvent]] = {}
    for event in events:
        threads.setdefault((event.pid, event.tid), []).append(event)
    pairs = []
    for thread in threads.values():
        thread.sort(key=lambda event: (event.ts, -event.dur))
        durations = [event.dur for event in thread]
        open_events: list[tuple[float, int]] = []
        for number, event in enumerate(thread):
            start = event.ts
            while open_events and open_events[-1][0] <= start:
                open_events.pop()
            end = start + event.dur
            if open_events:
                parent_end, parent = open_events[-1]
                durations[parent] -= min(end, parent_end) - start
            open_events.append((end, number))
        pairs += list(zip(thread, durations, strict=True))
    return pairs


def find_outermost(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Return the events that lie within no other event of their thread."""
    threads: dict[tuple[object, object], list[TraceEvent]] = {}
    for event in events:
        threads.setdefault((event.pid, event.tid), []).append(event)
    outermost_events = []
    for thread in threads.values():
        thread.sort(key=lambda event: (event.ts, -event.dur))
        end = float("-inf")
        for event in thread:
            if event.ts >= end:
                outermost_events.append(event)
                end = event.end
    return outermost_events
