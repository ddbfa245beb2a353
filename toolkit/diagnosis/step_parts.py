"""Parts of the steps that cost too much: FirstStep, StepPause, GarbageCollection, CheckpointTime, EvaluationTime."""

import itertools
import math
from collections.abc import Iterator, Sequence

from toolkit.diagnosis.evidence import Evidence, StepColumns
from toolkit.diagnosis.numbers import median
from toolkit.diagnosis.rule import Percent, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import is_crowded
from toolkit.diagnosis.units import format_seconds, ordinal
from toolkit.records import Record
from toolkit.series.finding import Finding
from toolkit.series.pauses import PausePlace, RankPauses, find_place

FEWEST_STEPS = 5
# A first step that takes less than this longer than the others is not worth a finding, whatever its share.
LEAST_FIRST_S = 2.0
# As much is worth a finding, whatever its share.
MOST_FIRST_S = 30.0
# The sentence names the place of the pauses from this percentage of their samples on; they wait from this one on.
NAMED, WAITS = 50.0, 50.0
# A pause in which the script computes (an average of weights, a reward) is worth a finding from this percentage of
# the steps' time on. So is one in which the thread is ready to run, but other programs have its core.
MOST_WORK = 25.0


class FirstStep(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the job's time until now that the first step may take longer than the median one."""

    threshold: Percent = 10


class StepPause(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the time of the steps."""

    threshold: Percent = 10


class GarbageCollection(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the time of the steps."""

    threshold: Percent = 5


class CheckpointTime(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the time of the steps."""

    threshold: Percent = 10


class EvaluationTime(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the time of the steps."""

    threshold: Percent = 40


class StepPart(Record, frozen=True, kw_only=True):
    """A part of the steps of which a rule says that it costs too much."""

    rule: str  # The rule's name.
    column: str  # The field of StepColumns with its seconds,
    cpu_column: str  # and the one with its CPU time; empty: it has none.
    words: str  # What the time is spent on: a sentence up to "of rank 0".
    formula: str  # How it was measured.
    refuted_by: str  # What would show that the finding is wrong.
    change: str  # One change to try.


PAUSE = StepPart(
    rule="StepPause",
    column="pause_s",
    cpu_column="pause_cpu_s",
    words="Waiting or work before the forward pass, which is not data, evaluation or saving, holds up the steps",
    formula="from the end of a step to the first call of a module, less the measured parts",
    refuted_by="Work that each step needs there (sampling, simulation, logging) and that nothing can overlap.",
    change="Look at the place that is named: a lock, a server or a disk that each step waits for can be asked ahead, "
    "by a thread or a data loader's worker.",
)
COLLECTION = StepPart(
    rule="GarbageCollection",
    column="collection_s",
    cpu_column="",
    words="Python's garbage collection holds up the steps",
    formula="the time between gc's start and stop in the thread that trains",
    refuted_by="The same steps take as long with gc.disable().",
    change="Drop calls of gc.collect() from the loop; call gc.freeze() once everything is built, or raise "
    "gc.set_threshold.",
)
CHECKPOINT = StepPart(
    rule="CheckpointTime",
    column="checkpoint_s",
    cpu_column="checkpoint_cpu_s",
    words="Saving checkpoints holds up the steps",
    formula="time inside of torch.save, torch.distributed.checkpoint or status.holding_checkpoint",
    refuted_by="The job is as long without saving.",
    change="Save less often, or in the background (torch.distributed.checkpoint.async_save), or to a faster disk.",
)
EVALUATION = StepPart(
    rule="EvaluationTime",
    column="evaluation_s",
    cpu_column="evaluation_cpu_s",
    words="Evaluation holds up the steps",
    formula="from the end of a step to the end of the last call of a module with gradients off before the next step",
    refuted_by="Evaluation is what the job is for.",
    change="Evaluate less often, on fewer batches, or with larger ones.",
)


def step_pause(evidence: Evidence, parameters: StepPause, user_set: frozenset[str]) -> Iterator[Finding]:
    """The steps of a rank pause before their forward pass for more than `threshold` of the time; where they compute
    there, and no threshold is set, for more than MOST_WORK."""
    for finding in _find_part(evidence, PAUSE, parameters.threshold):
        figures = {figure.name: figure.value for figure in finding.numbers}
        place = find_place(evidence.pauses.get(finding.rank or 0, RankPauses()))
        waits = bool(place and place.wait) or _waits(evidence, figures.get("waiting", math.nan))
        if waits or "threshold" in user_set or figures["share"] > MOST_WORK:
            yield finding


def garbage_collection(evidence: Evidence, parameters: GarbageCollection, _: frozenset[str]) -> Iterator[Finding]:
    """Garbage collections take more than `threshold` of a rank's time."""
    yield from _find_part(evidence, COLLECTION, parameters.threshold)


def checkpoint_time(evidence: Evidence, parameters: CheckpointTime, _: frozenset[str]) -> Iterator[Finding]:
    """Saving takes more than `threshold` of a rank's time."""
    yield from _find_part(evidence, CHECKPOINT, parameters.threshold)


def evaluation_time(evidence: Evidence, parameters: EvaluationTime, _: frozenset[str]) -> Iterator[Finding]:
    """Evaluation takes more than `threshold` of a rank's time."""
    yield from _find_part(evidence, EVALUATION, parameters.threshold)


def first_step(evidence: Evidence, parameters: FirstStep, _: frozenset[str]) -> Iterator[Finding]:
    """The first step takes so much longer than the median one that it costs more than `threshold` of the job."""
    total_s = evidence.end_s - evidence.start_s
    excess_s, rank, steps = max(
        ((_first_excess_s(steps), rank, steps) for rank, steps in evidence.steps.items()),
        key=lambda row: row[0],
        default=(0.0, 0, StepColumns()),
    )
    share = 100 * excess_s / total_s if total_s > 0 else 0.0
    if excess_s < LEAST_FIRST_S or (share <= parameters.threshold and excess_s < MOST_FIRST_S):
        return
    compile_s = steps.compile_s[0]
    of_time = "job's time" if evidence.is_over else "time until now"
    yield make_finding(
        "FirstStep",
        evidence,
        None,
        f"The first step of rank {rank} took {format_seconds(excess_s)} longer than the median one"
        f" ({format_seconds(median(steps.step_s[1:]))}): {share:.0f} % of the {of_time}."
        + (f" torch.compile compiled for {format_seconds(compile_s)} of it." if compile_s > 0 else ""),
        subject="first step",
        rank=rank,
        start_s=steps.end_s[0] - steps.step_s[0],
        end_s=steps.end_s[0],
        numbers=(
            number("excess", excess_s, "the first step - the median of the others", unit="s"),
            percent("share", share, "the excess / the time since the ranks' start", limit=parameters.threshold),
            number("compiling", compile_s, "torch.compile within the first step", unit="s"),
        ),
        refuted_by="A first step that is as short when the job starts again on the same machine: caches were filled.",
        change="Keep what is compiled or tuned in the first step between jobs: a cache of compiled kernels in the"
        " checkpoints' folder or in the image (TOOLKIT_COMPILE keeps its own).",
        lost_s=excess_s,
    )


def _first_excess_s(steps: StepColumns) -> float:
    """Return by how much the first step computed longer than the median one; saving and evaluation left out."""
    if len(steps.step_s) <= FEWEST_STEPS or steps.step[0] != 1:
        return 0.0
    own_s = [
        step_s - sum(part for part in parts if math.isfinite(part))
        for step_s, *parts in zip(
            steps.step_s, steps.data_s, steps.evaluation_s, steps.checkpoint_s, steps.pause_s, strict=True
        )
    ]
    return max(own_s[0] - median(own_s[1:]), 0.0) if math.isfinite(own_s[0]) else 0.0


def _find_part(evidence: Evidence, part: StepPart, threshold: float) -> Iterator[Finding]:
    worst: tuple[float, int, StepColumns] | None = None
    for rank, steps in evidence.steps.items():
        share = _share(steps, getattr(steps, part.column))
        if share > threshold and (worst is None or share > worst[0]):
            worst = share, rank, steps
    if worst is None:
        return
    share, rank, steps = worst
    values = [value if math.isfinite(value) else 0.0 for value in getattr(steps, part.column)]
    lost_s = math.fsum(values)
    rhythm, each_s = describe_rhythm(values)
    waiting = _waiting_percent(values, getattr(steps, part.cpu_column) if part.cpu_column else ())
    place = find_place(evidence.pauses.get(rank, RankPauses())) if part is PAUSE else None
    opening = _describe_part(part, rank, place, waits=_waits(evidence, waiting))
    yield make_finding(
        part.rule,
        evidence,
        None,
        f"{opening}, {rhythm}, {format_seconds(each_s)} each time: {share:.0f} % of"
        f" their time, {format_seconds(lost_s)} in all.{_describe_waiting(waiting)}{_describe_samples(place)}",
        subject=part.column.removesuffix("_s"),
        rank=rank,
        start_s=steps.end_s[0] - steps.step_s[0],
        end_s=steps.end_s[-1],
        numbers=(
            percent("share", share, f"{part.formula} / time of the steps", limit=threshold),
            number("lost", lost_s, part.formula, unit="s"),
            percent("waiting", waiting, "(the part's time - CPU time of the thread within it) / the part's time"),
        ),
        refuted_by=part.refuted_by,
        change=part.change,
        lost_s=lost_s,
    )


def _waiting_percent(values: Sequence[float], cpu: Sequence[float]) -> float:
    """Return the percentage of *values* in which the thread did not compute, NaN where CPU times were not read."""
    pairs = [(value, cpu_s) for value, cpu_s in zip(values, cpu, strict=False) if math.isfinite(cpu_s)]
    total_s = math.fsum(value for value, _ in pairs)
    if total_s <= 0:
        return math.nan
    return max(100 * (1 - math.fsum(cpu_s for _, cpu_s in pairs) / total_s), 0.0)


def _waits(evidence: Evidence, waiting: float) -> bool:
    """Return whether a thread that does not compute for *waiting* percent of a part waits for something: where other
    programs hold the cores, it may only wait for one of them."""
    return waiting >= WAITS and not is_crowded(evidence)


def _describe_waiting(waiting: float) -> str:
    if not math.isfinite(waiting):
        return ""
    return f" The thread waits, and does not compute, for {waiting:.0f} % of it."


def _describe_part(part: StepPart, rank: int, place: PausePlace | None, *, waits: bool) -> str:
    if place is None or place.share < NAMED:
        return f"{part.words} of rank {rank}"
    if place.wait:
        return f"The steps of rank {rank} wait for {place.wait} in {place.where}"
    return f"The steps of rank {rank} {'wait' if waits else 'are held up'} in {place.where}"


def _describe_samples(place: PausePlace | None) -> str:
    if place is None:
        return ""
    if place.share >= NAMED:
        return f" The place is that of {place.share:.0f} % of the samples."
    waiting = f", waiting for {place.wait}" if place.wait else ""
    return f" Seen there: {place.share:.0f} % in {place.where}{waiting}."


def _share(steps: StepColumns, values: Sequence[float]) -> float:
    """Return the percentage of the time of *steps* that *values* take, 0 of too few steps."""
    total_s = math.fsum(value for value in steps.step_s if math.isfinite(value))
    if len(values) < FEWEST_STEPS or total_s <= 0:
        return 0.0
    return 100 * math.fsum(value for value in values if math.isfinite(value)) / total_s


def describe_rhythm(values: Sequence[float]) -> tuple[str, float]:
    """Return how often *values*, one a step, are more than a tenth of the largest, in words, and their median."""
    limit = max(values, default=0.0) / 10
    steps = [index for index, value in enumerate(values) if value > limit]
    typical = median([values[index] for index in steps])
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    if len(steps) > 0.8 * len(values):
        return "in each step", typical
    if len(gaps) >= 2 and min(gaps) == max(gaps):
        return f"every {ordinal(gaps[0])} step", typical
    return (f"in {len(steps)} steps" if len(steps) > 1 else "in one step"), typical
