"""The host: memory that will reach its limit, throttled CPU, a driver that does not answer."""

import datetime
from collections.abc import Iterator

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.numbers import mean, measured, slope
from toolkit.diagnosis.rule import Above, Parameters, Percent, Positive, found
from toolkit.diagnosis.span import Span, training
from toolkit.series.finding import Finding, Number

# Memory rises steadily if a straight line fits this well and each half of the time rises at least half as fast as the
# whole: what is loaded once rises and then stays.
STRAIGHT = 0.8
HALF = 0.5
# A shorter rise may be data that is loaded once; only a patience that the user set goes below it.
LEAST_S = 60.0
GIB = 2.0**30


class MemoryLimit(Parameters, frozen=True, kw_only=True):
    """`horizon_s`: a limit that is further away is not reported. `rise` in percent of the limit; `patience` in
    samples."""

    horizon_s: Above = 6 * 3600
    rise: Percent = 3
    patience: Positive = 240


class CPUThrottling(Parameters, frozen=True, kw_only=True):
    """`threshold` in percent of the time; `patience` in samples."""

    threshold: Percent = 10
    patience: Positive = 240


class DriverSilence(Parameters, frozen=True, kw_only=True):
    """`threshold_s`: seconds without an answer of the GPUs' driver."""

    threshold_s: Above = 10


def memory_limit(evidence: Evidence, parameters: MemoryLimit, given: frozenset[str]) -> Iterator[Finding]:
    """The kernel killed a process for memory, or memory rises so steadily that its limit can be dated."""
    killed = _killed(evidence)
    forecast = _forecast(evidence, parameters, given)
    used, limit = _memory(evidence)
    if killed:
        yield found(
            "MemoryLimit",
            evidence,
            None,
            f"The kernel killed {killed:.0f} {'process' if killed == 1 else 'processes'} of this container for want of"
            f" memory; the greatest sample had {_gib(_greatest(used))} of {_gib(limit)}.",
            subject="memory",
            numbers=(
                Number(
                    name="processes killed",
                    value=killed,
                    formula="increase of oom_kill in memory.events (cgroup) during the job",
                    limit=0,
                ),
                Number(name="used", value=_greatest(used), unit="bytes", formula="greatest sample", limit=limit),
                *(forecast.numbers if forecast else ()),
            ),
            refuted_by="Nothing: the kernel counts what it kills.",
            change=forecast.change
            if forecast
            else "Give the container more memory, or use less: smaller batches,"
            " fewer loader workers, no dataset held in each worker.",
            note=forecast.text if forecast else "",
        )
    elif forecast:
        yield forecast


def cpu_throttling(evidence: Evidence, parameters: CPUThrottling, given: frozenset[str]) -> Iterator[Finding]:
    """The container's CPU quota stops its processes in more than `threshold` percent of the kernel's periods."""
    values = evidence.column("cpu/all/throttled_percent")
    span = training(evidence, parameters.patience, given="patience" in given) if values else None
    if span is None:
        return
    throttled = mean(values[span.first : span.last])
    if not throttled > parameters.threshold:
        return
    quota = mean(evidence.column("cpu/all/quota_cores"))
    cores = f" ({quota:g} cores)" if quota == quota else ""
    yield found(
        "CPUThrottling",
        evidence,
        span,
        f"The container's CPU quota{cores} stopped its processes in {throttled:.0f} % of the kernel's periods.",
        subject="cpu",
        numbers=(
            Number(
                name="throttled",
                value=throttled,
                unit="percent",
                formula="mean of throttled periods / periods (nr_throttled, nr_periods in cpu.stat)",
                limit=parameters.threshold,
            ),
            *([Number(name="quota", value=quota, unit="cores", formula="mean")] if quota == quota else []),
        ),
        refuted_by="A run with a higher quota that takes as long.",
        change="Raise the CPU limit, or start fewer threads and loader workers than the quota has cores"
        " (OMP_NUM_THREADS, num_workers).",
    )


def driver_silence(evidence: Evidence, parameters: DriverSilence, _: frozenset[str]) -> Iterator[Finding]:
    """The GPUs' driver did not answer for `threshold_s` seconds."""
    silent = evidence.column("gpu/driver/silent_s")
    longest = max(measured(silent), default=0.0)
    if longest < parameters.threshold_s:
        return
    end_s = evidence.times_s[max(index for index, value in enumerate(silent) if value == longest)]
    yield found(
        "DriverSilence",
        evidence,
        None,
        f"The GPU driver did not answer for {longest:.0f} s.",
        subject="driver",
        start_s=end_s - longest,
        end_s=end_s,
        numbers=(
            Number(
                name="longest silence",
                value=longest,
                unit="s",
                formula="time since the last answer to NVML",
                limit=parameters.threshold_s,
            ),
        ),
        refuted_by="nvidia-smi that answers at once during such a time.",
        change="Look for Xid errors in the kernel's log (dmesg), and move the job to another machine.",
    )


def _killed(evidence: Evidence) -> float:
    counts = measured(evidence.column("memory/events/oom_kills"))
    return max(counts[-1] - counts[0], 0.0) if counts else 0.0


def _memory(evidence: Evidence) -> tuple[Values, float]:
    """Return the bytes in use and their limit: the container's, else the machine's; NaN where it is not known."""
    used = evidence.column("memory/container/used_bytes")
    limits = [value for value in measured(evidence.column("memory/container/limit_bytes")) if value > 0]
    limit = limits[-1] if limits else evidence.machine.memory_limit_bytes or float("nan")
    return used, limit


def _greatest(values: Values) -> float:
    """Return the greatest value: the newest sample may come after the kill."""
    return max(measured(values), default=float("nan"))


def _forecast(evidence: Evidence, parameters: MemoryLimit, given: frozenset[str]) -> Finding | None:
    """Return when the memory reaches its limit if it goes on like this, None if it does not rise steadily."""
    used, limit = _memory(evidence)
    span = training(evidence, parameters.patience, given="patience" in given) if used else None
    if span is None or limit != limit:
        return None
    if "patience" not in given and span.end_s - span.start_s < LEAST_S:
        return None
    tilt, fit = _steady(evidence, used, span)
    values = measured(used[span.first : span.last])
    if tilt <= 0 or tilt * (span.end_s - span.start_s) < limit * parameters.rise / 100:
        return None
    left_s = (limit - values[-1]) / tilt
    if left_s > parameters.horizon_s:
        return None
    at = datetime.datetime.fromtimestamp(span.end_s + left_s, datetime.timezone.utc)
    would = "would have reached" if evidence.ended else "will reach"
    return found(
        "MemoryLimit",
        evidence,
        span,
        f"Memory rises steadily by {tilt * 60 / 2**20:.0f} MiB a minute and {would} its limit of {_gib(limit)} at"
        f" {at:%H:%M} UTC ({_gib(values[-1])} now, page cache not counted).",
        subject="memory",
        numbers=(
            Number(name="slope", value=tilt, unit="bytes/s", formula="least squares over the window", limit=0),
            Number(name="fit", value=fit, formula="R squared of that line", limit=STRAIGHT),
            Number(name="used", value=values[-1], unit="bytes", formula="newest sample", limit=limit),
            Number(
                name="limit reached in",
                value=left_s,
                unit="s",
                formula="(limit - used) / slope",
                limit=parameters.horizon_s,
            ),
        ),
        refuted_by="Memory that stays at a level (a cache that is full), or an end of the job before that time.",
        change="Look for what each step keeps: losses or outputs appended with their graph, a growing list, a dataset"
        " copied by each loader worker.",
    )


def _steady(evidence: Evidence, used: Values, span: Span) -> tuple[float, float]:
    """Return slope and R squared of *used* in *span*; slope 0 if it is no steady rise."""
    times = [time_s - span.start_s for time_s in evidence.times_s[span.first : span.last]]
    values = used[span.first : span.last]
    tilt, _, fit = slope(times, values)
    middle = len(times) // 2
    halves = (slope(times[:middle], values[:middle])[0], slope(times[middle:], values[middle:])[0])
    if fit >= STRAIGHT and all(each >= HALF * tilt for each in halves):
        return tilt, fit
    return 0.0, 0.0


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB" if size == size else "an unknown size"
