"""GPUs that could do more: LowGPUUtilization, BatchSize, LoadBalancing, GPUMemoryIncrease, IdleSM."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.numbers import histogram, mean, quantile, slope
from toolkit.diagnosis.rule import Above, Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.span import EvidenceSpan, training
from toolkit.series.finding import Finding

# Memory that grows in this part of its variance along a straight line goes on growing; a single jump does not.
STRAIGHT = 0.7


class LowGPUUtilization(RuleParameters, frozen=True, kw_only=True):
    """Percentages; `window`, `patience` in samples. Defaults of smdebug-rulesconfig 1.0.1."""

    threshold_p95: Percent = 70
    threshold_p5: Percent = 10
    window: Positive = 500
    patience: Positive = 1000


class BatchSize(RuleParameters, frozen=True, kw_only=True):
    """Defaults of smdebug-rulesconfig 1.0.1."""

    cpu_threshold_p95: Percent = 70
    """Percent, as the two below."""
    gpu_threshold_p95: Percent = 70
    gpu_memory_threshold_p95: Percent = 70
    patience: Positive = 1000
    """In samples."""
    window: Positive = 500
    """In samples."""


class LoadBalancing(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: distance of two histograms, 0 to 1; `patience` in samples. Defaults of smdebug-rulesconfig 1.0.1."""

    threshold: Percent = 0.5
    patience: Positive = 1000


class GPUMemoryIncrease(RuleParameters, frozen=True, kw_only=True):
    """`increase` in percentage points; `window`, `patience` in samples. Defaults of smdebug-rulesconfig 1.0.1."""

    increase: Above = 5
    patience: Positive = 1000
    window: Positive = 10


class IdleSM(RuleParameters, frozen=True, kw_only=True):
    """Percentages; `patience` in samples."""

    used_threshold: Percent = 90
    sm_threshold: Percent = 40
    patience: Positive = 240


def low_gpu_utilization(
    evidence: Evidence, parameters: LowGPUUtilization, user_set: frozenset[str]
) -> Iterator[Finding]:
    """A GPU's 95th percentile is low, or it is high and the 5th percentile is low: it works in bursts."""
    span, gpus = _held(evidence, parameters.patience, user_set, window=parameters.window)
    if span is None:
        return
    low, bursts, numbers = [], [], []
    for name, values in gpus.items():
        p95, p5 = quantile(values, 0.95), quantile(values, 0.05)
        if p95 < parameters.threshold_p95:
            low.append(f"gpu{name} {p95:.0f} %")
        elif p95 > parameters.threshold_p95 and p5 < parameters.threshold_p5:
            bursts.append(f"gpu{name} {p5:.0f} to {p95:.0f} %")
        else:
            continue
        numbers += [
            percent(f"gpu{name} p95", p95, _percentile(95), limit=parameters.threshold_p95),
            percent(f"gpu{name} p5", p5, _percentile(5), limit=parameters.threshold_p5),
        ]
    if not low and not bursts:
        return
    sentences = []
    if low:
        sentences.append(
            f"The 95th percentile of GPU use is below {parameters.threshold_p95:g} % ({', '.join(low)}): the GPU is"
            " rarely busy."
        )
    if bursts:
        sentences.append(
            f"GPU use swings between its 5th and its 95th percentile ({', '.join(bursts)}): the GPU works in bursts."
        )
    yield make_finding(
        "LowGPUUtilization",
        evidence,
        span,
        " ".join(sentences),
        subject="gpu",
        numbers=numbers,
        refuted_by="A trace of some steps (toolkit profile) whose kernels fill the time between two steps.",
        change="Read what the CPU does meanwhile (CPUBottleneck, BusyCore, DataWait); without such a finding, raise the"
        " batch size.",
    )


def batch_size(evidence: Evidence, parameters: BatchSize, user_set: frozenset[str]) -> Iterator[Finding]:
    """The 95th percentiles of CPU, GPU and GPU memory are all low: there is room for a larger batch."""
    span, gpus = _held(evidence, parameters.patience, user_set, window=parameters.window)
    memory, cpu = evidence.columns("gpu", "memory_used_percent"), evidence.cpu()
    if span is None or not memory or not cpu:
        return
    p95s = {
        "CPU": (quantile(cpu[span.first : span.last], 0.95), parameters.cpu_threshold_p95),
        "GPU": (max(quantile(values, 0.95) for values in gpus.values()), parameters.gpu_threshold_p95),
        "GPU memory": (
            max(quantile(values[span.first : span.last], 0.95) for values in memory.values()),
            parameters.gpu_memory_threshold_p95,
        ),
    }
    if not all(value < limit for value, limit in p95s.values()):
        return
    percentiles = ", ".join(f"{name} {value:.0f} %" for name, (value, _) in p95s.items())
    yield make_finding(
        "BatchSize",
        evidence,
        span,
        f"The 95th percentiles are all low: {percentiles}. A larger batch fits.",
        subject="batch",
        numbers=[percent(f"{name} p95", value, _percentile(95), limit=limit) for name, (value, limit) in p95s.items()],
        refuted_by="A run with twice the batch that has the same samples a second.",
        change="Raise the batch size (with the learning rate: toolkit scale), or take a smaller machine.",
    )


def load_balancing(evidence: Evidence, parameters: LoadBalancing, user_set: frozenset[str]) -> Iterator[Finding]:
    """Two GPUs' histograms of use are far apart: the share of all samples that must move, times how far (0 to 1)."""
    all_gpus = evidence.columns("gpu", "used_percent")
    span = training(evidence, parameters.patience, is_user_set="patience" in user_set) if len(all_gpus) > 1 else None
    if span is None:
        return
    gpus = {name: values[span.first : span.last] for name, values in all_gpus.items()}
    histograms = {name: histogram(values) for name, values in gpus.items()}
    distance, first, second = max(
        (_distance(histograms[first], histograms[second]), first, second) for first, second in combinations(gpus, 2)
    )
    if not distance > parameters.threshold:
        return
    first, second = sorted((first, second), key=lambda name: mean(gpus[name]))
    yield make_finding(
        "LoadBalancing",
        evidence,
        span,
        f"GPU use is unequal: gpu{first} {mean(gpus[first]):.0f} %, gpu{second} {mean(gpus[second]):.0f} % on average"
        f" (distance of their histograms {distance:.2f}).",
        subject="gpu",
        numbers=(
            number(
                "distance",
                distance,
                "area between the two cumulative histograms of use (10 bins of 10 %), 0 to 1",
                limit=parameters.threshold,
            ),
            *(percent(f"gpu{name}", mean(gpus[name]), "mean") for name in gpus),
        ),
        refuted_by="Ranks that are meant to do different work (pipeline stages, one rank for evaluation).",
        change="Give each rank the same number of samples of the same length (DistributedSampler, buckets by length),"
        " and start a rank for each GPU.",
    )


def gpu_memory_increase(
    evidence: Evidence, parameters: GPUMemoryIncrease, user_set: frozenset[str]
) -> Iterator[Finding]:
    """The moving average of GPU memory rises by more than `increase` points, and steadily: a single jump is none."""
    memory = evidence.columns("gpu", "memory_used_percent")
    span = training(evidence, parameters.patience, is_user_set="patience" in user_set) if memory else None
    if span is None:
        return
    rising, numbers = [], []
    for name, values in memory.items():
        averages = _averages(values[span.first : span.last], parameters.window)
        if len(averages) < 4:
            continue
        rise = averages[-1] - averages[0]
        _, _, fit = slope(range(len(averages)), averages)
        if rise > parameters.increase and fit >= STRAIGHT:
            rising.append(f"gpu{name} {averages[0]:.0f} to {averages[-1]:.0f} %")
            numbers.append(
                number(
                    f"gpu{name} rise",
                    rise,
                    f"last minus first mean of {parameters.window} samples, of memory used in %",
                    unit="points",
                    limit=parameters.increase,
                )
            )
            numbers.append(number(f"gpu{name} fit", fit, "R squared of a straight line", limit=STRAIGHT))
    if rising:
        yield make_finding(
            "GPUMemoryIncrease",
            evidence,
            span,
            f"GPU memory rises without end: {', '.join(rising)}.",
            subject="gpu-memory",
            numbers=numbers,
            refuted_by="A longer run in which the memory stays at its level.",
            change="Look for tensors that are kept with their graph: a loss that is summed without .item() or"
            " .detach(), lists of outputs.",
        )


def idle_sm(evidence: Evidence, parameters: IdleSM, user_set: frozenset[str]) -> Iterator[Finding]:
    """NVML says "busy" as soon as one kernel runs; the SMs say how much of the GPU works (GPM, from Hopper on)."""
    span, gpus = _held(evidence, parameters.patience, user_set)
    active = evidence.columns("gpu", "sm_active_percent")
    if span is None or not active:
        return
    idle, numbers = [], []
    for name, values in gpus.items():
        if name not in active:
            continue
        used, sm = mean(values), mean(active[name][span.first : span.last])
        if used < parameters.used_threshold or not sm < parameters.sm_threshold:
            continue
        power = evidence.column(f"gpu/{name}/power_watts")
        watts = f" at {mean(power[span.first : span.last]):.0f} W" if power else ""
        idle.append(f"gpu{name} {used:.0f} % busy, SMs {sm:.0f} % active{watts}")
        numbers += [
            percent(f"gpu{name} busy", used, "mean", limit=parameters.used_threshold),
            percent(f"gpu{name} SMs active", sm, "mean", limit=parameters.sm_threshold),
        ]
        if power:
            numbers.append(number(f"gpu{name} power", mean(power[span.first : span.last]), "mean", unit="W"))
    if idle:
        yield make_finding(
            "IdleSM",
            evidence,
            span,
            f"The driver calls the GPU busy while most of its multiprocessors wait: {'; '.join(idle)}.",
            subject="gpu",
            numbers=numbers,
            refuted_by="A trace whose kernels are few and long and no NCCL kernel waits.",
            change="Trace five steps (toolkit profile). Many short kernels: torch.compile or a larger batch. Long NCCL"
            " kernels: find the rank that the others wait for.",
        )


def _held(
    evidence: Evidence, patience: int, user_set: frozenset[str], *, window: int | None = None
) -> tuple[EvidenceSpan | None, Mapping[str, Values]]:
    gpus = evidence.gpus()
    span = training(evidence, patience, is_user_set="patience" in user_set, window=window) if gpus else None
    if span is None:
        return None, {}
    return span, {name: values[span.first : span.last] for name, values in gpus.items()}


def _averages(values: Sequence[float], window: int) -> list[float]:
    """Return the means of *window* values each, one after the other; NaN ones left out."""
    averages = [mean(values[start : start + window]) for start in range(0, len(values) - window + 1, window)]
    return [average for average in averages if average == average]


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the earth mover's distance of two histograms of equal bins, as a share of their width (0 to 1)."""
    total = ahead = 0.0
    for a, b in zip(first, second, strict=True):
        ahead += a - b
        total += abs(ahead)
    return total / (len(first) - 1)


def _percentile(number: int) -> str:
    return f"{number}th percentile of the samples"
