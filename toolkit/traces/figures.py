"""Figures of one rank's trace: the time of each kernel (on a CPU: operator), and how busy the device was."""

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
    ChromeTrace,
    TraceEvent,
)
from toolkit.traces.intervals import Span

TOP = 15
BUCKETS = 100
_MICRO = 1e-6
# Calls in which the host waits for the device.
_WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy")


class Operator(Record, frozen=True, kw_only=True):
    """The kernels, or on a CPU the operators, of one name."""

    name: str
    """The name, without a kernel's arguments."""
    calls: int
    """The number of calls."""
    total_s: float
    """The sum of the calls' self times."""
    least_s: float
    """The least self time of a call."""
    most_s: float
    """The greatest self time of a call."""
    share: float
    """Its share of all kernels' (operators') time, 0 to 1."""
    full_name: str = ""
    """A kernel's name as the trace has it."""
    precision: str = ""
    """A guess by the name; "" on a CPU."""
    communicates: bool = False
    """True if it moves data between ranks. Its time then includes the wait for them."""

    @property
    def mean_s(self) -> float:
        """Return the time of a call."""
        return self.total_s / self.calls


class StepTime(Record, frozen=True, kw_only=True):
    """A step, as its annotation has it. `number` is None if it has none. `start_s` counts from the trace's first
    event."""

    name: str
    start_s: float
    duration_s: float
    number: int | None = None


class AnnotationTimes(Record, frozen=True, kw_only=True):
    """The durations of all annotations of one name, in seconds, ascending."""

    name: str
    durations_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """The sum of the durations."""
        return sum(self.durations_s)


class Activity(Record, frozen=True, kw_only=True):
    """The activity of the device, in seconds that add up to the trace's: a kernel counts before copies that overlap."""

    kernel_s: float
    """A kernel ran."""
    memcpy_s: float
    """A copy ran, and no kernel."""
    memset_s: float
    """A memset ran, and neither kernel nor copy."""
    sync_s: float
    """Nothing ran and the host waited for the device."""
    idle_s: float
    """Nothing ran and the host did not wait."""


class Copies(Record, frozen=True, kw_only=True):
    """Memory operations of one kind: "Memcpy HtoD (Pageable -> Device)", "Memset (Device)". `bytes` is 0 if
    the trace has none."""

    name: str
    count: int
    bytes: int
    total_s: float


class AllocationTotals(Record, frozen=True, kw_only=True):
    """The allocations on one device (a trace with profile_memory=True)."""

    device: str
    """"cpu" or "cuda"."""
    allocations: int
    """The number of allocations."""
    allocated_bytes: int
    """The sum of all allocations."""
    freed_bytes: int
    """The sum of all releases."""
    peak_bytes: int
    """The most bytes allocated at once."""


class TraceFigures(Record, frozen=True, kw_only=True):
    """The figures of one trace."""

    on: str
    """The kind of device that ran the work, "gpu" or "cpu". On a CPU operators take the place of kernels."""
    rank: int | None
    """The trace's rank, None if it names none."""
    span_s: float
    """The length of the trace."""
    start_s: float
    """Its begin, seconds since the epoch; 0 if not known."""
    operators: tuple[Operator, ...]
    """The kernels (operators), most time first."""
    steps: tuple[StepTime, ...]
    """The steps, by time."""
    active_share: float
    """The share of the trace's time in which a kernel, copy or operator ran, 0 to 1 (mean of the GPUs)."""
    utilisation: tuple[float, ...]
    """The same share in BUCKETS equal parts of the trace."""
    launches: int
    """The number of kernels (operators)."""
    activity: Activity | None = None
    """The activity of the GPU; None on a CPU."""
    copies: tuple[Copies, ...] = ()
    """Memory operations by kind, most time first."""
    memory: tuple[AllocationTotals, ...] = ()
    """Allocations by device."""
    annotations: tuple[AnnotationTimes, ...] = ()
    """Annotations other than steps, most time first."""
    precisions: tuple[tuple[str, float], ...] = ()
    """The share of the kernels' time of each precision, the largest first; () on a CPU."""
    devices: tuple[str, ...] = ()
    """The names of the GPUs."""
    launch_s: float | None = None
    """The host's time in calls that launch kernels; None on a CPU."""
    queue_s: float | None = None
    """The median time from such a call to the kernel's start; None on a CPU."""
    source: str = ""
    """The trace file."""


def compute_figures(trace: ChromeTrace) -> TraceFigures:
    """Return the figures of *trace*. They are zero for a trace without kernels and operators."""
    device = trace.of(*DEVICE)
    operators = trace.of(OPERATOR)
    work = device or operators
    annotations = trace.of(ANNOTATION)
    events = [*work, *annotations]
    start = min((event.ts for event in events), default=0.0)
    end = max((event.end for event in events), default=0.0)
    busy = _busy_times(work)
    kernels = trace.of(KERNEL)
    operators_by_time = operator_table(trace)
    runtime = trace.of(*RUNTIME)
    return TraceFigures(
        on="gpu" if device else "cpu",
        rank=trace.rank,
        span_s=(end - start) * _MICRO,
        start_s=trace.base_s + start * _MICRO if trace.base_s else 0.0,
        operators=operators_by_time,
        steps=step_times(annotations, start),
        active_share=_mean([intervals.total_length(spans) / (end - start) for spans in busy]) if end > start else 0.0,
        utilisation=_utilisation(busy, start, end),
        launches=sum(operator.calls for operator in operators_by_time),
        activity=_mean_activity(device, runtime, start, end) if device else None,
        copies=_group_copies(device),
        memory=_total_allocations(trace.of(MEMORY)),
        annotations=_group_annotations(annotations or trace.of(GPU_ANNOTATION)),
        precisions=_share_by_precision(operators_by_time),
        devices=trace.devices,
        launch_s=sum(event.dur for event in runtime if "aunch" in event.name) * _MICRO if device else None,
        queue_s=_queue_s(kernels, runtime),
        source=trace.source,
    )


def operator_table(trace: ChromeTrace) -> tuple[Operator, ...]:
    """Return the kernels of *trace* by name, most time first; if it has none, its operators by self time."""
    kernels = trace.of(KERNEL)
    pairs = (
        [(event.name, event.dur) for event in kernels]
        if kernels
        else [(event.name, self_time) for event, self_time in nesting.self_times(trace.of(OPERATOR))]
    )
    by_name: dict[str, list[float]] = {}
    for name, duration in pairs:
        by_name.setdefault(name, []).append(duration)
    total = sum(map(sum, by_name.values())) or 1.0
    operators = [
        Operator(
            name=names.shorten_kernel_name(name) if kernels else name,
            full_name=name if kernels else "",
            precision=names.guess_precision(name) if kernels else "",
            communicates=names.communicates(name),
            calls=len(durations),
            total_s=sum(durations) * _MICRO,
            least_s=min(durations) * _MICRO,
            most_s=max(durations) * _MICRO,
            share=sum(durations) / total,
        )
        for name, durations in by_name.items()
    ]
    return tuple(sorted(operators, key=lambda operator: (-operator.total_s, operator.name)))


def step_times(annotations: Iterable[TraceEvent], start: float) -> tuple[StepTime, ...]:
    """Return the steps among *annotations*, by time: ProfilerStep#N if there are any, else step_*."""
    steps = [(event, number) for event in annotations if (number := names.step_number(event.name)) is not None]
    steps = [step for step in steps if step[0].name.startswith("ProfilerStep")] or steps
    return tuple(
        StepTime(
            name=event.name,
            number=number if number >= 0 else None,
            start_s=(event.ts - start) * _MICRO,
            duration_s=event.dur * _MICRO,
        )
        for event, number in sorted(steps, key=lambda step: step[0].ts)
    )


def _busy_times(work: Sequence[TraceEvent]) -> list[list[Span]]:
    """Return the times in which each device worked; a CPU's threads are one device."""
    on_device = bool(work) and work[0].cat in DEVICE
    by_device: dict[object, list[Span]] = {}
    for event in work:
        by_device.setdefault(event.pid if on_device else None, []).append((event.ts, event.end))
    return [intervals.union(spans) for spans in by_device.values()]


def _utilisation(busy: Sequence[Sequence[Span]], start: float, end: float) -> tuple[float, ...]:
    shares = [intervals.bucket_shares(spans, start, end, BUCKETS) for spans in busy]
    return tuple(_mean(column) for column in zip(*shares, strict=True))


def _mean_activity(device: Sequence[TraceEvent], runtime: Sequence[TraceEvent], start: float, end: float) -> Activity:
    """Return the mean activity of the devices."""
    waits = intervals.union((event.ts, event.end) for event in runtime if any(wait in event.name for wait in _WAITS))
    seconds = []
    for pid in {event.pid for event in device}:
        taken: list[Span] = []
        parts = []
        for kind in DEVICE:
            spans = intervals.union((event.ts, event.end) for event in device if event.pid == pid and event.cat == kind)
            parts.append(intervals.total_length(intervals.subtract(spans, taken)))
            taken = intervals.union([*taken, *spans])
        parts.append(intervals.total_length(intervals.subtract(intervals.intersect(waits, [(start, end)]), taken)))
        seconds.append((*parts, end - start - sum(parts)))
    kernel, memcpy, memset, sync, idle = (_mean(column) * _MICRO for column in zip(*seconds, strict=True))
    return Activity(kernel_s=kernel, memcpy_s=memcpy, memset_s=memset, sync_s=sync, idle_s=max(idle, 0.0))


def _group_copies(device: Sequence[TraceEvent]) -> tuple[Copies, ...]:
    by_name: dict[str, list[TraceEvent]] = {}
    for event in device:
        if event.cat in (MEMCPY, MEMSET):
            by_name.setdefault(event.name, []).append(event)
    copies_by_kind = [
        Copies(
            name=name,
            count=len(events),
            bytes=int(sum(event.args.size or 0 for event in events if event.args is not None)),
            total_s=sum(event.dur for event in events) * _MICRO,
        )
        for name, events in by_name.items()
    ]
    return tuple(sorted(copies_by_kind, key=lambda copies: -copies.total_s))


def _total_allocations(events: Sequence[TraceEvent]) -> tuple[AllocationTotals, ...]:
    by_device: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        args = event.args
        if args is not None and args.bytes is not None:
            device = "cpu" if not args.device_type else "cuda"
            by_device.setdefault(device, []).append((args.bytes, args.allocated or 0))
    return tuple(
        AllocationTotals(
            device=device,
            allocations=sum(1 for size, _ in sizes if size > 0),
            allocated_bytes=sum(size for size, _ in sizes if size > 0),
            freed_bytes=-sum(size for size, _ in sizes if size < 0),
            peak_bytes=max(allocated for _, allocated in sizes),
        )
        for device, sizes in sorted(by_device.items())
    )


def _group_annotations(events: Sequence[TraceEvent]) -> tuple[AnnotationTimes, ...]:
    """Return annotations by name, most time first, without steps."""
    by_name: dict[str, list[float]] = {}
    for event in events:
        if names.step_number(event.name) is None:
            by_name.setdefault(event.name, []).append(event.dur * _MICRO)
    annotations = [
        AnnotationTimes(name=name, durations_s=tuple(sorted(durations))) for name, durations in by_name.items()
    ]
    return tuple(sorted(annotations, key=lambda annotation: -annotation.total_s))


def _share_by_precision(operators: Sequence[Operator]) -> tuple[tuple[str, float], ...]:
    """Return the share of the kernels' time of each precision, the largest first; () on a CPU."""
    share_by_precision: dict[str, float] = {}
    for operator in operators:
        if operator.precision:
            share_by_precision[operator.precision] = share_by_precision.get(operator.precision, 0.0) + operator.share
    return tuple(sorted(share_by_precision.items(), key=lambda pair: -pair[1]))


def _queue_s(kernels: Sequence[TraceEvent], runtime: Sequence[TraceEvent]) -> float | None:
    launched = {event.args.correlation: event.ts for event in runtime if event.args and event.args.correlation}
    waits = sorted(
        event.ts - launched[event.args.correlation]
        for event in kernels
        if event.args and event.args.correlation in launched
    )
    return waits[len(waits) // 2] * _MICRO if waits else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
