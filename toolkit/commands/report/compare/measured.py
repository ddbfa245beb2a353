"""Reads the measurements of a job that are compared, once, from its folder."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

import msgspec

from toolkit import files
from toolkit.commands.jobs.data import JobData
from toolkit.commands.jobs.records import samples
from toolkit.commands.report.compare.epochs import Epochs, find_in_lines, find_in_metrics
from toolkit.commands.report.compare.machine_use import MachineUse, measure_machines
from toolkit.commands.report.sections import diagnosed, start_up
from toolkit.commands.report.sections.start_up import StartUp
from toolkit.folders import is_dir, named_elsewhere
from toolkit.metrics.sample import Sample
from toolkit.records import Record
from toolkit.series import monitor_document
from toolkit.series.arrays import has_numpy
from toolkit.series.finding import Finding
from toolkit.series.start_up import read as read_start

_THINGS = "(?:samples?|examples?|images?|sentences?|sequences?|tokens?)"
THROUGHPUT = re.compile(
    rf"(?:train_)?{_THINGS}(?:_per_s(?:ec(?:ond)?)?|/s(?:ec)?)|(?:train_)?throughput|(?:train_)?steps_per_s(?:ec(?:ond)?)?|it/s",
    re.I,
)
STEP_SECONDS = re.compile(r"(?:train_)?step_(?:time|latency|duration|seconds?)(?:_s|_sec|_seconds)?|s/step", re.I)
STEP_MILLISECONDS = re.compile(r"(?:train_)?step_(?:time|latency|duration)_ms|ms/step|ms_per_step|step_ms", re.I)
LOSSES = ("loss", "train_loss", "training_loss", "train/loss")
LONGEST_LABEL = 24  # For the head of a column. A default name of `toolkit run` has 33 characters and more.
# Hyperparameters that ask for a number of steps or epochs, "-" written as "_".
ASKED_STEPS = ("max_steps", "num_steps", "train_steps", "max_train_steps", "steps")
ASKED_EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs")
RUNTIME = "train_runtime"  # Hugging Face's Trainer: seconds of the whole training.


class Curve(Record, frozen=True, kw_only=True):
    """Values of one metric."""

    name: str
    """The metric."""
    kind: str
    """The unit that `x` counts: "step", "epoch" or "value"."""
    x: tuple[float, ...]
    """Steps, epochs, or the numbers of the values."""
    y: tuple[float, ...]
    """The values."""
    time_s: tuple[float, ...]
    """When each was read, in seconds since the epoch."""


class ComparedJob(Record, frozen=True, kw_only=True):
    """A job to compare. None: its files do not tell."""

    label: str
    """Its short name in the page."""
    job: JobData
    """The job, as its folder has it."""
    training_s: float | None
    """Seconds from its start to its end."""
    billable_s: float | None
    """Seconds that are paid for, all hosts together."""
    epochs: Epochs | None
    """The latencies of its epochs."""
    epoch_count: float | None
    """The number of epochs that it ran."""
    parts: int
    """By how many GPUs, or else processes or hosts, its time is divided."""
    part: str
    """The kind of `parts` that counts: "GPU", "process" or "host"."""
    loss: Curve | None
    """Its loss."""
    throughput: Curve | None
    """Its throughput, by time."""
    step_s: dict[int, float]
    """Seconds by step, of the slowest rank."""
    step_source: str
    """The source of `step_s`, in words."""
    findings: tuple[Finding, ...]
    """The findings of the rules."""
    runtime_s: float | None = None
    """Seconds of the training alone, as Hugging Face's Trainer reports them."""
    machine: MachineUse = MachineUse()
    """Its machines, and who else used them."""
    requested_steps: float | None = None
    """The steps that its hyperparameters asked for."""
    requested_epochs: float | None = None
    """The epochs that its hyperparameters asked for."""
    start: StartUp | None = None
    """Its start until the first step, of the host that was last."""
    repeats: tuple["ComparedJob", ...] = ()
    """Further runs of the same side, which the statistic takes in."""

    @property
    def runs(self) -> tuple["ComparedJob", ...]:
        """All runs of this side, this one first."""
        return (self, *self.repeats)

    @property
    def steady_throughput(self) -> float | None:
        """The mean of the throughput's values, the first left out where there are several: it holds the start."""
        if self.throughput is None:
            return None
        values = self.throughput.y[1:] or self.throughput.y
        return math.fsum(values) / len(values)


def measure_job(job: JobData, label: str, *, now_s: float, epochs: float | None, gpus: int | None) -> ComparedJob:
    """Return *job* with its measurements. *epochs*, *gpus*: the user's numbers; None: those of the files."""
    metrics = _take_first_rank(samples(job.folder))
    ended_s = now_s if job.status == "running" else job.end_s
    found_epochs = find_in_metrics(metrics, job.start_s) or _find_epochs_in_logs(job)
    step_s, step_source, ranks = _read_steps(job, metrics)
    parts, part = _count_parts(job, metrics, gpus, ranks)
    hyperparameters = _read_hyperparameters(job)
    return ComparedJob(
        label=label,
        job=job,
        training_s=None if job.start_s is None or ended_s is None else max(0.0, ended_s - job.start_s),
        billable_s=job.billable(now_s),
        epochs=found_epochs,
        epoch_count=epochs if epochs is not None else _count_epochs(metrics, found_epochs),
        parts=parts,
        part=part,
        loss=_find_loss(metrics),
        throughput=_find_throughput(metrics),
        step_s=step_s,
        step_source=step_source,
        findings=diagnosed.diagnose_job(job).findings if has_numpy() else diagnosed.read_live_findings(job),
        runtime_s=metrics[RUNTIME][-1].value if RUNTIME in metrics else None,
        machine=measure_machines(job),
        requested_steps=_find_number(hyperparameters, ASKED_STEPS),
        requested_epochs=_find_number(hyperparameters, ASKED_EPOCHS),
        start=_measure_start(job),
    )


def choose_labels(jobs: Sequence[JobData]) -> tuple[str, ...]:
    """Return a short name for each of *jobs*: that of its folder, with as many folders above as it takes until all
    differ. One that is too long for the head of a column loses its middle; if two are alike then, a number tells them
    apart."""
    deepest = max(len(job.folder.parts) for job in jobs)
    choices = [["/".join(job.folder.parts[-depth:]) for job in jobs] for depth in range(1, deepest + 1)]
    names = next((names for names in choices if len(set(names)) == len(names)), choices[0])
    short = [_shorten(name) for name in names]
    if len(set(short)) < len(short):
        short = [f"{number} {_shorten(name, LONGEST_LABEL - 3)}" for number, name in enumerate(names, 1)]
    return tuple(short)


def _shorten(name: str, longest: int = LONGEST_LABEL) -> str:
    """Return *name*, without its middle if it is longer than *longest*; most names differ at their end."""
    end = longest * 2 // 3
    return name if len(name) <= longest else f"{name[: longest - end - 3]}...{name[-end:]}"


def _read_hyperparameters(job: JobData) -> dict[str, object]:
    """Return the job's hyperparameters by name, "-" in a name written as "_"; none if they cannot be read."""
    for host in job.hosts:
        path = host.output.parent / "input" / "config" / "hyperparameters.json"
        try:
            document = msgspec.json.decode(files.read(path))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(document, dict):
            return {str(name).replace("-", "_"): value for name, value in document.items()}
    return {}


def _find_number(hyperparameters: Mapping[str, object], names: Sequence[str]) -> float | None:
    """Return the first of *names* that is a number above 0: -1 and 0 mean "no limit" to many scripts."""
    for name in names:
        try:
            number = float(str(hyperparameters.get(name, "")).strip('"'))
        except ValueError:
            continue
        if math.isfinite(number) and number > 0:
            return number
    return None


def _take_first_rank(rank_samples: Iterator[Sample]) -> dict[str, list[Sample]]:
    """Return the samples by name, each metric's of the lowest rank that has it."""
    by_rank: dict[str, dict[int, list[Sample]]] = {}
    for sample in rank_samples:
        by_rank.setdefault(sample.name, {}).setdefault(-1 if sample.rank is None else sample.rank, []).append(sample)
    return {name: ranks[min(ranks)] for name, ranks in by_rank.items()}


def _find_epochs_in_logs(job: JobData) -> Epochs | None:
    for host in job.hosts:
        for path in host.logs:
            try:
                with TextIOWrapper(files.opened(path), "utf-8", "replace") as lines:
                    epochs = find_in_lines(lines)
            except OSError:
                continue
            if epochs is not None:
                return epochs
    return None


def _count_epochs(metrics: Mapping[str, Sequence[Sample]], epochs: Epochs | None) -> float | None:
    for name in ("epoch", "train_epoch"):
        values = [sample.value for sample in metrics.get(name, ()) if math.isfinite(sample.value)]
        if values:
            return max(values)
    return None if epochs is None else float(epochs.first - 1 + len(epochs.latencies_s))


def _find_loss(metrics: Mapping[str, Sequence[Sample]]) -> Curve | None:
    others = (name for name in sorted(metrics) if "loss" in name.lower() and not re.search("val|eval|test", name, re.I))
    for name in (*LOSSES, *others):
        if name in metrics:
            return _make_curve(name, metrics[name], metrics.get("epoch", ()))
    return None


def _make_curve(name: str, metric_samples: Sequence[Sample], epochs: Sequence[Sample]) -> Curve:
    finite = [sample for sample in metric_samples if math.isfinite(sample.value)]
    x: list[float]
    if all(sample.step is not None for sample in finite):
        finite = sorted({sample.step: sample for sample in finite}.values(), key=lambda sample: sample.step or 0)
        kind, x = "step", [float(sample.step or 0) for sample in finite]
    elif len(finite) == len(epochs):
        kind, x = "epoch", [sample.value for sample in epochs]
    else:
        kind, x = "value", [float(number) for number in range(1, len(finite) + 1)]
    return Curve(
        name=name,
        kind=kind,
        x=tuple(x),
        y=tuple(sample.value for sample in finite),
        time_s=tuple(sample.time_s for sample in finite),
    )


def _find_throughput(metrics: Mapping[str, Sequence[Sample]]) -> Curve | None:
    for name in sorted(metrics, key=lambda name: ("step" in name, name)):
        if THROUGHPUT.fullmatch(name) and any(math.isfinite(sample.value) for sample in metrics[name]):
            return _make_curve(name, metrics[name], metrics.get("epoch", ()))
    return None


def _read_steps(job: JobData, metrics: Mapping[str, Sequence[Sample]]) -> tuple[dict[int, float], str, set[int]]:
    """Return the seconds of each step, where they come from (the monitor, or a metric of the script), and the ranks
    whose steps the monitor saw."""
    slowest_s: dict[int, float] = {}
    ranks: set[int] = set()
    for host in job.hosts:
        for rank, step, seconds in _read_monitored_steps(host.monitor / "steps"):
            slowest_s[step] = max(seconds, slowest_s.get(step, 0.0))
            ranks.add(rank)
    if slowest_s:
        return slowest_s, "the monitor (output/monitor/steps), the slowest rank of each step", ranks
    for pattern, unit_s in ((STEP_SECONDS, 1.0), (STEP_MILLISECONDS, 1e-3)):
        for name, values in metrics.items():
            if pattern.fullmatch(name):
                seconds_by_step = {sample.step: sample.value * unit_s for sample in values if sample.step is not None}
                return (
                    {step: value for step, value in seconds_by_step.items() if math.isfinite(value)},
                    f"metric {name}",
                    ranks,
                )
    return {}, "", ranks


def _read_monitored_steps(folder: Path) -> Iterator[tuple[int, int, float]]:
    """Yield (rank, step, seconds) of all ranks of one host; of repeated steps the newest."""
    if not is_dir(folder, named_elsewhere) or not has_numpy():
        return
    from toolkit.series import step_records

    table = step_records.read(folder)
    for rank in table.ranks:
        rank_steps = table.of(rank)
        newest = dict(zip(rank_steps.step.tolist(), rank_steps.step_s.tolist(), strict=True))
        yield from ((int(rank), int(step), seconds) for step, seconds in newest.items() if seconds == seconds)


def _measure_start(job: JobData) -> StartUp | None:
    """Return the start of the host that was last, None where no start was measured."""
    if job.start_s is None or not has_numpy():
        return None
    from toolkit.series import step_records

    starts = []
    for host in job.hosts:
        start = read_start(host.monitor)
        if start is not None:
            table = step_records.read(host.monitor / "steps")
            starts.append(start_up.measure(host.name, job.start_s, start, table))
    measured = [start for start in starts if start is not None]
    return max(measured, key=lambda start: start.total_s, default=None)


def _count_parts(
    job: JobData, metrics: Mapping[str, Sequence[Sample]], gpus: int | None, stepping: set[int]
) -> tuple[int, str]:
    """Return by how many GPUs, processes or hosts the job's time is divided. *stepping*: ranks of which steps are
    known; often rank 0 alone prints metrics."""
    if gpus is not None:
        return gpus, "GPU"
    monitored_gpus = sum(_count_gpus(host.monitor) for host in job.hosts)
    if monitored_gpus:
        return monitored_gpus, "GPU"
    ranks = (
        {(sample.host, sample.rank) for sample in samples(job.folder) if sample.rank is not None} if metrics else set()
    )
    processes = max(len(ranks), len(stepping))
    return (processes, "process") if processes else (max(1, len(job.hosts)), "host")


def _count_gpus(monitor: Path) -> int:
    about = monitor_document.read(monitor / "monitor.json")
    return len(about.machine.gpus) if about is not None else 0
