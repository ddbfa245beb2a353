"""SlowRank: a rank whose own work takes longer than its peers', so that they wait for it, always or for a while."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

import msgspec

from toolkit.diagnosis.evidence import Evidence, StepColumns, Values
from toolkit.diagnosis.numbers import mean, measured, median
from toolkit.diagnosis.rule import Above, Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import is_crowded
from toolkit.diagnosis.span import scaled_steps
from toolkit.diagnosis.step_seconds import WARM_UP
from toolkit.diagnosis.units import format_seconds
from toolkit.job.rank_work import RankWork
from toolkit.records import Record
from toolkit.series.finding import Finding

FEWEST_STEPS = 5
# So many steps the slow rank of a finding and a healthy one trace.
TRACED_STEPS = 5
# The number of a finding that says which rank to compare with.
HEALTHY = "healthy rank"
# The steps are divided into so many stretches at most, of so many steps at least.
MOST_STRETCHES, LEAST_STEPS = 240, 10
# A rank is slow all the time if it is in this share of the stretches.
MOSTLY = 0.5
# A rank that is slow for a while is worth a finding if it costs so long, and this share of the time.
LEAST_LOST_S, LEAST_LOST_SHARE = 30.0, 0.005
# Where other programs hold the cores, they slow one rank more than another: it takes more to be the rank's own.
CROWDED_FACTOR, CROWDED_SHARE = 1.25, 15.0


class SlowRank(RuleParameters, frozen=True, kw_only=True):
    """`factor`: times the median of the peers; `share`: what the peers wait for it, in percent of a step; `patience` in
    steps."""

    factor: Above = 1.1
    share: Percent = 10
    patience: Positive = 20


class SlowStretch(Record, frozen=True, kw_only=True):
    """Steps in a row in which one rank kept the others waiting."""

    slow: RankWork
    """The rank's own work in these steps."""
    works: Mapping[int, RankWork]
    """That of all ranks."""
    usual_s: float
    """The median of the peers' own work."""
    excess: float
    """Percent of each step that the peers wait."""
    is_always: bool
    """It is (nearly) the whole job."""

    @property
    def lost_s(self) -> float:
        """Return the seconds for which the peers waited."""
        return (self.slow.own_s - self.usual_s) * self.slow.steps


def slow_rank(evidence: Evidence, parameters: SlowRank, user_set: frozenset[str]) -> Iterator[Finding]:
    """The peers of one rank wait for it for `share` percent of their steps, since its own work takes longer.

    Own work is all of a step but the wait for other ranks: a collective at the end of backward makes the others wait
    there, so that all ranks' steps take equally long and only these differ.
    """
    counts = [len(steps.end_s) - WARM_UP for steps in evidence.steps.values()]
    shortest = min((*counts, *(work.steps for work in evidence.elsewhere.values())), default=0)
    needed, note = scaled_steps(
        evidence, parameters.patience, shortest, is_user_set="patience" in user_set, fewest=FEWEST_STEPS
    )
    if len(evidence.steps.keys() | evidence.elsewhere.keys()) < 2 or shortest < needed:
        return
    if is_crowded(evidence):
        parameters = msgspec.structs.replace(
            parameters,
            factor=max(parameters.factor, CROWDED_FACTOR),
            share=max(parameters.share, CROWDED_SHARE),
        )
    stretch = _find_stretch(evidence, parameters, shortest)
    if stretch is None:
        return
    slow, usual_s = stretch.slow, stretch.usual_s
    peers = {rank: work for rank, work in stretch.works.items() if rank != slow.rank}
    # Traces that were taken while the job ran are of the rank that was the healthy one then.
    compared_rank = evidence.compared.get(slow.rank)
    healthy = peers[
        compared_rank if compared_rank in peers else min(peers, key=lambda rank: abs(peers[rank].own_s - usual_s))
    ]
    part, field = max(
        _PARTS.items(), key=lambda part_field: getattr(slow, part_field[1]) - getattr(healthy, part_field[1])
    )
    finding = make_finding(
        "SlowRank",
        evidence,
        None,
        f"{_when(stretch)}ank {slow.rank} needs {format_seconds(slow.own_s)} a step for its own work, its"
        f" peers {format_seconds(usual_s)}: they wait for it for {stretch.excess:.0f} % of each step. Most of it is"
        f" {part} ({format_seconds(getattr(slow, field))}; {format_seconds(getattr(healthy, field))} on rank"
        f" {healthy.rank}).",
        subject="rank",
        rank=slow.rank,
        start_s=slow.start_s,
        end_s=slow.end_s,
        numbers=(
            number(
                "own work",
                slow.own_s,
                f"mean of a step without the wait for other ranks, over {slow.steps} steps",
                unit="s",
                limit=parameters.factor * usual_s,
            ),
            number("peers' own work", usual_s, "median over the other ranks", unit="s"),
            percent("excess", stretch.excess, "(own work - peers' own work) / step", limit=parameters.share),
            number("lost", stretch.lost_s, "(own work - peers' own work) x steps", unit="s"),
            number(HEALTHY, healthy.rank, "a peer near the median"),
        ),
        refuted_by="Steps of the other ranks that are shorter, too: then they do not wait for this one.",
        change=f"Compare the traces of rank {slow.rank} and rank {healthy.rank}; look at the CPU, the disk and the"
        " GPU's clock of that rank, and at how its share of the data differs.",
        note=note,
        lost_s=stretch.lost_s,
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
            works[rank] = _work(evidence.host, rank, steps, slice(len(steps.end_s) - count, len(steps.end_s)))
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
    "evaluation": "evaluation_s",
    "garbage collection": "collection_s",
    "the time between its steps": "pause_s",
}


def _find_stretch(evidence: Evidence, parameters: SlowRank, shortest: int) -> SlowStretch | None:
    """Return the steps in which one rank kept the others waiting: (nearly) all, or those that cost most."""
    whole = {**evidence.elsewhere, **own_work(evidence, shortest)}
    always = _judge(whole, parameters, is_always=True)
    if evidence.elsewhere:  # Of the ranks of other hosts nothing but their means is known.
        return always
    stretches = _stretches(evidence)
    slow_ranks = [
        stretch.slow.rank if (stretch := _judge(works, parameters)) is not None else None for works in stretches
    ]
    if always is not None and slow_ranks.count(always.slow.rank) >= MOSTLY * len(stretches):
        return always
    runs = [
        run
        for rank in {rank for rank in slow_ranks if rank is not None}
        for first, last in _runs([slow == rank for slow in slow_ranks])
        if (run := _judge(_join(stretches[first:last]), parameters)) is not None and run.slow.rank == rank
    ]
    worst = max(runs, key=lambda run: run.lost_s, default=None)
    if worst is None or worst.slow.steps < parameters.patience:
        return None
    job_s = evidence.end_s - evidence.start_s
    return worst if worst.lost_s >= max(LEAST_LOST_S, LEAST_LOST_SHARE * job_s) else None


def _judge(works: Mapping[int, RankWork], parameters: SlowRank, *, is_always: bool = False) -> SlowStretch | None:
    """Return the rank of *works* for which its peers wait long enough, None if they do not."""
    slow = max(works.values(), key=lambda work: work.own_s)
    usual_s = median(work.own_s for rank, work in works.items() if rank != slow.rank)
    excess = 100 * (slow.own_s - usual_s) / slow.step_s if slow.step_s else 0.0
    if not slow.own_s >= parameters.factor * usual_s or not excess >= parameters.share:
        return None
    return SlowStretch(slow=slow, works=works, usual_s=usual_s, excess=excess, is_always=is_always)


def _stretches(evidence: Evidence) -> list[dict[int, RankWork]]:
    """Return the own work of all ranks in steps with the same numbers, a part of the job after the other."""
    columns = {rank: evidence.courses.get(rank, steps) for rank, steps in evidence.steps.items()}
    places = [dict(zip(steps.step, range(len(steps.step)), strict=True)) for steps in columns.values()]
    shared = sorted(set(places[0]).intersection(*places[1:]))[WARM_UP:]
    count = min(max(len(shared) * evidence.course_steps // LEAST_STEPS, 1), MOST_STRETCHES, len(shared))
    stretches = []
    for place_number in range(count):
        part = shared[len(shared) * place_number // count : len(shared) * (place_number + 1) // count]
        stretches.append(
            {
                rank: _work(
                    evidence.host, rank, steps, slice(place[part[0]], place[part[-1]] + 1), evidence.course_steps
                )
                for (rank, steps), place in zip(columns.items(), places, strict=True)
            }
        )
    return stretches


def _runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return first and last + 1 of each run of true *flags*; a single false one does not end it."""
    runs: list[tuple[int, int]] = []
    for index, flag in enumerate(flags):
        if not flag:
            continue
        if runs and index - runs[-1][1] <= 1:
            runs[-1] = runs[-1][0], index + 1
        else:
            runs.append((index, index + 1))
    return runs


def _join(stretches: Sequence[Mapping[int, RankWork]]) -> dict[int, RankWork]:
    """Return the means over *stretches*, one after the other."""
    joined = {}
    for rank, first in stretches[0].items():
        works = [stretch[rank] for stretch in stretches]
        steps = sum(work.steps for work in works)
        means = {
            field: sum(getattr(work, field) * work.steps for work in works) / steps
            for field in ("step_s", *_PARTS.values())
        }
        joined[rank] = msgspec.structs.replace(first, steps=steps, end_s=works[-1].end_s, **means)
    return joined


def _when(stretch: SlowStretch) -> str:
    """Return "For 29 min from 03:12 UTC on r", and "R" where the rank was always slow."""
    if stretch.is_always:
        return "R"
    slow = stretch.slow
    began = datetime.fromtimestamp(slow.start_s, timezone.utc)
    return f"For {format_seconds(slow.end_s - slow.start_s + slow.step_s)} from {began:%H:%M} UTC on r"


def _work(host: str, rank: int, steps: StepColumns, part: slice, each_steps: int = 1) -> RankWork:
    """Return the own work of *rank* in the rows *part* of *steps*, each of which stands for *each_steps*."""
    return RankWork(
        host=host,
        rank=rank,
        steps=(part.stop - part.start) * each_steps,
        start_s=steps.end_s[part.start],
        end_s=steps.end_s[part.stop - 1],
        step_s=_mean_or_zero(steps.step_s[part]),
        **{field: _mean_of_all(getattr(steps, field)[part]) for field in _PARTS.values()},
    )


def _mean_of_all(values: Values) -> float:
    """Return the mean over all steps of a part that few of them have, as saving: the others took 0 s for it."""
    return sum(measured(values)) / len(values) if values else 0.0


def _mean_or_zero(values: Values) -> float:
    measured_mean = mean(values)
    return measured_mean if measured_mean == measured_mean else 0.0
