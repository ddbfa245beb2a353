"""Pure: the savings of one side against the first, as rows that show how each number was made."""

import math
from collections.abc import Sequence

from toolkit.commands.report.compare import formulas
from toolkit.commands.report.compare.difference import Difference, compare_sides
from toolkit.commands.report.compare.formulas import BreakEven
from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Cell, Table, make_table
from toolkit.records import Record

LEAST_STEPS = 20  # In common, without the first.
LEAST_EPOCHS = 4  # In common, without the first.
MANY_TIMES = 200.0  # Percent more: from here on a difference is told in times.
LEAST_FOR_BREAK_EVEN = 3  # Epochs of each side: the first, which may compile, and two that do not.
# By how much two runs of an equal job differ besides what varies within them, as the standard deviation of the
# logarithm of a run's time: at rest (assumed), and with all cores in use by others (docs/compare.md, "How far to trust
# it").
DEVIATION_AT_REST = 0.015
DEVIATION_SHARED = 0.1
DEVIATION_UNKNOWN = 0.05  # Nobody measured who else used the machine.


class Savings(Record, frozen=True, kw_only=True):
    """The savings of a side against the first, in percent of the first. None: not known."""

    actual: float | None
    """Of billable seconds, of the first run of each side."""
    epoch: Difference | None
    """Of the latency of an epoch, all but the first."""
    speedup: float | None
    """The gain of throughput."""
    overhead_s: float | None
    """Seconds that the first epoch took longer than the mean of the later ones."""
    break_even: BreakEven | None
    """The epoch from which on the side is ahead; None also where it is not certain that it saves anything."""
    step: Difference | None
    """Of the seconds of the steps that all runs have."""
    cpu: Difference | None
    """Of the CPU seconds that the ranks used for them."""
    break_even_step: BreakEven | None
    """The step from which on the side is ahead; None as above."""

    @property
    def main(self) -> tuple[Difference | None, str]:
        """The difference that the verdict is about, and what it is of: of steps, where they are known."""
        return (self.step, "step") if self.step is not None else (self.epoch, "epoch")


def compute_savings(first: ComparedJob, other: ComparedJob) -> Savings:
    """Return what *other* saves against *first*."""
    deviation = estimate_deviation((*first.runs, *other.runs))
    epoch = _compare_epochs(first, other, deviation)
    overhead = even_epoch = None
    if first.epochs and other.epochs and len(other.epochs.latencies_s) > 1:
        overhead = formulas.overhead_s(other.epochs.latencies_s)
        fewest = min(len(first.epochs.latencies_s), len(other.epochs.latencies_s))
        if fewest >= LEAST_FOR_BREAK_EVEN and epoch is not None and epoch.is_certain:
            even_epoch = formulas.find_break_even(first.epochs.latencies_s, other.epochs.latencies_s)
    steps = find_common_steps(first, other)
    later = steps[1:]  # The first step compiles.
    step = _compare_steps([job.step_s for job in first.runs], [job.step_s for job in other.runs], later, deviation)
    cpu = _compare_steps(
        [dict(job.machine.step_cpu_s) for job in first.runs],
        [dict(job.machine.step_cpu_s) for job in other.runs],
        later,
        deviation,
    )
    even_step = None
    if step is not None and step.is_certain:
        even_step = formulas.find_break_even([first.step_s[s] for s in steps], [other.step_s[s] for s in steps])
        if even_step.number is not None:
            even_step = BreakEven(number=steps[0] - 1 + even_step.number, measured=even_step.measured)
    first_rate, other_rate = first.steady_throughput, other.steady_throughput
    is_comparable = first.throughput and other.throughput and first.throughput.name == other.throughput.name
    return Savings(
        actual=formulas.savings_percent(first.billable_s, other.billable_s)
        if first.billable_s and other.billable_s is not None
        else None,
        epoch=epoch,
        speedup=formulas.speedup_percent(first_rate, other_rate)
        if is_comparable and first_rate and other_rate is not None
        else None,
        overhead_s=overhead,
        break_even=even_epoch,
        step=step,
        cpu=cpu,
        break_even_step=even_step,
    )


def estimate_deviation(runs: Sequence[ComparedJob]) -> float:
    """Return by how much two of *runs* would differ if they were of an equal job: the more, the more of the cores
    others used."""
    shares = [run.machine.others_share for run in runs]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return DEVIATION_UNKNOWN
    return DEVIATION_AT_REST + (DEVIATION_SHARED - DEVIATION_AT_REST) * max(known)


def _compare_epochs(first: ComparedJob, other: ComparedJob, deviation: float) -> Difference | None:
    """Return the difference of the epochs that all runs have, without the first of each job."""
    sides = [
        [
            {run.epochs.first + place: value for place, value in enumerate(run.epochs.latencies_s) if place}
            for run in side.runs
            if run.epochs is not None
        ]
        for side in (first, other)
    ]
    if not all(sides):
        return None
    shared = sorted(set.intersection(*(set(run) for side in sides for run in side)))
    if len(shared) < LEAST_EPOCHS:
        return None
    return compare_sides(
        [[run[number] for number in shared] for run in sides[0]],
        [[run[number] for number in shared] for run in sides[1]],
        deviation,
    )


def _compare_steps(
    first: Sequence[dict[int, float]], other: Sequence[dict[int, float]], steps: Sequence[int], deviation: float
) -> Difference | None:
    """Return the difference over those of *steps* that all runs have."""
    shared = [step for step in steps if all(step in run for run in (*first, *other))]
    if len(shared) < LEAST_STEPS:
        return None
    return compare_sides(
        [[run[step] for step in shared] for run in first], [[run[step] for step in shared] for run in other], deviation
    )


def find_common_steps(first: ComparedJob, other: ComparedJob) -> list[int]:
    """Return the steps that all runs of both sides have, ascending."""
    return sorted(set.intersection(*(set(run.step_s) for run in (*first.runs, *other.runs))))


def compute_steps_per_s(jobs: Sequence[ComparedJob]) -> tuple[list[float | None], list[int]]:
    """Return the steps per second of each of *jobs*, over the steps that all of them have, and these steps.

    The first of them is left out: it may compile. A job without steps has None, and the others' are compared.
    """
    measured_steps = [job.step_s.keys() for job in jobs if job.step_s]
    shared = sorted(set(measured_steps[0]).intersection(*measured_steps[1:]))[1:] if measured_steps else []
    seconds = [sum(job.step_s[step] for step in shared) if job.step_s else 0.0 for job in jobs]
    return [len(shared) / job_seconds if job_seconds > 0 else None for job_seconds in seconds], shared


def build_savings_table(first: ComparedJob, other: ComparedJob, savings: Savings) -> Table:
    """Return the savings of *other* as a table whose last column is the calculation, with its numbers."""
    return make_table(
        f"savings-{other.label}",
        f"{other.label} against {first.label}",
        ("quantity", "value", "how it was made"),
        _build_rows(first, other, savings),
        note=f"Percentages are of {first.label}; a negative one is a loss. An interval holds 95 %: of the noise of"
        " these runs and, with fewer than three of a side, of what two equal runs differ besides (docs/compare.md).",
    )


def _build_rows(first: ComparedJob, other: ComparedJob, savings: Savings) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    if savings.step is not None:
        shared = find_common_steps(first, other)
        how = (
            f"of the seconds of steps {shared[1]:,} to {shared[-1]:,}, the {len(shared) - 1:,} that all runs have"
            f" after step {shared[0]}"
        )
        rows.append(("savings per step", describe_interval(savings.step), how))
    if savings.cpu is not None:
        how = "of the CPU seconds of all ranks in the same steps, by the monitor"
        rows.append(("savings per step, CPU seconds", describe_interval(savings.cpu), how))
    if savings.break_even_step is not None:
        how = "first step at whose end the sum of its step seconds is below the other side's, and stays so"
        rows.append(("break-even step", describe_break_even(savings.break_even_step), how))
    if savings.epoch is not None:
        how = "of the latencies of all epochs but the first that all runs have"
        rows.append(("potential savings", describe_interval(savings.epoch), how))
    if savings.overhead_s is not None and other.epochs is not None:
        first_s, *later_s = other.epochs.latencies_s
        steady = format_seconds(math.fsum(later_s) / len(later_s))
        how = (
            "first epoch latency - mean of the later ones = "
            f"{format_seconds(first_s)} - {steady}; compilation is a part of it"
        )
        rows.append(("overhead of the first epoch", f"{format_seconds(savings.overhead_s)} s", how))
    if savings.break_even is not None:
        how = "first epoch at whose end the sum of its latencies is below the other side's, and stays so"
        rows.append(("break-even epoch", describe_break_even(savings.break_even), how))
    rows += _build_single_rows(first, other, savings)
    return rows


def _build_single_rows(first: ComparedJob, other: ComparedJob, savings: Savings) -> list[tuple[Cell, ...]]:
    """Return the rows of quantities that a run has once, so that nothing tells how large their noise is."""
    rows: list[tuple[Cell, ...]] = []
    if savings.actual is not None and first.billable_s and other.billable_s is not None:
        rows.append(
            (
                "actual savings",
                f"{savings.actual:.1f} %, noise not known",
                f"({first.label}'s billable seconds - {other.label}'s) / {first.label}'s x 100 = "
                f"({first.billable_s:g} - {other.billable_s:g}) / {first.billable_s:g} x 100",
            )
        )
    if savings.speedup is not None and first.throughput is not None:
        rows.append(
            (
                "throughput speed-up",
                f"{savings.speedup:.1f} %, noise not known",
                f"({other.label} / {first.label} - 1) x 100 of the mean {first.throughput.name} after the first value"
                f" = ({other.steady_throughput:g} / {first.steady_throughput:g} - 1) x 100",
            )
        )
    return rows


def describe_break_even(break_even: BreakEven) -> str:
    """Return a break-even for reading."""
    if break_even.number is None:
        return "never at these latencies"
    return (
        f"{break_even.number}" if break_even.measured else f"{break_even.number} (extrapolated: both jobs ended before)"
    )


def describe_difference(difference: Difference) -> str:
    """Return "12.0 % less (95 % interval: 10.1 % less to 13.8 % less)"; beyond MANY_TIMES "9.33 times as much"."""
    ends = sorted((difference.low, difference.high), key=abs)
    return f"{_describe_percent(difference.saved)} (95 % interval: {' to '.join(map(_describe_percent, ends))})"


def _describe_percent(saved: float) -> str:
    if saved <= -MANY_TIMES:
        times = 1 - saved / 100
        return f"{times:,.0f} times as much" if times >= 100 else f"{times:.3g} times as much"
    return f"{abs(saved):.1f} % {'less' if saved >= 0 else 'more'}"


def describe_interval(difference: Difference) -> str:
    """Return the estimate and its interval, in percent saved."""
    return f"{difference.saved:.1f} % ({difference.low:.1f} to {difference.high:.1f} %)"


def format_seconds(value: float) -> str:
    """Return seconds with as many digits as a check by hand needs."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
