"""The host: memory that will reach its limit, throttled CPU, a driver that does not answer."""

import datetime
from collections.abc import Iterator, Mapping

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.numbers import mean, measured, median, slope
from toolkit.diagnosis.rule import Above, Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import OTHER_PROGRAMS, OWN_SHARE, sum_ranks
from toolkit.diagnosis.span import EvidenceSpan, training
from toolkit.diagnosis.units import format_bytes, format_seconds
from toolkit.series.finding import Finding

# Memory rises steadily if a straight line fits this well and each half of the time rises at least half as fast as the
# whole: what is loaded once rises and then stays.
STRAIGHT = 0.8
HALF = 0.5
# A shorter rise may be data that is loaded once; only a patience that the user set goes below it.
LEAST_S = 60.0
# The ranks' memory must make this share of the rise, else it is that of other programs.
OWN = 0.5
# A rank leaks if its memory rises so many times as fast as the others' median; else all do.
ALONE = 2.0
# Of more ranks the fastest are told.
NAMED = 4


class MemoryLimit(RuleParameters, frozen=True, kw_only=True):
    """`horizon_s`: a limit that is further away is not reported. `rise` in percent of the limit; `patience` in
    samples."""

    horizon_s: Above = 6 * 3600
    rise: Percent = 3
    patience: Positive = 240


class CPUThrottling(RuleParameters, frozen=True, kw_only=True):
    """`threshold` in percent of the time; `patience` in samples."""

    threshold: Percent = 10
    patience: Positive = 240


class DriverSilence(RuleParameters, frozen=True, kw_only=True):
    """`threshold_s`: seconds without an answer of the GPUs' driver."""

    threshold_s: Above = 10


def memory_limit(evidence: Evidence, parameters: MemoryLimit, user_set: frozenset[str]) -> Iterator[Finding]:
    """The kernel killed a process for memory, or memory rises so steadily that its limit can be dated."""
    killed = _killed(evidence)
    forecast = _forecast(evidence, parameters, user_set)
    used, limit = _memory(evidence)
    if killed:
        largest = _largest_rank(evidence)
        processes = "1 process" if killed == 1 else f"{killed:.0f} processes"
        yield make_finding(
            "MemoryLimit",
            evidence,
            None,
            f"{_describe_rise(forecast)}he kernel killed {processes} of this container for"
            f" want of memory; the greatest sample had {format_bytes(_greatest(used))} of"
            f" {format_bytes(limit)}{largest}.",
            subject="memory",
            rank=forecast.rank if forecast else None,
            numbers=(
                number(
                    "processes killed", killed, "increase of oom_kill in memory.events (cgroup) during the job", limit=0
                ),
                number("used", _greatest(used), "greatest sample", unit="bytes", limit=limit),
                *(forecast.numbers if forecast else ()),
            ),
            refuted_by="Nothing: the kernel counts what it kills.",
            change=forecast.change
            if forecast
            else "Give the container more memory, or use less: smaller batches,"
            " fewer loader workers, no dataset held in each worker.",
        )
    elif forecast:
        yield forecast


def cpu_throttling(evidence: Evidence, parameters: CPUThrottling, user_set: frozenset[str]) -> Iterator[Finding]:
    """The container's CPU quota stops its processes in more than `threshold` percent of the kernel's periods."""
    values = evidence.column("cpu/all/throttled_percent")
    span = training(evidence, parameters.patience, is_user_set="patience" in user_set) if values else None
    if span is None:
        return
    throttled = mean(values[span.first : span.last])
    if not throttled > parameters.threshold:
        return
    quota = mean(evidence.column("cpu/all/quota_cores"))
    cores = f" ({quota:g} cores)" if quota == quota else ""
    part = slice(span.first, span.last)
    used = mean(evidence.column("cpu/container/used_cores")[part])
    own = mean(sum_ranks(evidence, "cpu_percent")[part]) / 100
    is_own = not own < OWN_SHARE * used
    whose = "" if is_own else f" The ranks used only {own:.1f} of the {used:.1f} cores that all its processes used."
    yield make_finding(
        "CPUThrottling",
        evidence,
        span,
        f"The container's CPU quota{cores} stopped its processes in {throttled:.0f} % of the kernel's periods.{whose}",
        subject="cpu" if is_own else OTHER_PROGRAMS,
        numbers=(
            percent(
                "throttled",
                throttled,
                "mean of throttled periods / periods (nr_throttled, nr_periods in cpu.stat)",
                limit=parameters.threshold,
            ),
            number("quota", quota, "mean", unit="cores"),
            number("container", used, "mean of what all its processes used", unit="cores"),
            number("ranks", own, "mean of what the ranks used", unit="cores"),
        ),
        refuted_by="A run with a higher quota that takes as long.",
        change="Raise the CPU limit, or start fewer threads and loader workers than the quota has cores"
        " (OMP_NUM_THREADS, num_workers)."
        if is_own
        else "Move the other processes out of the job's container, or raise its CPU limit.",
    )


def driver_silence(evidence: Evidence, parameters: DriverSilence, _: frozenset[str]) -> Iterator[Finding]:
    """The GPUs' driver did not answer for `threshold_s` seconds."""
    silent = evidence.column("gpu/driver/silent_s")
    longest = max(measured(silent), default=0.0)
    if longest < parameters.threshold_s:
        return
    end_s = evidence.times_s[max(index for index, value in enumerate(silent) if value == longest)]
    yield make_finding(
        "DriverSilence",
        evidence,
        None,
        f"The GPU driver did not answer for {format_seconds(longest)}.",
        subject="driver",
        start_s=end_s - longest,
        end_s=end_s,
        numbers=(
            number(
                "longest silence", longest, "time since the last answer to NVML", unit="s", limit=parameters.threshold_s
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


def _describe_rise(forecast: Finding | None) -> str:
    """Return the opening of the sentence on a kill: "Memory of rank 3 rose steadily by 430 MiB a minute until t", and
    "T" where no rise was seen."""
    return "T" if forecast is None else f"{forecast.text.partition(' and ')[0].replace(' rises ', ' rose ')} until t"


def _greatest(values: Values) -> float:
    """Return the greatest value: the newest sample may come after the kill."""
    return max(measured(values), default=float("nan"))


def _forecast(evidence: Evidence, parameters: MemoryLimit, user_set: frozenset[str]) -> Finding | None:
    """Return when the memory reaches its limit if it goes on like this, None if it does not rise steadily."""
    used, limit = _memory(evidence)
    span = training(evidence, parameters.patience, is_user_set="patience" in user_set) if used else None
    if span is None or limit != limit:
        return None
    if "patience" not in user_set and span.end_s - span.start_s < LEAST_S:
        return None
    tilt, fit = _steady(evidence, used, span)
    values = measured(used[span.first : span.last])
    if tilt <= 0 or tilt * (span.end_s - span.start_s) < limit * parameters.rise / 100:
        return None
    left_s = (limit - values[-1]) / tilt
    growth = _rank_slopes(evidence, span)
    # Whose is it: memory that the ranks do not take is another program's.
    if left_s > parameters.horizon_s or (growth and sum(growth.values()) < OWN * tilt):
        return None
    reached = datetime.datetime.fromtimestamp(span.end_s + left_s, datetime.timezone.utc)
    would = "would have reached" if evidence.is_over else "will reach"
    rank, whose = _whose(growth)
    return make_finding(
        "MemoryLimit",
        evidence,
        span,
        f"Memory{whose} rises steadily by {format_bytes(tilt * 60)} a minute and {would} its limit of"
        f" {format_bytes(limit)} at {reached:%H:%M} UTC ({format_bytes(values[-1])} now, page cache not counted).",
        subject="memory",
        rank=rank,
        numbers=(
            number("slope", tilt, "least squares over the window", unit="bytes/s", limit=0),
            *(
                number(f"slope of rank {name}", rank_tilt, "least squares over its own memory", unit="bytes/s")
                for name, rank_tilt in sorted(growth.items(), key=lambda row: -row[1])[:NAMED]
            ),
            number("fit", fit, "R squared of that line", limit=STRAIGHT),
            number("used", values[-1], "newest sample", unit="bytes", limit=limit),
            number("limit reached in", left_s, "(limit - used) / slope", unit="s", limit=parameters.horizon_s),
        ),
        refuted_by="Memory that stays at a level (a cache that is full), or an end of the job before that time.",
        change="Look for what each step keeps: losses or outputs appended with their graph, a growing list, a dataset"
        " copied by each loader worker.",
    )


def _steady(evidence: Evidence, used: Values, span: EvidenceSpan) -> tuple[float, float]:
    """Return slope and R squared of *used* in *span*; slope 0 if it is no steady rise."""
    times = [time_s - span.start_s for time_s in evidence.times_s[span.first : span.last]]
    values = used[span.first : span.last]
    tilt, _, fit = slope(times, values)
    middle = len(times) // 2
    halves = (slope(times[:middle], values[:middle])[0], slope(times[middle:], values[middle:])[0])
    if fit >= STRAIGHT and all(half >= HALF * tilt for half in halves):
        return tilt, fit
    return 0.0, 0.0


def _rank_slopes(evidence: Evidence, span: EvidenceSpan) -> dict[int, float]:
    """Return the bytes a second by which the memory of each rank, with its children, rises."""
    times = [time_s - span.start_s for time_s in evidence.times_s[span.first : span.last]]
    slopes = {
        int(rank): slope(times, values[span.first : span.last])[0]
        for rank, values in evidence.columns("rank", "memory_bytes").items()
    }
    return {rank: tilt for rank, tilt in slopes.items() if tilt == tilt}


def _whose(growth: Mapping[int, float]) -> tuple[int | None, str]:
    """Return the rank whose memory rises much faster than that of the others, and whose it is, in words.

    The only rank of a host is none among others: hosts whose memory rises share one finding.
    """
    if not growth:
        return None, ""
    rank = max(growth, key=lambda name: growth[name])
    others = [tilt for name, tilt in growth.items() if name != rank]
    if not others or growth[rank] >= ALONE * max(median(others), 0.0):
        return rank if others else None, f" of rank {rank}"
    return None, f" of all {len(growth)} ranks"


def _largest_rank(evidence: Evidence) -> str:
    """Return ", rank 3 5.4 GiB of it", the rank with the most memory at one time; "" if that was not measured."""
    largest = [(_greatest(values), rank) for rank, values in evidence.columns("rank", "memory_bytes").items()]
    return f", rank {max(largest)[1]} {format_bytes(max(largest)[0])}" if largest else ""
