"""What a trace of one rank says: which kernels (on a CPU: operators) take the time, and how busy the device was."""

from collections.abc import Iterable, Sequence

from toolkit.records import Record
from toolkit.traces import intervals, names, nesting
from toolkit.traces.chrome import (
    ANNOTATION,
    DEVICE,
    GPU_ANNOTATION,
    KERNEL,
    MEMCPY,
    MEMORY,
    MEMSET,
    OPERATOR,
    RUNTIME,
    Event,
    Trace,
)
from toolkit.traces.intervals import Span

TOP = 15
BUCKETS = 100
_MICRO = 1e-6
# Calls in which the host waits for the device.
_WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy")


class Operator(Record, frozen=True, kw_only=True):
    """A kernel, or on a CPU an operator, of one name. `total_s` is the sum of its self times, `least_s` and `most_s`
    those of one call; `share` of all kernels' time, 0 to 1. `precision`: a guess by the name ("" on a CPU).
    `communicates`: it moves data between ranks, and its time holds the wait for them."""

    name: str
    calls: int
    total_s: float
    least_s: float
    most_s: float
    share: float
    full_name: str = ""
    precision: str = ""
    communicates: bool = False

    @property
    def mean_s(self) -> float:
        """Return the time of a call."""
        return self.total_s / self.calls


class StepTime(Record, frozen=True, kw_only=True):
    """A step by its annotation. `number` None: it has none. `start_s` counts from the trace's first event."""

    name: str
    start_s: float
    duration_s: float
    number: int | None = None


class Annotation(Record, frozen=True, kw_only=True):
    """The durations of all annotations of one name, in seconds, ascending."""

    name: str
    durations_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """Return their sum."""
        return sum(self.durations_s)


class Activity(Record, frozen=True, kw_only=True):
    """What the device did, in seconds that add up to the trace's: where kinds overlap, a kernel counts before copies.

    `sync_s`: nothing ran and the host waited for the device; `idle_s`: nothing ran and nobody waited for it.
    """

    kernel_s: float
    memcpy_s: float
    memset_s: float
    sync_s: float
    idle_s: float


class Copies(Record, frozen=True, kw_only=True):
    """Memory operations of one kind: "Memcpy HtoD (Pageable -> Device)", "Memset (Device)". `bytes` 0: not told."""

    name: str
    count: int
    bytes: int
    total_s: float


class Memory(Record, frozen=True, kw_only=True):
    """Allocations (a trace with profile_memory=True). `device` "cpu" or "cuda0"; `peak_bytes`: allocated at most."""

    device: str
    allocations: int
    allocated_bytes: int
    freed_bytes: int
    peak_bytes: int


class Figures(Record, frozen=True, kw_only=True):
    """The figures of one trace. `on`: where the work ran, "gpu" or "cpu"; on a CPU operators take the kernels' place.

    `active_share`: of the trace's time in which a kernel, copy or operator ran, 0 to 1 (mean of the GPUs).
    `utilisation`: the same in BUCKETS equal parts of it. `launches`: kernels (operators) in all. `launch_s`: the host's
    time in calls that launch them; `queue_s`: the median time from such a call to the kernel's start, None on a CPU.
    """

    on: str
    rank: int | None
    span_s: float
    start_s: float
    operators: tuple[Operator, ...]
    steps: tuple[StepTime, ...]
    active_share: float
    utilisation: tuple[float, ...]
    launches: int
    activity: Activity | None = None
    copies: tuple[Copies, ...] = ()
    memory: tuple[Memory, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    precisions: tuple[tuple[str, float], ...] = ()
    devices: tuple[str, ...] = ()
    launch_s: float | None = None
    queue_s: float | None = None
    source: str = ""


def figures(trace: Trace) -> Figures:
    """Return the figures of *trace*. A trace without kernels and operators has none and spans 0 s."""
    device = trace.of(*DEVICE)
    operators = trace.of(OPERATOR)
    work = device or operators
    annotations = trace.of(ANNOTATION)
    known = [*work, *annotations]
    start = min((event.ts for event in known), default=0.0)
    end = max((event.end for event in known), default=0.0)
    busy = _busy(work)
    kernels = trace.of(KERNEL)
    ran = operator_table(trace)
    runtime = trace.of(*RUNTIME)
    return Figures(
        on="gpu" if device else "cpu",
        rank=trace.rank,
        span_s=(end - start) * _MICRO,
        start_s=trace.base_s + start * _MICRO if trace.base_s else 0.0,
        operators=ran,
        steps=step_times(annotations, start),
        active_share=_mean([intervals.length(spans) / (end - start) for spans in busy]) if end > start else 0.0,
        utilisation=_over_time(busy, start, end),
        launches=sum(operator.calls for operator in ran),
        activity=_activity(device, runtime, start, end) if device else None,
        copies=_copies(device),
        memory=_memory(trace.of(MEMORY)),
        annotations=_annotations(annotations or trace.of(GPU_ANNOTATION)),
        precisions=_precisions(ran),
        devices=trace.devices,
        launch_s=sum(event.dur for event in runtime if "aunch" in event.name) * _MICRO if device else None,
        queue_s=_queue(kernels, runtime),
        source=trace.source,
    )


def operator_table(trace: Trace) -> tuple[Operator, ...]:
    """Return the kernels of *trace* by name, most time first; where it has none, the operators by self time."""
    kernels = trace.of(KERNEL)
    pairs = (
        [(event.name, event.dur) for event in kernels]
        if kernels
        else [(event.name, own) for event, own in nesting.self_times(trace.of(OPERATOR))]
    )
    by_name: dict[str, list[float]] = {}
    for name, duration in pairs:
        by_name.setdefault(name, []).append(duration)
    whole = sum(map(sum, by_name.values())) or 1.0
    found = [
        Operator(
            name=names.short(name) if kernels else name,
            full_name=name if kernels else "",
            precision=names.precision(name) if kernels else "",
            communicates=names.communicates(name),
            calls=len(each),
            total_s=sum(each) * _MICRO,
            least_s=min(each) * _MICRO,
            most_s=max(each) * _MICRO,
            share=sum(each) / whole,
        )
        for name, each in by_name.items()
    ]
    return tuple(sorted(found, key=lambda operator: (-operator.total_s, operator.name)))


def step_times(annotations: Iterable[Event], start: float) -> tuple[StepTime, ...]:
    """Return the steps among *annotations*, by time: ProfilerStep#N where there are such, else step_*."""
    found = [(event, number) for event in annotations if (number := names.step_number(event.name)) is not None]
    found = [each for each in found if each[0].name.startswith("ProfilerStep")] or found
    return tuple(
        StepTime(
            name=event.name,
            number=number if number >= 0 else None,
            start_s=(event.ts - start) * _MICRO,
            duration_s=event.dur * _MICRO,
        )
        for event, number in sorted(found, key=lambda each: each[0].ts)
    )


def _busy(work: Sequence[Event]) -> list[list[Span]]:
    """Return when each device worked; a CPU's threads are one device."""
    on_device = bool(work) and work[0].cat in DEVICE
    by_device: dict[object, list[Span]] = {}
    for event in work:
        by_device.setdefault(event.pid if on_device else None, []).append((event.ts, event.end))
    return [intervals.union(spans) for spans in by_device.values()]


def _over_time(busy: Sequence[Sequence[Span]], start: float, end: float) -> tuple[float, ...]:
    each = [intervals.shares(spans, start, end, BUCKETS) for spans in busy]
    return tuple(_mean(column) for column in zip(*each, strict=True))


def _activity(device: Sequence[Event], runtime: Sequence[Event], start: float, end: float) -> Activity:
    """Return the mean of the devices."""
    waits = intervals.union((event.ts, event.end) for event in runtime if any(wait in event.name for wait in _WAITS))
    seconds = []
    for pid in {event.pid for event in device}:
        taken: list[Span] = []
        parts = []
        for kind in DEVICE:
            spans = intervals.union((event.ts, event.end) for event in device if event.pid == pid and event.cat == kind)
            parts.append(intervals.length(intervals.without(spans, taken)))
            taken = intervals.union([*taken, *spans])
        parts.append(intervals.length(intervals.without(intervals.common(waits, [(start, end)]), taken)))
        seconds.append((*parts, end - start - sum(parts)))
    kernel, memcpy, memset, sync, idle = (_mean(column) * _MICRO for column in zip(*seconds, strict=True))
    return Activity(kernel_s=kernel, memcpy_s=memcpy, memset_s=memset, sync_s=sync, idle_s=max(idle, 0.0))


def _copies(device: Sequence[Event]) -> tuple[Copies, ...]:
    by_name: dict[str, list[Event]] = {}
    for event in device:
        if event.cat in (MEMCPY, MEMSET):
            by_name.setdefault(event.name, []).append(event)
    found = [
        Copies(
            name=name,
            count=len(events),
            bytes=int(sum(event.args.size or 0 for event in events if event.args is not None)),
            total_s=sum(event.dur for event in events) * _MICRO,
        )
        for name, events in by_name.items()
    ]
    return tuple(sorted(found, key=lambda copies: -copies.total_s))


def _memory(events: Sequence[Event]) -> tuple[Memory, ...]:
    by_device: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        args = event.args
        if args is not None and args.bytes is not None:
            device = "cpu" if not args.device_type else "cuda"
            by_device.setdefault(device, []).append((args.bytes, args.allocated or 0))
    return tuple(
        Memory(
            device=device,
            allocations=sum(1 for size, _ in sizes if size > 0),
            allocated_bytes=sum(size for size, _ in sizes if size > 0),
            freed_bytes=-sum(size for size, _ in sizes if size < 0),
            peak_bytes=max(allocated for _, allocated in sizes),
        )
        for device, sizes in sorted(by_device.items())
    )


def _annotations(events: Sequence[Event]) -> tuple[Annotation, ...]:
    """Return annotations by name, most time first; steps are a figure of their own."""
    by_name: dict[str, list[float]] = {}
    for event in events:
        if names.step_number(event.name) is None:
            by_name.setdefault(event.name, []).append(event.dur * _MICRO)
    found = [Annotation(name=name, durations_s=tuple(sorted(each))) for name, each in by_name.items()]
    return tuple(sorted(found, key=lambda annotation: -annotation.total_s))


def _precisions(operators: Sequence[Operator]) -> tuple[tuple[str, float], ...]:
    """Return the share of the kernels' time of each precision, the most first; () on a CPU."""
    found: dict[str, float] = {}
    for operator in operators:
        if operator.precision:
            found[operator.precision] = found.get(operator.precision, 0.0) + operator.share
    return tuple(sorted(found.items(), key=lambda each: -each[1]))


def _queue(kernels: Sequence[Event], runtime: Sequence[Event]) -> float | None:
    launched = {event.args.correlation: event.ts for event in runtime if event.args and event.args.correlation}
    waits = sorted(
        event.ts - launched[event.args.correlation]
        for event in kernels
        if event.args and event.args.correlation in launched
    )
    return waits[len(waits) // 2] * _MICRO if waits else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
