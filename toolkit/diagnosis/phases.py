"""The times of each step's phases, by rank: as the start-up hook measured them, else as captured from the log."""

from collections.abc import Sequence

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.numbers import measured
from toolkit.records import Record

# The phases by the name that a finding's subject has: the field of Steps, and the metric.
PHASES = {
    "step": ("step_s", "step_time"),
    "dataloader": ("data_s", "dataloader_time"),
    "forward": ("forward_s", "forward_time"),
    "backward": ("backward_s", "backward_time"),
}


class StepPhase(Record, frozen=True, kw_only=True):
    """The seconds of one phase of one rank in each step, oldest first, and the time at which each step ended."""

    name: str
    rank: int | None
    times_s: Values
    seconds: Values


def phases(evidence: Evidence, names: Sequence[str] = tuple(PHASES)) -> list[StepPhase]:
    """Return what is known of the phases *names* of each rank. A step without a value is left out."""
    step_phases = []
    for name in names:
        field, metric = PHASES[name]
        of_steps = [
            _phase(name, rank, steps.end_s, getattr(steps, field))
            for rank, steps in sorted(evidence.steps.items())
            if measured(getattr(steps, field))
        ]
        of_metrics = [
            _phase(name, rank, readings.time_s, readings.value)
            for rank, readings in evidence.metrics.get(metric, {}).items()
        ]
        step_phases += of_steps or of_metrics
    return step_phases


def _phase(name: str, rank: int | None, times_s: Values, seconds: Values) -> StepPhase:
    pairs = [(time_s, value) for time_s, value in zip(times_s, seconds, strict=True) if value == value]
    return StepPhase(name=name, rank=rank, times_s=[pair[0] for pair in pairs], seconds=[pair[1] for pair in pairs])
