"""Compares two traces by operator: of a slow rank and a healthy one, or of a job before and after a change."""

from collections.abc import Iterable

from toolkit.records import Record
from toolkit.traces import intervals, names, nesting
from toolkit.traces.chrome import ANNOTATION, DEVICE, OPERATOR, ChromeTrace, TraceEvent
from toolkit.traces.figures import operator_table, step_times

_MICRO = 1e-6
OUTSIDE = "(outside operators)"
WAITING = "(waiting for other ranks)"
IDLE = "(GPU idle)"


class OperatorChange(Record, frozen=True, kw_only=True):
    """An operator or kernel in both traces: its time and calls per step, or of a whole trace without steps."""

    name: str
    """The operator, kernel, or OUTSIDE, WAITING, IDLE."""
    first_s: float
    """Its time in the first trace."""
    second_s: float
    """Its time in the second trace."""
    first_calls: float
    """Its calls in the first trace."""
    second_calls: float
    """Its calls in the second trace."""
    communicates: bool = False
    """True if it moves data between ranks."""

    @property
    def more_s(self) -> float:
        """The additional time in the first trace."""
        return self.first_s - self.second_s


class TraceDifference(Record, frozen=True, kw_only=True):
    """The difference of two traces.

    On a CPU the change OUTSIDE is a step's time in which its thread ran no operator and no collective was under way
    (Python, waiting for data, sleeping), WAITING the time in which a collective was. On a GPU, IDLE is the time in
    which nothing ran there.
    """

    changes: tuple[OperatorChange, ...]
    """The largest first, of either sign."""
    first_step_s: float | None
    """The mean step of the first trace; None without steps."""
    second_step_s: float | None
    """The mean step of the second trace; None without steps."""
    first_steps: int
    """The steps in the first trace."""
    second_steps: int
    """The steps in the second trace."""


def compare_traces(first: ChromeTrace, second: ChromeTrace) -> TraceDifference:
    """Return the differences, by operator, of *first* (the slow rank; before) and *second* (the healthy rank;
    after)."""
    first_steps, second_steps = _per_step(first), _per_step(second)
    absent = (0.0, 0.0, False)
    changes = []
    for name in first_steps.operators.keys() | second_steps.operators.keys():
        first_s, first_calls, communicates = first_steps.operators.get(name, absent)
        second_s, second_calls, second_communicates = second_steps.operators.get(name, absent)
        changes.append(
            OperatorChange(
                name=name,
                first_s=first_s,
                second_s=second_s,
                first_calls=first_calls,
                second_calls=second_calls,
                communicates=communicates or second_communicates,
            )
        )
    return TraceDifference(
        changes=tuple(sorted(changes, key=lambda change: (-abs(change.more_s), change.name))),
        first_step_s=first_steps.step_s,
        second_step_s=second_steps.step_s,
        first_steps=first_steps.steps,
        second_steps=second_steps.steps,
    )


class _PerStep(Record, frozen=True, kw_only=True):
    """Seconds and calls a step, and whether it communicates, by operator."""

    operators: dict[str, tuple[float, float, bool]]
    step_s: float | None
    steps: int


def _per_step(trace: ChromeTrace) -> _PerStep:
    steps = step_times(trace.of(ANNOTATION), 0.0)
    count = max(len(steps), 1)
    operators: dict[str, tuple[float, float, bool]] = {}
    for operator in operator_table(trace):
        seconds, calls, communicates = operators.get(operator.name, (0.0, 0.0, False))
        operators[operator.name] = (
            seconds + operator.total_s / count,
            calls + operator.calls / count,
            communicates or operator.communicates,
        )
    if steps:
        operators |= {name: (seconds / count, 0.0, name == WAITING) for name, seconds in _without_work(trace).items()}
    mean = sum(step.duration_s for step in steps) / count if steps else None
    return _PerStep(operators=operators, step_s=mean, steps=len(steps))


def _without_work(trace: ChromeTrace) -> dict[str, float]:
    """Return the seconds within steps in which the GPU, or the steps' thread, ran nothing."""
    annotations = trace.of(ANNOTATION)
    names_of_steps = {step.name for step in step_times(annotations, 0.0)}
    steps = [event for event in annotations if event.name in names_of_steps]
    within = _times(steps)
    device = trace.of(*DEVICE)
    if device:
        return {IDLE: intervals.total_length(intervals.subtract(within, _times(device))) * _MICRO}
    threads = {(event.pid, event.tid) for event in steps}
    operators = [event for event in trace.of(OPERATOR) if (event.pid, event.tid) in threads]
    free = intervals.subtract(within, _times(nesting.find_outermost(operators)))
    waiting = intervals.intersect(free, _times(event for event in annotations if names.communicates(event.name)))
    waited = intervals.total_length(waiting)
    return {OUTSIDE: (intervals.total_length(free) - waited) * _MICRO, WAITING: waited * _MICRO}


def _times(events: Iterable[TraceEvent]) -> list[intervals.Span]:
    return intervals.union((event.ts, event.end) for event in events)
