"""Steps that take turns, and a late first one: StepAlternation, MaxInitializationTime."""

from collections.abc import Iterator, Sequence

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.numbers import mean, median
from toolkit.diagnosis.phases import StepPhase, phases
from toolkit.diagnosis.rule import Above, Positive, RuleParameters, make_finding, number
from toolkit.diagnosis.span import scaled_steps
from toolkit.diagnosis.step_seconds import WARM_UP, own_phases
from toolkit.diagnosis.units import format_seconds
from toolkit.series.finding import Finding

PERIODS = (2, 3, 4)
PARTS = ("dataloader", "forward", "backward")
# How much of the variance of the steps their place in the period must explain.
EXPLAINED = 0.8
FEWEST_STEPS = 5
# Of fewer steps, chance makes some turns; then each turn must have twice the ratio.
FEW_STEPS = 12
# A swing that costs less than this share of a step is not worth a finding.
LEAST_SWING = 0.05


class StepAlternation(RuleParameters, frozen=True, kw_only=True):
    """`ratio`: how many times the slow steps take longer than the fast ones; `patience` in steps."""

    ratio: Above = 1.5
    patience: Positive = 20


class MaxInitializationTime(RuleParameters, frozen=True, kw_only=True):
    """`threshold` in minutes. Default of smdebug-rulesconfig 1.0.1."""

    threshold: Above = 20


def step_alternation(evidence: Evidence, parameters: StepAlternation, user_set: frozenset[str]) -> Iterator[Finding]:
    """Steps, or one phase of them, are long and short in turn, with a period of two to four steps."""
    best: tuple[float, StepPhase, int, list[float], str] | None = None
    for phase in (*own_phases(evidence), *phases(evidence, PARTS)):
        seconds = phase.seconds if len(phase.seconds) < 2 * FEWEST_STEPS else phase.seconds[WARM_UP:]
        needed, note = scaled_steps(
            evidence, parameters.patience, len(seconds), is_user_set="patience" in user_set, fewest=FEWEST_STEPS + 1
        )
        if len(seconds) < needed:
            continue
        period, medians = _period(seconds, parameters.ratio)
        if not period or mean(medians) - min(medians) < LEAST_SWING * _step_s(evidence, phase.rank):
            continue
        swing_s = max(medians) - min(medians)
        # A phase that swings by (almost) as much as the whole step explains it better.
        if best is None or swing_s > 0.7 * best[0]:
            best = max(swing_s, best[0] if best else 0.0), phase, period, medians, note
    if best is None:
        return
    _, phase, period, medians, note = best
    ratio = max(medians) / min(medians)
    turns = " / ".join(map(format_seconds, medians))
    lost_s = mean(medians) - min(medians)
    yield make_finding(
        "StepAlternation",
        evidence,
        None,
        f"The {phase.name} time alternates with a period of {period} steps: {turns}, {ratio:.1f} times as long."
        f" At the short time a step would take {format_seconds(lost_s)} less on average.",
        subject=phase.name,
        start_s=phase.times_s[0],
        end_s=phase.times_s[-1],
        numbers=(
            number(
                "ratio",
                ratio,
                f"longest / shortest of the {period} medians by step number modulo {period}",
                limit=parameters.ratio,
            ),
            *(
                number(f"median {place + 1} of {period}", value, "median", unit="s")
                for place, value in enumerate(medians)
            ),
            number("lost a step", lost_s, "mean of the medians - the shortest", unit="s"),
        ),
        refuted_by="Work that is meant to differ: gradient accumulation, a second optimizer, logging every other step.",
        change="Look at the CPU's cores while a long step runs: a thread that prepares data or waits in turn does this"
        " (give the loader workers). On a GPU, time with torch.cuda.synchronize(): without it the phase that waits"
        " first, mostly backward, is charged with all the work that is still queued.",
        lost_s=lost_s * len(phase.seconds),
        note=note,
    )


def max_initialization_time(
    evidence: Evidence, parameters: MaxInitializationTime, _: frozenset[str]
) -> Iterator[Finding]:
    """The first step ended later than `threshold` minutes after the ranks' start."""
    ends = [phase.times_s[0] for phase in phases(evidence, ("step",)) if phase.times_s]
    if not ends:
        return
    took_s = min(ends) - evidence.start_s
    if took_s <= parameters.threshold * 60:
        return
    yield make_finding(
        "MaxInitializationTime",
        evidence,
        None,
        f"The first step ended {format_seconds(took_s)} after the start of the ranks.",
        subject="start",
        end_s=min(ends),
        numbers=(
            number(
                "initialization",
                took_s / 60,
                "end of the first step - start of the ranks",
                unit="min",
                limit=parameters.threshold,
            ),
        ),
        refuted_by="Steps that the toolkit cannot see (no optimizer of torch, no heartbeat) before that one.",
        change="Install packages when the image is built, download and preprocess before the job, and cache compiled"
        " kernels.",
        lost_s=took_s,
    )


def _step_s(evidence: Evidence, rank: int | None) -> float:
    """Return the mean time of a step of *rank*: of the sum of its phases, where steps as a whole are not known."""
    means = {phase.name: mean(phase.seconds) for phase in phases(evidence) if phase.rank == rank}
    return means.get("step") or sum(means.values())


def _squares(values: Sequence[float]) -> float:
    """Return the sum of the squared distances of *values* from their mean."""
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values)


def _period(seconds: Sequence[float], ratio: float) -> tuple[int, list[float]]:
    """Return the period after which *seconds* repeat, and the median at each place of it; 0 and none without one.

    In each period the longest place must be longer than the shortest, in nine of ten periods.
    """
    for period in PERIODS:
        if len(seconds) < max(FEWEST_STEPS, 3 * period if period == 2 else 5 * period):
            continue
        places = [seconds[place::period] for place in range(period)]
        medians = [median(values) for values in places]
        if not 0 < min(medians) * ratio <= max(medians):
            continue
        if _repeats(places, medians, ratio * 2 if len(seconds) < FEW_STEPS else ratio, len(seconds) < FEW_STEPS):
            return period, medians
    return 0, []


def _repeats(places: Sequence[Sequence[float]], medians: Sequence[float], ratio: float, few: bool) -> bool:
    """Return whether the *places* of a period differ in nearly every period, not only in their *medians*."""
    long, short = places[medians.index(max(medians))], places[medians.index(min(medians))]
    pairs = list(zip(long, short, strict=False))
    clear = sum(high >= ratio * low for high, low in pairs)
    if few:
        return clear == len(pairs)
    if sum(high > low for high, low in pairs) < 0.9 * len(pairs):
        return False
    total = _squares([value for values in places for value in values])
    within = sum(map(_squares, places))
    # One very long step hides the rest of the variance; then nearly all turns must be as clear as the medians.
    return clear >= 0.9 * len(pairs) or (total > 0 and 1 - within / total >= EXPLAINED)
