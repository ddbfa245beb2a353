"""Steps that are much longer than the median one (StepOutlier): one, several at once, every Nth one, or here and there.

What is usual is the median, and how far steps lie from it the median absolute deviation: both stay where they are
however long the outliers are (F. R. Hampel, The influence curve and its role in robust estimation, 1974).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.numbers import median
from toolkit.diagnosis.phases import StepPhase
from toolkit.diagnosis.rule import Above, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import is_crowded
from toolkit.diagnosis.step_seconds import (
    WARM_UP,
    find_columns,
    knows_parts,
    measure_computed_share,
    name_part,
    own_phases,
)
from toolkit.diagnosis.units import format_seconds, ordinal
from toolkit.records import Record
from toolkit.series.finding import Finding

FEWEST_STEPS = 5
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
DEVIATIONS = 1.4826
# An outlier takes so many times the median at least; where other programs hold the cores, it may be theirs below.
LEAST_RATIO, CROWDED_RATIO = 1.5, 5.0
# Outliers that cost less than this share of the time are not worth a finding; every Nth step costs the same for ever.
LEAST_SHARE, PERIODIC_SHARE = 0.1, 0.05
# Nor those that cost less than this, all together; one alone may be the machine's.
LEAST_COST_S = 1.0
# So many outliers or fewer are told one by one.
SINGLE = 3
# Every Nth step: of the distances between outliers so many are multiples of N, and so many of its places have one.
REGULAR, FILLED = 0.8, 0.6
# Periods up to this one are StepAlternation's.
ALTERNATES = 4
# In a longer period an outlier may come a step early or late.
LONG_PERIOD = 10
# Outliers at once: within this share of the steps, of which this share are outliers.
BURST, DENSE = 0.25, 0.5
# Long steps of a regular period that nothing divides may be evaluation: as EvaluationTime, from this share on.
UNKNOWN_SHARE = 0.4
# Steps that lie here and there and compute for this share of what they take longer have more to do: inputs of many
# lengths, an optimizer that calls the model as often as it needs (LBFGS).
COMPUTED_SHARE = 0.8

Kind = Literal["single", "periodic", "burst", "scattered"]


class StepOutlier(RuleParameters, frozen=True, kw_only=True):
    """`stddev`: robust standard deviations from the median; `mode`: taken for the SDK's sake, all steps are training
    steps; `n_outliers`: as many are allowed. Defaults of smdebug-rulesconfig 1.0.1, but a few long ones that cost a
    tenth of the time are found unless the job sets `n_outliers`."""

    stddev: Above = 3
    mode: str | None = None
    n_outliers: Positive = 10


class LongSteps(Record, frozen=True, kw_only=True):
    """The outliers among the steps of a rank."""

    phase: StepPhase  # The steps; the indexes are its.
    indexes: tuple[int, ...]  # The outliers.
    usual_s: float  # The median step.
    limit_s: float  # Steps above are outliers.
    cost_s: float  # The outliers less as many median steps.
    total_s: float  # All steps.
    kind: Kind  # How they lie in time.
    period: int  # Steps from one to the next, 0 if they are not periodic.
    part: str  # The part of a step in which the cost lies, "" if it is not known or in several.


def step_outlier(evidence: Evidence, parameters: StepOutlier, user_set: frozenset[str]) -> Iterator[Finding]:
    """Steps of a rank take so much longer than the median one that they cost a tenth of its time."""
    ratio = CROWDED_RATIO if is_crowded(evidence) else LEAST_RATIO
    most = parameters.n_outliers if "n_outliers" in user_set else 0
    long_steps = [
        long
        for phase in own_phases(evidence)
        if (long := _find_long(evidence, phase, parameters.stddev, ratio)) is not None and len(long.indexes) > most
    ]
    if not long_steps:
        return
    worst = max(long_steps, key=lambda long: long.cost_s)
    seconds, share = worst.phase.seconds, 100 * worst.cost_s / worst.total_s
    first, last = worst.indexes[0], worst.indexes[-1]
    yield make_finding(
        "StepOutlier",
        evidence,
        None,
        _describe(evidence, worst, share),
        subject="step",
        start_s=worst.phase.times_s[first] - seconds[first],
        end_s=worst.phase.times_s[last],
        numbers=(
            number("outliers", len(worst.indexes), "steps longer than the limit", unit="steps", limit=most or None),
            number("median step", worst.usual_s, "median, without evaluation and saving", unit="s"),
            number(
                "limit",
                worst.limit_s,
                f"median + {parameters.stddev:g} x {DEVIATIONS} x median absolute deviation, or {ratio:g} medians",
                unit="s",
            ),
            number("cost", worst.cost_s, "time of the outliers less as many median steps", unit="s"),
            percent("share", share, "cost / time of all steps", limit=100 * _least_share(worst.kind)),
        ),
        refuted_by="Outliers at the same steps of every run: they belong to the data or to the schedule.",
        change="Trace one of them (TOOLKIT_PROFILE); compare their times with disk, network and other ranks at the same"
        " moments.",
        lost_s=worst.cost_s,
    )


def _find_long(evidence: Evidence, phase: StepPhase, stddev: float, ratio: float) -> LongSteps | None:
    seconds = phase.seconds
    if len(seconds) - WARM_UP < FEWEST_STEPS:
        return None
    usual_s = median(seconds[WARM_UP:])
    spread_s = median(abs(value - usual_s) for value in seconds[WARM_UP:])
    limit_s = max(usual_s + stddev * DEVIATIONS * spread_s, ratio * usual_s)
    indexes = tuple(index for index, value in enumerate(seconds) if index >= WARM_UP and value > limit_s)
    if not indexes:
        return None
    cost_s = sum(seconds[index] - usual_s for index in indexes)
    total_s = sum(seconds[WARM_UP:])
    kind, period = _arrange(indexes, len(seconds))
    short = [index for index in range(WARM_UP, len(seconds)) if seconds[index] <= limit_s]
    least = _least_share(kind)
    if kind == "periodic" and (period <= ALTERNATES or not knows_parts(evidence, phase)):
        least = UNKNOWN_SHARE if period > ALTERNATES else 1.0
    if cost_s < LEAST_COST_S or cost_s < least * total_s:
        return None
    if kind == "scattered" and measure_computed_share(evidence, phase, indexes, short) >= COMPUTED_SHARE:
        return None
    return LongSteps(
        phase=phase,
        indexes=indexes,
        usual_s=usual_s,
        limit_s=limit_s,
        cost_s=cost_s,
        total_s=total_s,
        kind=kind,
        period=period,
        part=name_part(evidence, phase, indexes, short),
    )


def _least_share(kind: Kind) -> float:
    return PERIODIC_SHARE if kind == "periodic" else LEAST_SHARE


def _arrange(indexes: Sequence[int], count: int) -> tuple[Kind, int]:
    """Return how the outliers *indexes* of *count* steps lie, and their period, 0 without one."""
    if len(indexes) <= SINGLE:
        return "single", 0
    if (span := indexes[-1] - indexes[0] + 1) <= BURST * count and len(indexes) >= DENSE * span:
        return "burst", 0
    gaps = [later - earlier for earlier, later in pairwise(indexes)]
    period = sorted(gaps)[len(gaps) // 2]
    slack = 1 if period >= LONG_PERIOD else 0
    regular = sum(min(gap % period, period - gap % period) <= slack and gap >= period - slack for gap in gaps)
    if period > 1 and regular >= REGULAR * len(gaps) and len(indexes) >= FILLED * (span / period):
        return "periodic", period
    return "scattered", 0


def _describe(evidence: Evidence, long: LongSteps, share: float) -> str:
    phase = long.phase
    seconds = [phase.seconds[index] for index in long.indexes]
    of_rank = "" if phase.rank is None else f" of rank {phase.rank}"
    usual = f"the median one ({format_seconds(long.usual_s)})"
    steps = find_columns(evidence, phase)
    names = [f"{steps.step[index]:.0f}" if steps is not None else f"{index + 1}" for index in long.indexes]
    costs = f"{format_seconds(long.cost_s)}, {share:.0f} % of the time of the steps"
    where = f"; most of it in {long.part}" if long.part else ""
    if long.kind == "periodic":
        return (
            f"Every {ordinal(long.period)} step{of_rank} takes {format_seconds(median(seconds))},"
            f" {median(seconds) / long.usual_s:.1f} times {usual}: it costs {costs}{where}."
        )
    if long.kind == "burst":
        lasts_s = phase.times_s[long.indexes[-1]] - phase.times_s[long.indexes[0]] + seconds[0]
        return (
            f"Steps {names[0]} to {names[-1]}{of_rank}, for {format_seconds(lasts_s)}, are slow:"
            f" {format_seconds(median(seconds))} each, {median(seconds) / long.usual_s:.1f} times {usual}. They cost"
            f" {costs}{where}."
        )
    if long.kind == "single":
        if len(seconds) == 1:
            return (
                f"Just one step{of_rank}, number {names[0]}, took {format_seconds(seconds[0])} instead of"
                f" {format_seconds(long.usual_s)}, the median: it cost {costs}{where}."
            )
        return (
            f"Steps {', '.join(names[:-1])} and {names[-1]}{of_rank} took {', '.join(map(format_seconds, seconds))}"
            f" where {format_seconds(long.usual_s)} is usual: they cost {costs}{where}."
        )
    return (
        f"{len(seconds)} steps{of_rank} took more than {format_seconds(long.limit_s)}, the longest"
        f" {format_seconds(max(seconds))}, at no regular distance; {format_seconds(long.usual_s)} is the median: they"
        f" cost {costs}{where}."
    )
