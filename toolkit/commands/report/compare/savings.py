"""Pure: the savings of one job against the native one, as rows that show how each number was made."""

from collections.abc import Sequence

from toolkit.commands.report.compare import formulas
from toolkit.commands.report.compare.formulas import BreakEven, Interval
from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Cell, Column, Table
from toolkit.records import Record

LEAST_EPOCHS = 2  # The first holds the compilation; a steady one is needed beside it.


class Savings(Record, frozen=True, kw_only=True):
    """What a job saves against the native one; None: cannot be said. Percentages are of the native job."""

    actual: float | None
    potential: float | None
    potential_interval: Interval | None
    speedup: float | None
    overhead_s: float | None
    break_even: BreakEven | None
    step: float | None
    step_interval: Interval | None
    break_even_step: BreakEven | None


def compute_savings(native: ComparedJob, other: ComparedJob) -> Savings:
    """Return what *other* saves against *native*."""
    potential = interval = overhead = even = None
    one, two = native.epochs, other.epochs
    if one and two and min(len(one.latencies_s), len(two.latencies_s)) >= LEAST_EPOCHS:
        potential = formulas.savings_percent(one.latencies_s[-1], two.latencies_s[-1])
        interval = formulas.bootstrap_savings(one.latencies_s[1:], two.latencies_s[1:])
        overhead = formulas.overhead_s(two.latencies_s)
        even = formulas.find_break_even(one.latencies_s, two.latencies_s)
    shared = find_common_steps(native, other)
    first, second = [native.step_s[step] for step in shared], [other.step_s[step] for step in shared]
    later = slice(1, None)  # The first step compiles.
    before, after = native.steady_throughput, other.steady_throughput
    alike = native.throughput and other.throughput and native.throughput.name == other.throughput.name
    by_step = formulas.find_break_even(first, second) if len(shared) > 1 else None
    if by_step is not None and by_step.at is not None:
        by_step = BreakEven(at=shared[0] - 1 + by_step.at, measured=by_step.measured)
    return Savings(
        actual=formulas.savings_percent(native.billable_s, other.billable_s)
        if native.billable_s and other.billable_s is not None
        else None,
        potential=potential,
        potential_interval=interval,
        speedup=formulas.speedup_percent(before, after) if alike and before and after is not None else None,
        overhead_s=overhead,
        break_even=even,
        step=formulas.savings_percent(sum(first[later]), sum(second[later])) if sum(first[later]) > 0 else None,
        step_interval=formulas.bootstrap_savings(first[later], second[later]),
        break_even_step=by_step,
    )


def find_common_steps(native: ComparedJob, other: ComparedJob) -> list[int]:
    """Return the steps that both jobs have, ascending."""
    return sorted(native.step_s.keys() & other.step_s.keys())


def compute_steps_per_s(jobs: Sequence[ComparedJob]) -> tuple[list[float | None], list[int]]:
    """Return the steps per second of each of *jobs*, over the steps that all of them have, and these steps.

    The first of them is left out: it may compile. A job without steps has None, and the others' are compared.
    """
    known = [job.step_s.keys() for job in jobs if job.step_s]
    shared = sorted(set(known[0]).intersection(*known[1:]))[1:] if known else []
    seconds = [sum(job.step_s[step] for step in shared) if job.step_s else 0.0 for job in jobs]
    return [len(shared) / each if each > 0 else None for each in seconds], shared


def build_savings_table(native: ComparedJob, other: ComparedJob, found: Savings) -> Table:
    """Return the savings of *other* as a table whose last column is the calculation, with its numbers."""
    return Table(
        id=f"savings-{other.label}",
        title=f"{other.label} against {native.label}",
        columns=(Column(name="quantity"), Column(name="value"), Column(name="how it was made")),
        rows=tuple(_build_rows(native, other, found)),
        note="Percentages are of the native job; a negative one is a loss. An interval holds the middle 95 % of 2,000 "
        "resamples of the epochs or steps of these two runs. They know the noise within a run, not that of machines.",
    )


def _build_rows(native: ComparedJob, other: ComparedJob, found: Savings) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    if found.actual is not None and native.billable_s and other.billable_s is not None:
        rows.append(
            (
                "actual savings",
                format_percent(found.actual),
                "(native billable seconds - optimised) / native x 100 = "
                f"({native.billable_s:g} - {other.billable_s:g}) / {native.billable_s:g} x 100",
            )
        )
    if found.potential is not None and native.epochs and other.epochs:
        last, end = native.epochs.latencies_s[-1], other.epochs.latencies_s[-1]
        rows.append(
            (
                "potential savings",
                format_percent(found.potential),
                "(native steady epoch latency - optimised) / native x 100, steady = the last epoch = "
                f"({format_seconds(last)} - {format_seconds(end)}) / {format_seconds(last)} x 100",
            )
        )
        if found.potential_interval is not None:
            rows.append(
                (
                    "potential savings, 95 % interval",
                    describe_interval(found.potential_interval),
                    "bootstrap of the mean latency of all epochs but the first",
                )
            )
        rows.append(
            (
                "overhead of the first epoch",
                f"{format_seconds(found.overhead_s or 0.0)} s",
                "first epoch latency - last = "
                f"{format_seconds(other.epochs.latencies_s[0])} - {format_seconds(end)}; compilation is a part of it",
            )
        )
        how = (
            "first epoch at whose end the sum of the optimised job's latencies is below the native one's, and stays so"
        )
        rows.append(("break-even epoch", describe_break_even(found.break_even), how))
    if found.speedup is not None:
        assert native.throughput is not None
        rows.append(
            (
                "throughput speed-up",
                format_percent(found.speedup),
                f"(optimised / native - 1) x 100 of the mean {native.throughput.name} after the first value = "
                f"({other.steady_throughput:g} / {native.steady_throughput:g} - 1) x 100",
            )
        )
    if found.step is not None:
        shared = find_common_steps(native, other)
        rows.append(
            (
                "savings per step",
                format_percent(found.step),
                f"(native - optimised) / native x 100 of the seconds of steps {shared[1]} to {shared[-1]}, the "
                f"{len(shared) - 1:,} that both jobs have after step {shared[0]}",
            )
        )
        if found.step_interval is not None:
            how = "block bootstrap of the seconds of these steps"
            rows.append(("savings per step, 95 % interval", describe_interval(found.step_interval), how))
        if found.break_even_step is not None:
            how = "first step at whose end the sum of the optimised job's step seconds is below the native one's"
            rows.append(("break-even step", describe_break_even(found.break_even_step), how))
    return rows


def describe_break_even(found: BreakEven | None) -> str:
    """Return a break-even for reading."""
    if found is None or found.at is None:
        return "never at these latencies"
    return f"{found.at}" if found.measured else f"{found.at} (extrapolated: both jobs ended before)"


def format_percent(value: float) -> str:
    """Return "12.3 %"."""
    return f"{value:.1f} %"


def describe_interval(found: Interval) -> str:
    """Return an interval in percent, and whether it is noise."""
    noise = ": within run-to-run noise" if found.within_noise else ""
    return f"{found.low:.1f} to {found.high:.1f} %{noise}"


def format_seconds(value: float) -> str:
    """Return seconds with as many digits as a check by hand needs."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
