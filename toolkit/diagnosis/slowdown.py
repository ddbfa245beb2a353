"""StepSlowdown: steps that take longer and longer."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.numbers import median
from toolkit.diagnosis.phases import StepPhase
from toolkit.diagnosis.rule import Above, Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import is_crowded, others_percent
from toolkit.diagnosis.step_seconds import WARM_UP, name_part, own_phases
from toolkit.diagnosis.units import format_seconds
from toolkit.series.finding import Finding

# The steps are divided into so many parts, of which each one's median is compared with each later one's.
BLOCKS = 10
# So many of these pairs must grow (Kendall's tau is then 0.7).
GROWS = 0.85
# A shorter time says little about a trend.
LEAST_S = 5.0
# In a job that trains for less than this, the last tenth is a second or few: machines waver by more than 1.3 times.
SHORT_S, SHORT_FACTOR = 60.0, 1.6
# Where other programs hold the cores, steps must grow so many times: their use varies, too.
CROWDED_FACTOR = 2.0
# Other programs that take so many more percent of the cores at the end than at the start may be why.
OTHERS_GROW = 10.0


class StepSlowdown(RuleParameters, frozen=True, kw_only=True):
    """`factor`: how many times longer the last tenth of the steps take than the first; `share`: percent of the steps'
    time that this costs; `patience` in steps."""

    factor: Above = 1.3
    share: Percent = 10
    patience: Positive = 40


def step_slowdown(evidence: Evidence, parameters: StepSlowdown, _: frozenset[str]) -> Iterator[Finding]:
    """The steps of a rank take longer and longer, from the first tenth of them to the last."""
    least = CROWDED_FACTOR if is_crowded(evidence) else parameters.factor
    worst: tuple[float, StepPhase, list[float], float] | None = None
    for phase in own_phases(evidence):
        seconds = phase.seconds[WARM_UP:]
        if len(seconds) < max(parameters.patience, BLOCKS) or sum(seconds) < LEAST_S:
            continue
        factor = max(parameters.factor, least, SHORT_FACTOR if sum(seconds) < SHORT_S else 0.0)
        medians = [median(block) for block in _blocks(seconds)]
        grown = sum(later > earlier for earlier, later in combinations(medians, 2))
        if grown < GROWS * BLOCKS * (BLOCKS - 1) / 2 or not 0 < factor * medians[0] <= medians[-1]:
            continue
        lost_s = sum((value - medians[0]) * len(block) for value, block in zip(medians, _blocks(seconds), strict=True))
        if 100 * lost_s >= parameters.share * sum(seconds) and (worst is None or lost_s > worst[0]):
            worst = lost_s, phase, medians, factor
    if worst is None:
        return
    lost_s, phase, medians, factor = worst
    count = len(phase.seconds) // BLOCKS
    times_s = phase.times_s
    before = others_percent(evidence, times_s[0], times_s[count])
    if others_percent(evidence, times_s[-count - 1], times_s[-1]) - before > OTHERS_GROW:
        return
    part = name_part(evidence, phase, range(len(times_s) - count, len(times_s)), range(WARM_UP, WARM_UP + count))
    share = 100 * lost_s / sum(phase.seconds)
    of_rank = "" if phase.rank is None else f" of rank {phase.rank}"
    yield make_finding(
        "StepSlowdown",
        evidence,
        None,
        f"The steps{of_rank} slow down over the job: from {format_seconds(medians[0])} (median of their first tenth) to"
        f" {format_seconds(medians[-1])} (of the last), {medians[-1] / medians[0]:.1f} times as long"
        f"{f', most of it in {part}' if part else ''}. This cost {format_seconds(lost_s)}, {share:.0f} %"
        " of the time of the steps.",
        subject="step",
        rank=phase.rank,
        start_s=times_s[0],
        end_s=times_s[-1],
        numbers=(
            number("first tenth", medians[0], "median step", unit="s"),
            number("last tenth", medians[-1], "median step", unit="s", limit=factor * medians[0]),
            percent("share", share, "(median of each tenth - of the first) x its steps / time", limit=parameters.share),
        ),
        refuted_by="A schedule that makes steps larger: longer sequences, more layers, a larger batch.",
        change="Look for what each step adds to: a list that is walked through, hooks registered again, a graph that"
        " is never freed, a cache or file that grows; compare traces of an early and a late step.",
        lost_s=lost_s,
    )


def _blocks(seconds: Sequence[float]) -> list[Sequence[float]]:
    edges = [len(seconds) * place // BLOCKS for place in range(BLOCKS + 1)]
    return [seconds[first:last] for first, last in pairwise(edges)]
