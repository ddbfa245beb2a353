"""GPUs that wait for the CPU or for the disk: CPUBottleneck, BusyCore, IOBottleneck.

Each looks first at what the ranks use of it. Where that is not most of it, the finding says that others hold it.
"""

from collections.abc import Iterator, Sequence
from itertools import compress

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.numbers import mean, means, share
from toolkit.diagnosis.rule import Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import ITS_OWN_CORES, OTHER_PROGRAMS, OTHERS, OWN_SHARE, own_cpu, sum_ranks
from toolkit.diagnosis.span import EvidenceSpan, training
from toolkit.diagnosis.units import format_value
from toolkit.series.finding import Finding, Number

# A core that is this busy is named.
NAMED = 8
# One thread computes all the time: the CPU use of a rank, in percent of one core.
ONE_THREAD = (85.0, 130.0)
# Less traffic than this keeps no disk busy that is not slow by itself.
TRAFFIC_PER_S = 1e6


class CPUBottleneck(RuleParameters, frozen=True, kw_only=True):
    """Percentages; `patience` in samples. Defaults of smdebug-rulesconfig 1.0.1."""

    threshold: Percent = 50
    gpu_threshold: Percent = 10
    cpu_threshold: Percent = 90
    patience: Positive = 1000


class BusyCore(RuleParameters, frozen=True, kw_only=True):
    """Percentages; `patience` in samples."""

    threshold: Percent = 50
    gpu_threshold: Percent = 30
    core_threshold: Percent = 90
    patience: Positive = 1000


class IOBottleneck(RuleParameters, frozen=True, kw_only=True):
    """Percentages; `patience` in samples. Defaults of smdebug-rulesconfig 1.0.1."""

    threshold: Percent = 50
    gpu_threshold: Percent = 10
    io_threshold: Percent = 50
    patience: Positive = 1000


def cpu_bottleneck(evidence: Evidence, parameters: CPUBottleneck, user_set: frozenset[str]) -> Iterator[Finding]:
    """The CPU is busy while the GPUs are idle, for more than `threshold` percent of the samples."""
    span, gpu = _gpu_in(evidence, parameters.patience, user_set)
    cpu = evidence.cpu()
    if span is None or not cpu:
        return
    part = slice(span.first, span.last)
    cpu = cpu[part]
    waits = [
        busy > parameters.cpu_threshold and idle < parameters.gpu_threshold for busy, idle in zip(cpu, gpu, strict=True)
    ]
    waited = share(waits)
    if not waited > parameters.threshold:
        return
    own, others = _split_cpu(evidence, part, waits)
    is_own = not own < OWN_SHARE * (own + others)
    cores = _busy(evidence, span, waits, parameters.cpu_threshold) if is_own else []
    whose = "" if is_own else f", but other programs held {others:.0f} % of the cores, and the ranks only {own:.0f} %"
    yield make_finding(
        "CPUBottleneck",
        evidence,
        span,
        f"For {waited:.0f} % of the time the CPU was above {parameters.cpu_threshold:g} % while the GPUs were below"
        f" {parameters.gpu_threshold:g} %{_named(cores)}{whose}.",
        subject="cpu" if is_own else OTHER_PROGRAMS,
        numbers=(
            percent(
                "bottleneck",
                waited,
                f"samples with CPU > {parameters.cpu_threshold:g} % and GPU < {parameters.gpu_threshold:g} %"
                " / all samples",
                limit=parameters.threshold,
            ),
            _mean("CPU", cpu, parameters.cpu_threshold),
            _mean("GPU", gpu, parameters.gpu_threshold),
            percent("the ranks' CPU", own, "mean of those samples, of all cores"),
            percent("other programs' CPU", others, "all that was used of the cores less the ranks' part"),
        ),
        refuted_by="A run with data from memory (one batch, repeated) that keeps the GPUs as idle."
        if is_own
        else "A run without these programs that keeps the GPUs as idle.",
        change="Move work off the CPU: decode and augment less, or ahead of the job, or on the GPU; or take a machine"
        " with more cores a GPU."
        if is_own
        else ITS_OWN_CORES,
        lost_s=_lost_s(waited, span),
    )


def busy_core(evidence: Evidence, parameters: BusyCore, user_set: frozenset[str]) -> Iterator[Finding]:
    """One or few cores are busy while the others and the GPUs are idle: one thread does the work."""
    span, gpu = _gpu_in(evidence, parameters.patience, user_set)
    total, busiest = evidence.column("cpu/all/used_percent"), evidence.busiest_core("used_percent")
    if span is None or len(evidence.cores()) < 2 or not total:
        return
    total, busiest = total[span.first : span.last], busiest[span.first : span.last]
    part = slice(span.first, span.last)
    ranks = [values[part] for values in evidence.columns("rank", "cpu_percent").values()]
    together = sum_ranks(evidence, "cpu_percent")[part]
    # The core that is busy is not theirs if all ranks together use less than one.
    may_be_own = [not used < ONE_THREAD[0] for used in together] or [True] * len(gpu)
    one_thread = [any(ONE_THREAD[0] <= used <= ONE_THREAD[1] for used in row) for row in zip(*ranks, strict=True)]
    most = parameters.core_threshold * 0.75
    waits = [
        idle < parameters.gpu_threshold
        and every < most
        and ((top > parameters.core_threshold and is_possible) or uses_one_core)
        for idle, every, top, is_possible, uses_one_core in zip(
            gpu, total, busiest, may_be_own, one_thread or [False] * len(gpu), strict=True
        )
    ]
    waited = share(waits)
    if not waited > parameters.threshold:
        return
    own, others = _split_cpu(evidence, part, waits)
    cores = [] if others >= OTHERS else _busy(evidence, span, waits, parameters.core_threshold)
    workers = [
        mean(values[span.first : span.last]) for values in evidence.columns("rank", "loader_cpu_percent").values()
    ]
    loaders = f" The data loader's workers used {sum(workers):.0f} % of a core." if workers else ""
    yield make_finding(
        "BusyCore",
        evidence,
        span,
        f"For {waited:.0f} % of the time one thread was busy while the GPUs were below"
        f" {parameters.gpu_threshold:g} %{_named(cores)}; all cores together: {mean(total):.0f} %.{loaders}",
        subject="cpu",
        numbers=(
            percent(
                "one core busy",
                waited,
                f"samples with a core > {parameters.core_threshold:g} % (or a rank that uses one core) and"
                f" GPU < {parameters.gpu_threshold:g} % and all cores < {most:g} %"
                " / all samples",
                limit=parameters.threshold,
            ),
            _mean("GPU", gpu, parameters.gpu_threshold),
            _mean("all cores", total, most),
            percent("the ranks' CPU", own, "mean of those samples, of all cores"),
            *(percent(name, value, "mean of those samples") for name, value in cores),
        ),
        refuted_by="More DataLoader workers that leave the GPUs as idle, with the same core busy.",
        change="Give the DataLoader workers: num_workers of the cores divided by the ranks, persistent_workers=True.",
        lost_s=_lost_s(waited, span),
    )


def io_bottleneck(evidence: Evidence, parameters: IOBottleneck, user_set: frozenset[str]) -> Iterator[Finding]:
    """A core waits for the disk while the GPUs are idle, for more than `threshold` percent of the samples."""
    span, gpu = _gpu_in(evidence, parameters.patience, user_set)
    worst = evidence.busiest_core("iowait_percent")
    if span is None or not worst:
        return
    part = slice(span.first, span.last)
    worst = worst[part]
    waits = [
        wait > parameters.io_threshold and idle < parameters.gpu_threshold
        for wait, idle in zip(worst, gpu, strict=True)
    ]
    waited = share(waits)
    if not waited > parameters.threshold:
        return
    own, every = _split_traffic(evidence, part, waits)
    is_own = not (every > TRAFFIC_PER_S and own < OWN_SHARE * every)
    whose = (
        ""
        if is_own
        else f", but of {format_value(every, 'bytes/s')} to and from the disks the ranks had only"
        f" {format_value(own, 'bytes/s')}"
    )
    yield make_finding(
        "IOBottleneck",
        evidence,
        span,
        f"For {waited:.0f} % of the time a core waited for the disk more than {parameters.io_threshold:g} % while the"
        f" GPUs were below {parameters.gpu_threshold:g} %{whose}.",
        subject="io" if is_own else OTHER_PROGRAMS,
        numbers=(
            percent(
                "bottleneck",
                waited,
                f"samples with I/O wait of a core > {parameters.io_threshold:g} % and GPU <"
                f" {parameters.gpu_threshold:g} % / all samples",
                limit=parameters.threshold,
            ),
            _mean("I/O wait of the core that waits most", worst, parameters.io_threshold),
            _mean("GPU", gpu, parameters.gpu_threshold),
            number("the ranks' traffic", own, "read and written by all ranks, mean of those samples", unit="bytes/s"),
            number("all traffic", every, "read and written on all disks, mean of those samples", unit="bytes/s"),
        ),
        refuted_by="The same job on data in /dev/shm that keeps the GPUs as idle.",
        change="Read less often and more at a time: larger files (WebDataset, tar), a local disk, more prefetch."
        if is_own
        else "Give the job a disk of its own, or end the other processes.",
        lost_s=_lost_s(waited, span),
    )


def _gpu_in(evidence: Evidence, patience: int, user_set: frozenset[str]) -> tuple[EvidenceSpan | None, list[float]]:
    """Return the part to judge and the mean use of the GPUs in it; None without GPUs or too early."""
    gpus = evidence.gpus()
    span = training(evidence, patience, is_user_set="patience" in user_set) if gpus else None
    if span is None:
        return None, []
    return span, means(values[span.first : span.last] for values in gpus.values())


def _split_cpu(evidence: Evidence, part: slice, waits: Sequence[bool]) -> tuple[float, float]:
    """Return what the ranks, and what others used of all cores, in percent, in the samples of *part* that *waits*
    marks; NaN: not measured. Within a quota, others are those of the container."""
    own, used = own_cpu(evidence, part), evidence.column("cpu/all/used_percent")[part]
    cores = len(evidence.cores()) or evidence.machine.cores or 1
    container = evidence.column("cpu/container/used_cores")[part]
    if evidence.column("cpu/all/quota_cores") and container:
        used = [100 * value / cores for value in container]
    own_percent = mean(compress(own, waits))
    return own_percent, max(mean(compress(used, waits)) - own_percent, 0.0) if own else float("nan")


def _split_traffic(evidence: Evidence, part: slice, waits: Sequence[bool]) -> tuple[float, float]:
    """Return the bytes a second that the ranks, and that all programs read from and wrote to disks, in the samples of
    *part* that *waits* marks; NaN: not measured."""
    own = [sum_ranks(evidence, f"disk_{way}_bytes_per_s")[part] for way in ("read", "write")]
    every = [evidence.column(f"disk/all/{way}_bytes_per_s")[part] for way in ("read", "write")]
    return (
        sum(mean(compress(values, waits)) for values in own),
        sum(mean(compress(values, waits)) for values in every),
    )


def _lost_s(waited: float, span: EvidenceSpan) -> float:
    """Return the seconds in which the GPUs were idle, *waited* percent of *span*."""
    return waited / 100 * (span.end_s - span.start_s)


def _busy(evidence: Evidence, span: EvidenceSpan, waits: Sequence[bool], limit: float) -> list[tuple[str, float]]:
    """Return the cores that were busiest while the GPUs waited, with their mean use; those above *limit*, else one."""
    used = [
        (name, mean(compress(evidence.column(f"cpu/{name}/used_percent")[span.first : span.last], waits)))
        for name in evidence.cores()
    ]
    used = sorted((core for core in used if core[1] == core[1]), key=lambda core: -core[1])
    above = [core for core in used if core[1] > limit]
    return above[:NAMED] or used[:1]


def _named(cores: Sequence[tuple[str, float]]) -> str:
    return " (" + ", ".join(f"{name} {value:.0f} %" for name, value in cores) + ")" if cores else ""


def _mean(name: str, values: Values, limit: float) -> Number:
    return percent(name, mean(values), "mean of all samples", limit=limit)
