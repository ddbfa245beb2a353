"""Self time: how long an event ran less its children, which are the events of its thread that lie within it."""

from collections.abc import Iterable

from toolkit.traces.chrome import Event


def self_times(events: Iterable[Event]) -> list[tuple[Event, float]]:
    """Return each of *events* with its self time in microseconds, thread by thread, ascending in time.

    Events of one thread nest, or end a little after their parent, as clocks are read one after the other: a child's
    time beyond its parent's end is not the parent's.
    """
    threads: dict[tuple[object, object], list[Event]] = {}
    for event in events:
        threads.setdefault((event.pid, event.tid), []).append(event)
    found = []
    for thread in threads.values():
        thread.sort(key=lambda event: (event.ts, -event.dur))
        own = [event.dur for event in thread]
        open_events: list[tuple[float, int]] = []
        for number, event in enumerate(thread):
            start = event.ts
            while open_events and open_events[-1][0] <= start:
                open_events.pop()
            end = start + event.dur
            if open_events:
                parent_end, parent = open_events[-1]
                own[parent] -= min(end, parent_end) - start
            open_events.append((end, number))
        found += list(zip(thread, own, strict=True))
    return found


def outermost(events: Iterable[Event]) -> list[Event]:
    """Return those of *events* that lie within no other of their thread."""
    threads: dict[tuple[object, object], list[Event]] = {}
    for event in events:
        threads.setdefault((event.pid, event.tid), []).append(event)
    found = []
    for thread in threads.values():
        thread.sort(key=lambda event: (event.ts, -event.dur))
        end = float("-inf")
        for event in thread:
            if event.ts >= end:
                found.append(event)
                end = event.end
    return found
