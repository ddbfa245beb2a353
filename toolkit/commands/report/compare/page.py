"""Builds the page of `toolkit compare`: the first side, the others beside it."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from toolkit import __version__
from toolkit.commands.jobs.damage import find_damage
from toolkit.commands.report.compare import changes, compilers, drifts, formulas, kernels
from toolkit.commands.report.compare.difference import compute_mean_interval
from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.compare.savings import (
    MANY_TIMES,
    Savings,
    build_savings_table,
    compute_savings,
    compute_steps_per_s,
    describe_break_even,
    find_common_steps,
    format_seconds,
)
from toolkit.commands.report.compare.verdict import ENDS, MORE_RUNS, ONE_RUN, TONES, Verdict, decide
from toolkit.commands.report.model import (
    Axis,
    AxisKind,
    Block,
    Cell,
    Chart,
    Line,
    Mark,
    Page,
    Section,
    Table,
    Words,
    make_table,
)
from toolkit.commands.report.sections.start_up import PARTS

MADE_BY = f"toolkit {__version__}"
POINTS = 600
OTHERS_SHARE = "cores used by others, %"
EPOCHS_MISSING = (
    "The epochs of {jobs} have no latencies. Print them (epoch_time=1.25) or the epoch's number, and capture it as a "
    "metric (epoch_time, epoch): docs/compare.md."
)
STEPS_MISSING = (
    "The steps of {jobs} have no times. Run the job with its monitor (TOOLKIT_MONITOR=1), or print step and step_time "
    "and capture them as metrics."
)


def build_page(jobs: Sequence[ComparedJob], *, now_s: float, price: float | None = None) -> Page:
    """Return the page of *jobs*: the first one, then at least one other. *price*: of one host for an hour."""
    first, *others = jobs
    job_savings = [compute_savings(first, other) for other in others]
    verdicts = [decide(first, other, other_savings) for other, other_savings in zip(others, job_savings, strict=True)]
    compared = tuple(zip(verdicts, others, job_savings, strict=True))
    runs = [run for side in jobs for run in side.runs]
    drift = drifts.find_drift(first, others)
    sections = (
        ("drift", "What is not the same", drifts.build_blocks(first, drift)),
        ("outcome", "Outcome", _build_outcome(first, others, verdicts, price)),
        ("side-by-side", "Side by side", [_build_overview(runs, price), *_build_bars(runs)]),
        (
            "savings",
            "Savings",
            [
                build_savings_table(first, other, other_savings)
                for verdict, other, other_savings in compared
                if verdict.status != "not comparable"
            ],
        ),
        ("compilers", "Compilers", compilers.build_blocks(first, others)),
        ("convergence", "Convergence", _build_convergence(first, others)),
        ("epochs", "Epochs", _build_epochs(jobs, job_savings)),
        ("steps", "Steps", _build_steps(runs)),
        ("normalised", "By epochs and devices", [_build_normalised(jobs)]),
        ("findings", "Findings", changes.build_blocks(first, others)),
        ("kernels", "Top kernels", kernels.build_blocks(jobs)),
    )
    return Page(
        title=f"{others[0].label if len(others) == 1 else f'{len(others)} jobs'} against {first.label}",
        status=verdicts[0].status if len(verdicts) == 1 else "compared",
        tone=TONES[verdicts[0].status] if len(verdicts) == 1 else "plain",
        summary=" ".join(
            filter(
                None,
                (
                    drifts.describe_drift(drift),
                    *(_describe_end(verdict, first, other, saved) for verdict, other, saved in compared),
                ),
            )
        ),
        sections=tuple(
            Section(id=name, title=title, blocks=tuple(blocks)) for name, title, blocks in sections if blocks
        ),
        made_by=MADE_BY,
        made_at_s=now_s,
    )


def _describe_end(verdict: Verdict, first: ComparedJob, other: ComparedJob, savings: Savings) -> str:
    """Return the sentences of the head on *other*: where it is not certain that one is faster, the verdict alone."""
    if not verdict.is_claim:
        return f"{verdict.text}."
    parts = [verdict.text]
    first_rate, other_rate = compute_steps_per_s((first, other))[0]
    if first_rate is not None and other_rate is not None:
        parts.append(f"steps per second, over the same steps: {first_rate:.3g} before, {other_rate:.3g} after")
    if savings.actual is not None:
        parts.append(f"it was billed {_describe_bill(savings.actual, first.label)}")
    if savings.break_even is not None and savings.break_even.number is not None:
        parts.append(f"break-even epoch: {describe_break_even(savings.break_even)}")
    cleared = changes.list_cleared_rules(first, other)
    has_one_run = min(len(first.runs), len(other.runs)) == 1
    sentences = [
        "; ".join(parts),
        *((ONE_RUN, MORE_RUNS) if has_one_run else ()),
        *([f"Cleared: {', '.join(cleared)}"] if cleared else []),
    ]
    return f"{'. '.join(sentences)}."


def _describe_bill(savings: float, first: str) -> str:
    """Return "5.0 % less than FIRST" of *savings* in percent, "as much as FIRST" where they round to nothing."""
    if not round(abs(savings), 1):
        return f"as much as {first}"
    return f"{abs(savings):.1f} % {'less' if savings > 0 else 'more'} than {first}"


def _build_outcome(
    first: ComparedJob, others: Sequence[ComparedJob], verdicts: Sequence[Verdict], price: float | None
) -> list[Block]:
    blocks: list[Block] = [_describe_job(run) for run in first.runs]
    for other, verdict in zip(others, verdicts, strict=True):
        blocks += [_describe_job(run) for run in other.runs]
        if verdict.is_claim and price is not None and first.billable_s is not None and other.billable_s is not None:
            saved = (first.billable_s - other.billable_s) / 3600 * price
            blocks.append(Words(name="In money", text=f"{saved:.4f} saved, at {price:g} for a host and hour."))
    for job in (run for side in (first, *others) for run in side.runs):
        if job.job.status != "succeeded":
            text = f"{job.label} {ENDS[job.job.status]}: its times are not those of a whole job."
            blocks.append(Words(text=text, tone="warn", advice="Compare jobs that ran to their end."))
        blocks += [Words(text=note, tone="warn") for note in (*job.job.notes, *find_damage(job.job))]
        if job.epochs is not None and job.epochs.resolution_s:
            text = f"The epoch latencies of {job.label} are whole seconds: {job.epochs.source} print no finer ones."
            blocks.append(Words(text=text, tone="warn", advice="Capture epoch or epoch_time as a metric."))
    if len({job.epoch_count for job in (first, *others) if job.epoch_count is not None}) > 1:
        text = "The jobs ran different numbers of epochs: compare them by epoch (below), not by their bills."
        blocks.append(Words(text=text, tone="warn"))
    return blocks


def _describe_job(job: ComparedJob) -> Words:
    """Return the legend of the page: the label of *job*, its name where that is another, and its folder."""
    name = "" if job.job.name == job.label else f"{job.job.name}, "
    return Words(name=job.label, text=f"{name}{job.job.folder}")


def _build_overview(jobs: Sequence[ComparedJob], price: float | None) -> Table:
    first = jobs[0]
    known_quantities = ((name, values) for name, values in _list_quantities(jobs, price) if any(map(_is_known, values)))
    return make_table(
        "overview",
        "The jobs",
        (
            "quantity",
            *(job.label for job in jobs),
            *((f"{job.label} vs {first.label}", "", "value / first - 1") for job in jobs[1:]),
        ),
        (
            (
                name,
                *map(_round_to_six_digits, values),
                # A change of a share in percent of that share says nothing.
                *("" if name == OTHERS_SHARE else change for change in _compare_to_first(values)),
            )
            for name, values in known_quantities
        ),
        note="Billable seconds are the training time times the hosts. Steps a second and CPU seconds are of steps that"
        " all jobs have. Cores used by others: the share of all cores that other programs used meanwhile."
        " Numbers have six digits.",
    )


def _list_quantities(jobs: Sequence[ComparedJob], price: float | None) -> Iterator[tuple[str, list[float | None]]]:
    """Yield each quantity of the overview with its value of each job."""
    yield "training time, s", [job.training_s for job in jobs]
    yield "billable, s", [job.billable_s for job in jobs]
    if price is not None:
        costs = [None if job.billable_s is None else job.billable_s / 3600 * price for job in jobs]
        yield f"cost at {price:g} for a host and hour", costs
    names = {job.throughput.name for job in jobs if job.throughput is not None}
    if len(names) == 1:
        yield f"throughput, {names.pop()} (mean after the first value)", [job.steady_throughput for job in jobs]
    rates, shared = compute_steps_per_s(jobs)
    if shared:
        yield f"steps/s, steps {shared[0]:,} to {shared[-1]:,}", rates
    yield "CPU seconds a step, all ranks", _average_cpu(jobs)
    yield (
        OTHERS_SHARE,
        [None if job.machine.others_share is None else 100 * job.machine.others_share for job in jobs],
    )
    starts = [job.start for job in jobs]
    yield "until the first step, s", [start.total_s if start else None for start in starts]
    for name, (title, _) in PARTS.items():
        yield f"  {title}, s", [start.parts_s.get(name) if start else None for start in starts]
    yield "seconds of the training alone, train_runtime", [job.runtime_s for job in jobs]
    yield "epochs", [job.epoch_count for job in jobs]
    yield "first epoch, s", [job.epochs.latencies_s[0] if job.epochs else None for job in jobs]
    yield "last epoch, s", [job.epochs.latencies_s[-1] if job.epochs else None for job in jobs]
    yield "last loss", [job.loss.y[-1] if job.loss and job.loss.y else None for job in jobs]


def _average_cpu(jobs: Sequence[ComparedJob]) -> list[float | None]:
    """Return the CPU seconds of a step of each job, over the steps for which all of them have any."""
    measured_steps = [job.machine.step_cpu_s.keys() for job in jobs if job.machine.step_cpu_s]
    shared = set(measured_steps[0]).intersection(*measured_steps[1:]) if measured_steps else set()
    used = [job.machine.step_cpu_s for job in jobs]
    return [
        math.fsum(seconds[step] for step in shared) / len(shared) if seconds and shared else None for seconds in used
    ]


def _is_known(value: float | None) -> bool:
    return value is not None


def _round_to_six_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _compare_to_first(values: Sequence[float | None]) -> list[str]:
    """Return the change of each value but the first against it, as "+1.5 %"; "" where one of the two is not known."""
    base = values[0]
    return [_describe_change(value / base) if base and value is not None else "" for value in values[1:]]


def _describe_change(times: float) -> str:
    """Return "+1.5 %"; "x 12.3" from MANY_TIMES on."""
    if times - 1 < MANY_TIMES / 100:
        return f"{(times - 1) * 100:+.1f} %"
    return f"x {times:,.0f}" if times >= 100 else f"x {times:.3g}"


def _build_bars(jobs: Sequence[ComparedJob]) -> list[Block]:
    """Return the charts of throughput, training time and billable seconds; that of the loss is in "convergence"."""
    names = {job.throughput.name for job in jobs if job.throughput is not None}
    unit = names.pop() if len(names) == 1 else ""
    quantities = (
        ("throughput", "Throughput", unit, [job.steady_throughput if unit else None for job in jobs]),
        ("training-time", "Training time", "s", [job.training_s for job in jobs]),
        ("billable", "Billable seconds", "s", [job.billable_s for job in jobs]),
    )
    return [_build_bar(*quantity, jobs) for quantity in quantities if any(value is not None for value in quantity[3])]


def _build_bar(name: str, title: str, unit: str, values: Sequence[float | None], jobs: Sequence[ComparedJob]) -> Chart:
    lines = [
        Line(name=job.label, x=(float(number),), mean=(value,), source=f"{job.job.folder}")
        for number, (job, value) in enumerate(zip(jobs, values, strict=True), 1)
        if value is not None
    ]
    return Chart(
        id=name,
        title=title,
        x=Axis(name="job", low=0.0, high=len(jobs) + 1.0),
        y=Axis(name=title.lower(), unit=unit, low=0.0),
        lines=tuple(lines),
        style="bars",
        formula="A bar for each job, in the order of the command.",
    )


def _build_convergence(first: ComparedJob, others: Sequence[ComparedJob]) -> list[Block]:
    curves = [(job, job.loss) for job in (first, *others) if job.loss is not None and job.loss.y]
    if not curves:
        return [Words(text="No loss was captured. Give a metric definition for it: docs/metrics.md.")]
    kinds = {curve.kind for _, curve in curves}
    kind = kinds.pop() if len(kinds) == 1 else "value"
    lines = [_thin_line(job.label, curve.x, curve.y, f"{job.job.folder}: metric {curve.name}") for job, curve in curves]
    axis = Axis(name={"step": "step", "epoch": "epoch"}.get(kind, "value number"), kind=_choose_axis_kind(kind))
    blocks: list[Block] = [
        Chart(
            id="loss",
            title="Loss",
            x=axis,
            y=Axis(name="loss"),
            lines=tuple(lines),
            cursor=kind,
            formula="Each value as captured, of the lowest rank that prints it.",
        )
    ]
    blocks += [_compare_losses(first, other) for other in others if first.loss and other.loss]
    return blocks


def _choose_axis_kind(kind: str) -> AxisKind:
    return "step" if kind == "step" else "epoch" if kind == "epoch" else "value"


def _compare_losses(first: ComparedJob, other: ComparedJob) -> Words:
    """Return whether the losses at the same steps differ, over the second half of what both have."""
    assert first.loss is not None and other.loss is not None
    first_losses, other_losses = (
        dict(zip(first.loss.x, first.loss.y, strict=True)),
        dict(zip(other.loss.x, other.loss.y, strict=True)),
    )
    shared = sorted(first_losses.keys() & other_losses.keys())
    late = shared[len(shared) // 2 :]
    if first.loss.kind != other.loss.kind or not late:
        return Words(name=other.label, text=f"its losses and those of {first.label} share no steps.")
    differences = [other_losses[x] - first_losses[x] for x in late]
    mean = sum(differences) / len(differences)
    interval = compute_mean_interval(differences)
    span = f"{first.loss.kind} {late[0]:g} to {late[-1]:g}"
    side = f"{abs(mean):.3g} {'above' if mean > 0 else 'below'}" if mean else "equal to"
    text = f"over {span} its loss is {side} that of {first.label} in the mean"
    low, high = (interval[1], interval[2]) if interval is not None else (-math.inf, math.inf)
    if interval is not None and mean:
        text += f" (95 % interval {low:.3g} to {high:.3g})"
        text += ": no more than these two runs vary" if low <= 0 <= high else ""
    first_last, other_last = first_losses[late[-1]], other_losses[late[-1]]
    text += f"; at the last one that both have, {late[-1]:g}: {first_last:.6g} and {other_last:.6g}."
    worse = low > 0 and mean > 0.01 * abs(first_last)
    return Words(name=other.label, text=text, tone="warn" if worse else "plain")


def _build_epochs(jobs: Sequence[ComparedJob], job_savings: Sequence[Savings]) -> list[Block]:
    measured = [(job, job.epochs) for job in jobs if job.epochs is not None]
    missing = [job.label for job in jobs if job.epochs is None]
    blocks: list[Block] = [Words(text=EPOCHS_MISSING.format(jobs=", ".join(missing)))] if missing else []
    if not measured:
        return blocks
    lines, sums = [], []
    for job, epochs in measured:
        x = tuple(float(epochs.first + index) for index in range(len(epochs.latencies_s)))
        lines.append(_thin_line(job.label, x, epochs.latencies_s, epochs.source))
        sums.append(_thin_line(job.label, x, tuple(accumulate(epochs.latencies_s)), epochs.source))
    marks = [
        Mark(start=float(other_savings.break_even.number), text=f"break-even of {job.label}")
        for job, other_savings in zip(jobs[1:], job_savings, strict=True)
        if other_savings.break_even
        and other_savings.break_even.number is not None
        and other_savings.break_even.measured
    ]
    epoch = Axis(name="epoch", kind="epoch")
    rows: list[tuple[Cell, ...]] = [
        (job.label, len(epochs.latencies_s), *_summarise_latencies(epochs.latencies_s), epochs.source)
        for job, epochs in measured
    ]
    heads = ("first", "least", "last", "overhead", "overhead per epoch")
    return [
        *blocks,
        Chart(
            id="epoch-latency",
            title="Latency of each epoch",
            x=epoch,
            y=Axis(name="latency", unit="s", low=0.0),
            lines=tuple(lines),
            cursor="epoch",
            formula="The first epoch holds the compilation; the later ones are steady.",
        ),
        Chart(
            id="epoch-sum",
            title="Time until the end of each epoch",
            x=epoch,
            y=Axis(name="time", unit="s", low=0.0),
            lines=tuple(sums),
            marks=tuple(marks),
            cursor="epoch",
            formula="Sum of the latencies until then. Where the lines cross, the overhead is paid off.",
        ),
        make_table(
            "epoch-table",
            "Epoch latencies",
            (
                "job",
                "epochs",
                *((name, "s") for name in heads),
                "source",
            ),
            rows,
            note="Overhead: first - last. Overhead per epoch: overhead / epochs, which the number of epochs amortises.",
        ),
    ]


def _summarise_latencies(latencies_s: Sequence[float]) -> Iterator[float]:
    """Yield the first, the least and the last latency, the overhead, and that per epoch, in seconds."""
    overhead_s = formulas.overhead_s(latencies_s)
    for value in (latencies_s[0], min(latencies_s), latencies_s[-1], overhead_s, overhead_s / len(latencies_s)):
        yield float(format_seconds(value))


def _build_steps(jobs: Sequence[ComparedJob]) -> list[Block]:
    missing = [job.label for job in jobs if not job.step_s]
    blocks: list[Block] = [Words(text=STEPS_MISSING.format(jobs=", ".join(missing)))] if missing else []
    lines = []
    for job in jobs:
        if job.step_s:
            x = sorted(job.step_s)
            lines.append(
                _thin_line(job.label, tuple(map(float, x)), tuple(job.step_s[step] for step in x), job.step_source)
            )
    if lines:
        blocks.append(
            Chart(
                id="step-time",
                title="Seconds of each step",
                x=Axis(name="step", kind="step"),
                y=Axis(name="time", unit="s", low=0.0),
                lines=tuple(lines),
                cursor="step",
                formula="From the end of the step before to the end of this one.",
            )
        )
        rows = [
            (other.label, len(shared), shared[0], shared[-1])
            for other in jobs[1:]
            if (shared := find_common_steps(jobs[0], other))
        ]
        if rows:
            columns = ("job", "steps in common", "from", "to")
            blocks.append(make_table("same-steps", "Same steps against same steps", columns, rows))
    return blocks


def _build_normalised(jobs: Sequence[ComparedJob]) -> Table:
    """Return the table of KT's story: hours per epoch, and the reduction ratio; then by devices, too."""
    rows: list[tuple[Cell, ...]] = []
    base = _compute_hours_per_epoch(jobs[0])
    for job in jobs:
        hours = _compute_hours_per_epoch(job)
        ratio = formulas.reduction_ratio(base, hours) if base and hours else None
        by_part = None if ratio is None else ratio * jobs[0].parts / job.parts
        rows.append(
            (
                job.label,
                f"{job.parts} {_pluralise(job.part, job.parts)}",
                None if job.training_s is None else float(f"{job.training_s / 3600:.4g}"),
                job.epoch_count,
                None if hours is None else float(f"{hours:.4g}"),
                None if ratio is None else float(f"{ratio:.3g}"),
                None if by_part is None else float(f"{by_part:.3g}"),
            )
        )
    names = ("job", "devices", "hours", "epochs", "hours per epoch", "reduction ratio", "ratio per device")
    return make_table(
        "normalised",
        "Hours per epoch",
        names,
        rows,
        note="Hours per epoch: hours / epochs. Reduction ratio: first hours per epoch / this job's. Ratio per device: "
        "that x first devices / this job's devices, what better software did. Say --epochs and --gpus where the "
        "files do not know them.",
    )


def _compute_hours_per_epoch(job: ComparedJob) -> float | None:
    if job.training_s is None or not job.epoch_count:
        return None
    return formulas.hours_per_epoch(job.training_s / 3600, job.epoch_count)


def _pluralise(part: str, count: int) -> str:
    return part if count == 1 else re.sub("s$", "se", part) + "s"


def _thin_line(name: str, x: Sequence[float], y: Sequence[float], source: str) -> Line:
    """Return a line of at most POINTS points: beyond, means of neighbours with their least and greatest value."""
    if len(x) <= POINTS:
        return Line(name=name, x=tuple(x), mean=tuple(y), source=source)
    edges = [number * len(x) // POINTS for number in range(POINTS + 1)]
    parts = [(x[start], y[start:end]) for start, end in pairwise(edges)]
    return Line(
        name=name,
        x=tuple(first_x for first_x, _ in parts),
        mean=tuple(sum(values) / len(values) for _, values in parts),
        low=tuple(min(values) for _, values in parts),
        high=tuple(max(values) for _, values in parts),
        source=source,
    )
