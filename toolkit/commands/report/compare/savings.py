"""Pure: the savings of one job against the native one, as rows that show how each number was made."""

from collections.abc import Sequence

from toolkit.commands.report.compare import formulas
from toolkit.commands.report.compare.formulas import BreakEven, Interval
from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Cell, Table, make_table
from toolkit.records import Record

LEAST_EPOCHS = 2  # The first holds the compilation; a steady one is needed beside it.


class Savings(Record, frozen=True, kw_only=True):
    """The savings of a job against the native one, in percent of the native job. None: not known."""

    actual: float | None
    """Of billable seconds."""
    potential: float | None
    """Of the latency of the last epoch."""
    potential_interval: Interval | None
    """The interval of the mean latency of all epochs but the first."""
    speedup: float | None
    """The gain of throughput."""
    overhead_s: float | None
    """Seconds that the first epoch took longer than the last."""
    break_even: BreakEven | None
    """The epoch from which on the job is ahead."""
    step: float | None
    """Of the seconds of the steps that both jobs have."""
    step_interval: Interval | None
    """The interval of `step`."""
    break_even_step: BreakEven | None
    """The step from which on the job is ahead."""


def compute_savings(native: ComparedJob, other: ComparedJob) -> Savings:
    """Return what *other* saves against *native*."""
    potential = interval = overhead = even_epoch = None
    native_epochs, other_epochs = native.epochs, other.epochs
    if (
        native_epochs
        and other_epochs
        and min(len(native_epochs.latencies_s), len(other_epochs.latencies_s)) >= LEAST_EPOCHS
    ):
        potential = formulas.savings_percent(native_epochs.latencies_s[-1], other_epochs.latencies_s[-1])
        interval = formulas.bootstrap_savings(native_epochs.latencies_s[1:], other_epochs.latencies_s[1:])
        overhead = formulas.overhead_s(other_epochs.latencies_s)
        even_epoch = formulas.find_break_even(native_epochs.latencies_s, other_epochs.latencies_s)
    shared = find_common_steps(native, other)
    first, second = [native.step_s[step] for step in shared], [other.step_s[step] for step in shared]
    later = slice(1, None)  # The first step compiles.
    native_rate, other_rate = native.steady_throughput, other.steady_throughput
    is_comparable = native.throughput and other.throughput and native.throughput.name == other.throughput.name
    even_step = formulas.find_break_even(first, second) if len(shared) > 1 else None
    if even_step is not None and even_step.number is not None:
        even_step = BreakEven(number=shared[0] - 1 + even_step.number, measured=even_step.measured)
    return Savings(
        actual=formulas.savings_percent(native.billable_s, other.billable_s)
        if native.billable_s and other.billable_s is not None
        else None,
        potential=potential,
        potential_interval=interval,
        speedup=formulas.speedup_percent(native_rate, other_rate)
        if is_comparable and native_rate and other_rate is not None
        else None,
        overhead_s=overhead,
        break_even=even_epoch,
        step=formulas.savings_percent(sum(first[later]), sum(second[later])) if sum(first[later]) > 0 else None,
        step_interval=formulas.bootstrap_savings(first[later], second[later]),
        break_even_step=even_step,
    )


def find_common_steps(native: ComparedJob, other: ComparedJob) -> list[int]:
    """Return the steps that both jobs have, ascending."""
    return sorted(native.step_s.keys() & other.step_s.keys())


def compute_steps_per_s(jobs: Sequence[ComparedJob]) -> tuple[list[float | None], list[int]]:
    """Return the steps per second of each of *jobs*, over the steps that all of them have, and these steps.

    The first of them is left out: it may compile. A job without steps has None, and the others' are compared.
    """
    measured_steps = [job.step_s.keys() for job in jobs if job.step_s]
    shared = sorted(set(measured_steps[0]).intersection(*measured_steps[1:]))[1:] if measured_steps else []
    seconds = [sum(job.step_s[step] for step in shared) if job.step_s else 0.0 for job in jobs]
    return [len(shared) / job_seconds if job_seconds > 0 else None for job_seconds in seconds], shared


def build_savings_table(native: ComparedJob, other: ComparedJob, savings: Savings) -> Table:
    """Return the savings of *other* as a table whose last column is the calculation, with its numbers."""
    return make_table(
        f"savings-{other.label}",
        f"{other.label} against {native.label}",
        ("quantity", "value", "how it was made"),
        _build_rows(native, other, savings),
        note="Percentages are of the native job; a negative one is a loss. An interval holds the middle 95 % of 2,000 "
        "resamples of the epochs or steps of these two runs. They know the noise within a run, not that of machines.",
    )


def _build_rows(native: ComparedJob, other: ComparedJob, savings: Savings) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    if savings.actual is not None and native.billable_s and other.billable_s is not None:
        rows.append(
            (
                "actual savings",
                format_percent(savings.actual),
                "(native billable seconds - optimised) / native x 100 = "
                f"({native.billable_s:g} - {other.billable_s:g}) / {native.billable_s:g} x 100",
            )
        )
    if savings.potential is not None and native.epochs and other.epochs:
        native_last = format_seconds(native.epochs.latencies_s[-1])
        other_last = format_seconds(other.epochs.latencies_s[-1])
        other_first = format_seconds(other.epochs.latencies_s[0])
        rows.append(
            (
                "potential savings",
                format_percent(savings.potential),
                "(native steady epoch latency - optimised) / native x 100, steady = the last epoch = "
                f"({native_last} - {other_last}) / {native_last} x 100",
            )
        )
        if savings.potential_interval is not None:
            rows.append(
                (
                    "potential savings, 95 % interval",
                    describe_interval(savings.potential_interval),
                    "bootstrap of the mean latency of all epochs but the first",
                )
            )
        rows.append(
            (
                "overhead of the first epoch",
                f"{format_seconds(savings.overhead_s or 0.0)} s",
                f"first epoch latency - last = {other_first} - {other_last}; compilation is a part of it",
            )
        )
        how = (
            "first epoch at whose end the sum of the optimised job's latencies is below the native one's, and stays so"
        )
        rows.append(("break-even epoch", describe_break_even(savings.break_even), how))
    if savings.speedup is not None:
        assert native.throughput is not None
        rows.append(
            (
                "throughput speed-up",
                format_percent(savings.speedup),
                f"(optimised / native - 1) x 100 of the mean {native.throughput.name} after the first value = "
                f"({other.steady_throughput:g} / {native.steady_throughput:g} - 1) x 100",
            )
        )
    if savings.step is not None:
        shared = find_common_steps(native, other)
        rows.append(
            (
                "savings per step",
                format_percent(savings.step),
                f"(native - optimised) / native x 100 of the seconds of steps {shared[1]} to {shared[-1]}, the "
                f"{len(shared) - 1:,} that both jobs have after step {shared[0]}",
            )
        )
        if savings.step_interval is not None:
            how = "block bootstrap of the seconds of these steps"
            rows.append(("savings per step, 95 % interval", describe_interval(savings.step_interval), how))
        if savings.break_even_step is not None:
            how = "first step at whose end the sum of the optimised job's step seconds is below the native one's"
            rows.append(("break-even step", describe_break_even(savings.break_even_step), how))
    return rows


def describe_break_even(break_even: BreakEven | None) -> str:
    """Return a break-even for reading."""
    if break_even is None or break_even.number is None:
        return "never at these latencies"
    return (
        f"{break_even.number}" if break_even.measured else f"{break_even.number} (extrapolated: both jobs ended before)"
    )


def format_percent(value: float) -> str:
    """Return "12.3 %"."""
    return f"{value:.1f} %"


def describe_interval(interval: Interval) -> str:
    """Return an interval in percent, and whether it is noise."""
    noise = ": within run-to-run noise" if interval.within_noise else ""
    return f"{interval.low:.1f} to {interval.high:.1f} %{noise}"


def format_seconds(value: float) -> str:
    """Return seconds with as many digits as a check by hand needs."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
