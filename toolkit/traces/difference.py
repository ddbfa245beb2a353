"""Two traces beside each other, by operator: a slow rank and a healthy one, or a job before and after a change."""

from collections.abc import Iterable

from toolkit.records import Record
from toolkit.traces import intervals, names, nesting
from toolkit.traces.chrome import ANNOTATION, DEVICE, OPERATOR, Event, Trace
from toolkit.traces.figures import operator_table, step_times

_MICRO = 1e-6
OUTSIDE = "(outside operators)"
WAITING = "(waiting for other ranks)"
IDLE = "(GPU idle)"


class Change(Record, frozen=True, kw_only=True):
    """An operator or kernel in both traces, a step: seconds and calls. Without steps in a trace: of the whole trace."""

    name: str
    first_s: float
    second_s: float
    first_calls: float
    second_calls: float
    communicates: bool = False

    @property
    def more_s(self) -> float:
        """Return how much longer it took in the first trace than in the second."""
        return self.first_s - self.second_s


class Difference(Record, frozen=True, kw_only=True):
    """`changes`: the largest first, whichever sign. `first_step_s`, `second_step_s`: the mean step, None without steps.

    On a CPU the change OUTSIDE is a step's time in which its thread ran no operator and no collective was under way
    (Python, waiting for data, sleeping), WAITING the one in which a collective was. On a GPU, IDLE is the time in which
    nothing ran there.
    """

    changes: tuple[Change, ...]
    first_step_s: float | None
    second_step_s: float | None
    first_steps: int
    second_steps: int


def difference(first: Trace, second: Trace) -> Difference:
    """Return by operator what *first* (the slow rank; before) takes longer than *second* (the healthy rank; after)."""
    one, two = _per_step(first), _per_step(second)
    nothing = (0.0, 0.0, False)
    changes = []
    for name in one.operators.keys() | two.operators.keys():
        first_s, first_calls, communicates = one.operators.get(name, nothing)
        second_s, second_calls, also = two.operators.get(name, nothing)
        changes.append(
            Change(
                name=name,
                first_s=first_s,
                second_s=second_s,
                first_calls=first_calls,
                second_calls=second_calls,
                communicates=communicates or also,
            )
        )
    return Difference(
        changes=tuple(sorted(changes, key=lambda change: (-abs(change.more_s), change.name))),
        first_step_s=one.step_s,
        second_step_s=two.step_s,
        first_steps=one.steps,
        second_steps=two.steps,
    )


class _PerStep(Record, frozen=True, kw_only=True):
    """Seconds and calls a step, and whether it communicates, by operator."""

    operators: dict[str, tuple[float, float, bool]]
    step_s: float | None
    steps: int


def _per_step(trace: Trace) -> _PerStep:
    steps = step_times(trace.of(ANNOTATION), 0.0)
    count = max(len(steps), 1)
    found: dict[str, tuple[float, float, bool]] = {}
    for operator in operator_table(trace):
        seconds, calls, communicates = found.get(operator.name, (0.0, 0.0, False))
        found[operator.name] = (
            seconds + operator.total_s / count,
            calls + operator.calls / count,
            communicates or operator.communicates,
        )
    if steps:
        found |= {name: (seconds / count, 0.0, name == WAITING) for name, seconds in _without_work(trace).items()}
    mean = sum(step.duration_s for step in steps) / count if steps else None
    return _PerStep(operators=found, step_s=mean, steps=len(steps))


def _without_work(trace: Trace) -> dict[str, float]:
    """Return the seconds within steps in which the GPU, or the steps' thread, ran nothing."""
    annotations = trace.of(ANNOTATION)
    names_of_steps = {step.name for step in step_times(annotations, 0.0)}
    steps = [event for event in annotations if event.name in names_of_steps]
    within = _times(steps)
    device = trace.of(*DEVICE)
    if device:
        return {IDLE: intervals.length(intervals.without(within, _times(device))) * _MICRO}
    threads = {(event.pid, event.tid) for event in steps}
    operators = [event for event in trace.of(OPERATOR) if (event.pid, event.tid) in threads]
    free = intervals.without(within, _times(nesting.outermost(operators)))
    waiting = intervals.common(free, _times(event for event in annotations if names.communicates(event.name)))
    waited = intervals.length(waiting)
    return {OUTSIDE: (intervals.length(free) - waited) * _MICRO, WAITING: waited * _MICRO}


def _times(events: Iterable[Event]) -> list[intervals.Span]:
    return intervals.union((event.ts, event.end) for event in events)
