"""SlowRank: a rank whose own work takes longer than its peers', so that they wait for it."""

from collections.abc import Iterator

import msgspec

from toolkit.diagnosis.evidence import Evidence, StepColumns, Values
from toolkit.diagnosis.numbers import mean, median
from toolkit.diagnosis.rule import Above, Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.span import scaled_steps
from toolkit.diagnosis.step_rules import WARM_UP
from toolkit.job.rank_work import RankWork
from toolkit.series.finding import Finding

FEWEST_STEPS = 5
# So many steps the slow rank of a finding and a healthy one trace.
TRACED_STEPS = 5
# The number of a finding that says which rank to compare with.
HEALTHY = "healthy rank"


class SlowRank(RuleParameters, frozen=True, kw_only=True):
    """`factor`: times the median of the peers; `share`: what the excess costs, in percent of a step; `patience` in
    steps."""

    factor: Above = 1.5
    share: Percent = 10
    patience: Positive = 20


def slow_rank(evidence: Evidence, parameters: SlowRank, user_set: frozenset[str]) -> Iterator[Finding]:
    """One rank's own work takes `factor` times as long as the median of the others', on this and on other hosts.

    Own work is loading, forward, the own part of backward, optimizer and saving: a collective at the end of backward
    makes the others wait there, so that all ranks' steps take equally long and only these differ.
    """
    counts = [len(steps.end_s) - WARM_UP for steps in evidence.steps.values()]
    shortest = min((*counts, *(work.steps for work in evidence.elsewhere.values())), default=0)
    needed, note = scaled_steps(
        evidence, parameters.patience, shortest, is_user_set="patience" in user_set, fewest=FEWEST_STEPS
    )
    if len(evidence.steps.keys() | evidence.elsewhere.keys()) < 2 or shortest < needed:
        return
    works = {**evidence.elsewhere, **own_work(evidence, shortest)}
    slow = max(works.values(), key=lambda work: work.own_s)
    peers = {rank: work.own_s for rank, work in works.items() if rank != slow.rank}
    usual_s = median(peers.values())
    excess = 100 * (slow.own_s - usual_s) / slow.step_s if slow.step_s else 0.0
    if not slow.own_s >= parameters.factor * usual_s or not excess >= parameters.share:
        return
    # Traces that were taken while the job ran are of the rank that was the healthy one then.
    compared_rank = evidence.compared.get(slow.rank)
    healthy = works[
        compared_rank if compared_rank in peers else min(peers, key=lambda rank: abs(peers[rank] - usual_s))
    ]
    part, field = max(
        _PARTS.items(), key=lambda part_field: getattr(slow, part_field[1]) - getattr(healthy, part_field[1])
    )
    finding = make_finding(
        "SlowRank",
        evidence,
        None,
        f"Rank {slow.rank} needs {slow.own_s:.3g} s a step for its own work, its peers {usual_s:.3g} s: they wait for"
        f" it for {excess:.0f} % of each step. Most of it is {part} ({getattr(slow, field):.3g} s;"
        f" {getattr(healthy, field):.3g} s on rank {healthy.rank}).",
        subject="rank",
        rank=slow.rank,
        start_s=slow.start_s,
        end_s=slow.end_s,
        numbers=(
            number(
                "own work",
                slow.own_s,
                f"mean of loading + forward + own backward + optimizer + saving over {slow.steps} steps",
                unit="s",
                limit=parameters.factor * usual_s,
            ),
            number("peers' own work", usual_s, "median over the other ranks", unit="s"),
            percent("excess", excess, "(own work - peers' own work) / step", limit=parameters.share),
            number(HEALTHY, healthy.rank, "a peer near the median"),
        ),
        refuted_by="Steps of the other ranks that are shorter, too: then they do not wait for this one.",
        change=f"Compare the traces of rank {slow.rank} and rank {healthy.rank}; look at the CPU, the disk and the"
        " GPU's clock of that rank, and at how its share of the data differs.",
        note=note,
    )
    yield msgspec.structs.replace(finding, host=slow.host)


def own_work(evidence: Evidence, last: int | None = None) -> dict[int, RankWork]:
    """Return the own work of each rank of *evidence* in its newest *last* steps; None: in all but the first.

    A rank without such a step is left out.
    """
    works = {}
    for rank, steps in evidence.steps.items():
        count = len(steps.end_s) - WARM_UP if last is None else last
        if count > 0:
            works[rank] = _work(evidence.host, rank, steps, count)
    return works


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


def _work(host: str, rank: int, steps: StepColumns, last: int) -> RankWork:
    return RankWork(
        host=host,
        rank=rank,
        steps=last,
        start_s=steps.end_s[-last],
        end_s=steps.end_s[-1],
        **{field: _mean_or_zero(getattr(steps, field)[-last:]) for field in ("step_s", *_PARTS.values())},
    )


def _mean_or_zero(values: Values) -> float:
    found_mean = mean(values)
    return found_mean if found_mean == found_mean else 0.0
