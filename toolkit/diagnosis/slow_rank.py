"""SlowRank: a rank whose own work takes longer than its peers', so that they wait for it."""

from collections.abc import Iterator

from toolkit.diagnosis.evidence import Evidence, Steps, Values
from toolkit.diagnosis.numbers import mean, median
from toolkit.diagnosis.rule import Above, Parameters, Percent, Positive, found
from toolkit.diagnosis.span import scaled_steps
from toolkit.diagnosis.steps import WARM_UP
from toolkit.series.finding import Finding, Number

FEWEST_STEPS = 5
# The number of a finding that says which rank to compare with.
HEALTHY = "healthy rank"


class SlowRank(Parameters, frozen=True, kw_only=True):
    """`factor`: times the median of the peers; `share`: what the excess costs, in percent of a step; `patience` in
    steps."""

    factor: Above = 1.5
    share: Percent = 10
    patience: Positive = 20


def slow_rank(evidence: Evidence, parameters: SlowRank, given: frozenset[str]) -> Iterator[Finding]:
    """One rank's own work takes `factor` times as long as the median of the others'.

    Own work is loading, forward, the own part of backward, optimizer and saving: a collective at the end of backward
    makes the others wait there, so that all ranks' steps take equally long and only these differ.
    """
    own: dict[int, float] = {}
    shortest = min((len(steps.end_s) for steps in evidence.steps.values()), default=0) - WARM_UP
    needed, note = scaled_steps(evidence, parameters.patience, shortest, given="patience" in given, fewest=FEWEST_STEPS)
    if len(evidence.steps) < 2 or shortest < needed:
        return
    for rank, steps in evidence.steps.items():
        own[rank] = _own_s(steps, shortest)
    slow = max(own, key=lambda rank: own[rank])
    peers = {rank: value for rank, value in own.items() if rank != slow}
    usual_s = median(peers.values())
    steps = evidence.steps[slow]
    step_s = mean(steps.step_s[-shortest:])
    excess = 100 * (own[slow] - usual_s) / step_s if step_s else 0.0
    if not own[slow] >= parameters.factor * usual_s or not excess >= parameters.share:
        return
    # Traces that were taken while the job ran are of the rank that was the healthy one then.
    told = evidence.compared.get(slow)
    healthy = told if told in peers else min(peers, key=lambda rank: abs(peers[rank] - usual_s))
    part, slow_s, healthy_s = _part(steps, evidence.steps[healthy], shortest)
    yield found(
        "SlowRank",
        evidence,
        None,
        f"Rank {slow} needs {own[slow]:.3g} s a step for its own work, its peers {usual_s:.3g} s: they wait for it for"
        f" {excess:.0f} % of each step. Most of it is {part} ({slow_s:.3g} s; {healthy_s:.3g} s on rank {healthy}).",
        subject="rank",
        rank=slow,
        start_s=steps.end_s[-shortest],
        end_s=steps.end_s[-1],
        numbers=(
            Number(
                name="own work",
                value=own[slow],
                unit="s",
                formula=f"mean of loading + forward + own backward + optimizer + saving over {shortest} steps",
                limit=parameters.factor * usual_s,
            ),
            Number(name="peers' own work", value=usual_s, unit="s", formula="median over the other ranks"),
            Number(
                name="excess",
                value=excess,
                unit="percent",
                formula="(own work - peers' own work) / step",
                limit=parameters.share,
            ),
            Number(name=HEALTHY, value=healthy, formula="a peer near the median"),
        ),
        refuted_by="Steps of the other ranks that are shorter, too: then they do not wait for this one.",
        change=f"Compare the traces of rank {slow} and rank {healthy}; look at the CPU, the disk and the GPU's clock of"
        " that rank, and at how its share of the data differs.",
        note=note,
    )


def pair(finding: Finding) -> tuple[int, int] | None:
    """Return the slow rank of *finding* and a healthy one to trace beside it, None if it is about no slow rank."""
    healthy = next((number.value for number in finding.numbers if number.name == HEALTHY), None)
    if finding.rule != "SlowRank" or finding.rank is None or healthy is None:
        return None
    return finding.rank, int(healthy)


_PARTS = {
    "loading data": "data_s",
    "forward": "forward_s",
    "backward": "own_backward_s",
    "the optimizer": "optimizer_s",
    "saving": "checkpoint_s",
}


def _own_s(steps: Steps, last: int) -> float:
    return sum(_mean_or_zero(getattr(steps, field)[-last:]) for field in _PARTS.values())


def _part(slow: Steps, healthy: Steps, last: int) -> tuple[str, float, float]:
    """Return the phase in which *slow* differs most, and its means of both."""
    both = {
        name: (_mean_or_zero(getattr(slow, field)[-last:]), _mean_or_zero(getattr(healthy, field)[-last:]))
        for name, field in _PARTS.items()
    }
    name = max(both, key=lambda each: both[each][0] - both[each][1])
    return name, *both[name]


def _mean_or_zero(values: Values) -> float:
    found_mean = mean(values)
    return found_mean if found_mean == found_mean else 0.0
