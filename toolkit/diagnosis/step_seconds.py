"""The seconds of steps without what has rules of its own, and the part of the steps in which an excess lies."""

import math
from collections.abc import Collection, Sequence

from toolkit.diagnosis.evidence import Evidence, StepColumns, Values
from toolkit.diagnosis.numbers import median
from toolkit.diagnosis.phases import StepPhase, phases
from toolkit.diagnosis.step_parts import GarbageCollection, StepPause

# The first steps of a rank are slow: memory is allocated, kernels are compiled. FirstStep judges them.
WARM_UP = 1
# Percent of the steps' time from which on DataWait finds the wait for data.
DATA_SHARE = 25.0
# What is never a step's own time: CheckpointTime and EvaluationTime judge it.
_ASIDE = ("checkpoint_s", "evaluation_s")
# What other rules find from these percentages of the steps' time on.
_FOUND_ELSEWHERE = {
    "data_s": DATA_SHARE,
    "pause_s": StepPause().threshold,
    "collection_s": GarbageCollection().threshold,
}
PARTS = {
    "data_s": "the wait for data",
    "forward_s": "the forward pass",
    "backward_s": "the backward pass",
    "optimizer_s": "the optimizer",
    "collection_s": "garbage collection",
    "pause_s": "the time between the steps",
}
# A part holds an excess if it holds this share of it.
HOLDS = 0.6


def own_phases(evidence: Evidence) -> list[StepPhase]:
    """Return the steps of each rank with their seconds less evaluation, saving, and all that another rule finds."""
    return [
        StepPhase(name=phase.name, rank=phase.rank, times_s=phase.times_s, seconds=_own_seconds(evidence, phase))
        for phase in phases(evidence, ("step",))
    ]


def name_part(evidence: Evidence, phase: StepPhase, long: Collection[int], usual: Collection[int]) -> str:
    """Return the part of the steps that holds most of what the steps *long* take more than those *usual*, indexes of
    *phase*; "" if none does, or it is not known."""
    steps = find_columns(evidence, phase)
    if steps is None or not long or not usual:
        return ""

    def excess_s(values: Sequence[float]) -> float:
        known = [value if math.isfinite(value) else 0.0 for value in values]
        return sum(known[index] for index in long) - len(long) * median(known[index] for index in usual)

    whole_s = excess_s(phase.seconds)
    excess_by_part = {
        words: excess_s(getattr(steps, name)) for name, words in PARTS.items() if len(getattr(steps, name))
    }
    words = max(excess_by_part, key=lambda part: excess_by_part[part], default="")
    return words if words and excess_by_part[words] >= HOLDS * whole_s > 0 else ""


def measure_computed_share(
    evidence: Evidence, phase: StepPhase, long: Collection[int], usual: Collection[int]
) -> float:
    """Return the share of what the steps *long* take more than those *usual* in which their thread computed; NaN: not
    known."""
    steps = find_columns(evidence, phase)
    if steps is None or len(steps.cpu_s) != len(phase.seconds) or not long or not usual:
        return math.nan
    usual_cpu_s = [steps.cpu_s[index] for index in usual if math.isfinite(steps.cpu_s[index])]
    if not usual_cpu_s:
        return math.nan
    computed_s = sum(steps.cpu_s[index] for index in long) - len(long) * median(usual_cpu_s)
    longer_s = sum(phase.seconds[index] for index in long) - len(long) * median(phase.seconds[index] for index in usual)
    return computed_s / longer_s if longer_s > 0 else math.nan


def knows_parts(evidence: Evidence, phase: StepPhase) -> bool:
    """Return whether it was measured how the steps divide into forward, backward and the rest."""
    steps = find_columns(evidence, phase)
    return steps is not None and any(map(math.isfinite, (*steps.forward_s, *steps.backward_s)))


def _own_seconds(evidence: Evidence, phase: StepPhase) -> Values:
    steps = find_columns(evidence, phase)
    if steps is None:
        return phase.seconds
    total_s = math.fsum(phase.seconds)
    aside = [getattr(steps, name) for name in _ASIDE]
    aside += [
        values
        for name, threshold in _FOUND_ELSEWHERE.items()
        if 100 * math.fsum(filter(math.isfinite, values := getattr(steps, name))) > threshold * total_s
    ]
    own_s = list(phase.seconds)
    for values in aside:
        own_s = [
            max(whole - part, 0.0) if math.isfinite(part) else whole for whole, part in zip(own_s, values, strict=False)
        ] or own_s
    return own_s


def find_columns(evidence: Evidence, phase: StepPhase) -> StepColumns | None:
    """Return the columns of the steps of *phase*, None if they are other steps (those that a metric tells)."""
    steps = evidence.steps.get(phase.rank) if phase.rank is not None else None
    if steps is None:
        return None
    timed = steps.timed()
    return timed if len(timed.step_s) == len(phase.seconds) else None
