"""Pure: takes the step times of ranks, returns an event for each rank that is slower than its peers for many steps.

A rank's time for a step is compared with the median of the other ranks' times for the same step: a step that is slow
for all ranks (a checkpoint, a long batch) makes no straggler. A step is judged when all ranks have reported it, when a
later step is complete, or when too many steps wait. Later reports of the step are compared with that median.

If ranks wait for each other within the time they measure, the fast ones wait and all times are equal. Such a script
should print the time of its own work: the step without the wait for the others.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable

from toolkit.metrics.sample import Sample
from toolkit.train.log_rules.event import Action, Kind, RuleEvent
from toolkit.train.log_rules.row import Row

STEP_TIME = "step_time"
RULE = "straggler"
# How many steps wait for reports, and how many medians are kept for ranks that lag: 64 steps of 1,000 ranks take about
# 6 MB, 4,096 medians half a MB. With very many ranks fewer steps wait, so that memory stays below about 30 MB.
OPEN_STEPS = 64
OPEN_TIMES = 256_000
LEAST_OPEN_STEPS = 8
KEPT_MEDIANS = 4096
# The most step times in one message of a host: with 8 ranks, the times of 8 steps, about 2 KB.
SENT_AT_ONCE = 64
# The link refuses longer step times (30 years).
LONGEST_S = 1e9


class Counts:
    """Numbers the step times of each rank: by the step in the log line, else by counting."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def step_of(self, sample: Sample) -> Iterable[tuple[int, int]]:
        """Yield (rank, step) if *sample* is a step time of a rank, else nothing."""
        if sample.name != STEP_TIME or sample.rank is None:
            return
        step = sample.step
        if step is None:
            step = self._counts[sample.rank] = self._counts.get(sample.rank, -1) + 1
        yield sample.rank, step


class Beats:
    """Makes step times from heartbeats, which are read once a second.

    Only the mean of the steps between two reads is known. It is returned for four to seven of these steps (for all, if
    there are fewer): those whose number is a multiple of a power of two. So ranks of different speed report the same
    steps.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    def look(self, rank: int, step: int, time_ns: int) -> list[tuple[int, int, float]]:
        """Return (rank, step, seconds) for steps since the last call. *rank* reached *step* at *time_ns*."""
        previous, self._last[rank] = self._last.get(rank), (step, time_ns)
        if previous is None or step <= previous[0]:
            return []
        steps = step - previous[0]
        seconds = (time_ns - previous[1]) / 1e9 / steps
        every = 1 << max(steps.bit_length() - 3, 0)
        return [(rank, number, seconds) for number in range((previous[0] // every + 1) * every, step + 1, every)]


class Thinned:
    """Keeps as many step times of one host as a small message to the leader holds.

    If there are too many, it keeps every second step, then every fourth, and so on, by the step's number: so hosts of
    similar speed keep the same steps.
    """

    def __init__(self) -> None:
        self._every = 1
        self._times: dict[tuple[int, int], float] = {}
        self._counts = Counts()

    def samples(self, samples: Iterable[Sample]) -> None:
        """Take the samples named step_time."""
        for sample in samples:
            for rank, step in self._counts.step_of(sample):
                self.step(rank, step, sample.value)

    def step(self, rank: int, step: int, seconds: float) -> None:
        """Add a step time: *rank* took *seconds* for *step*."""
        if step % self._every == 0 and 0 < seconds < LONGEST_S:
            self._times[rank, step] = seconds
        while len(self._times) > SENT_AT_ONCE and len({step for _, step in self._times}) > 1:
            self._every *= 2
            self._times = {key: seconds for key, seconds in self._times.items() if key[1] % self._every == 0}

    def take(self) -> tuple[tuple[int, int, float], ...]:
        """Return (rank, step, seconds) for each step time kept since the last call."""
        times = tuple((rank, step, seconds) for (rank, step), seconds in self._times.items())
        self._times = {}
        if self._every > 1 and len(times) < SENT_AT_ONCE // 4:
            self._every //= 2
        return times


class Stragglers:
    """Reports a rank when *steps* step times in a row exceed *factor* times its peers' median, and when as many do not
    any more.

    *ranks*: how many ranks report. A step is not judged if less than half of a rank's peers have reported it. *name*
    returns a rank's name for messages.
    """

    def __init__(
        self,
        *,
        ranks: int,
        factor: float = 1.5,
        steps: int = 20,
        action: Action = "warn",
        name: Callable[[int], str] = "rank {}".format,
    ) -> None:
        self._ranks = ranks
        self._name = name
        self._open_steps = min(max(OPEN_TIMES // ranks, LEAST_OPEN_STEPS), OPEN_STEPS)
        self._factor = factor
        self._steps = steps
        self._action = action
        # By step that is not judged yet: seconds by rank.
        self._open: dict[int, dict[int, float]] = {}
        # By step that was judged, oldest first: all ranks' median, None where too few had reported.
        self._medians: dict[int, float | None] = {}
        # By rank: only of ranks that were slow for the last step, or that were reported.
        self._rows: dict[int, Row] = {}
        self._counts = Counts()

    def samples(self, samples: Iterable[Sample]) -> list[RuleEvent]:
        """Return the events of samples named step_time (seconds). Other samples, and those without rank, are ignored.

        If a line names no step, the rank's samples are counted.
        """
        events = []
        for sample in samples:
            for rank, step in self._counts.step_of(sample):
                events += self.step(rank, step, sample.value, now_s=sample.time_s)
        return events

    def step(self, rank: int, step: int, seconds: float, *, now_s: float) -> list[RuleEvent]:
        """Return the events of a step time: *rank* took *seconds* for *step*, reported at *now_s*."""
        if not 0 < seconds < float("inf"):
            return []
        if step in self._medians:
            return self._judge(rank, step, seconds, self._medians[step], now_s)
        times = self._open.setdefault(step, {})
        times[rank] = seconds
        if len(times) >= self._ranks:
            return self._settle(sorted(number for number in self._open if number <= step), now_s)
        if len(self._open) > self._open_steps:
            return self._settle([min(self._open)], now_s)
        return []

    def _settle(self, steps: list[int], now_s: float) -> list[RuleEvent]:
        """Judge *steps*, without waiting for more ranks."""
        events = []
        for step in steps:
            times = self._open.pop(step)
            ordered = sorted(times.values())
            peers = len(ordered) - 1
            is_judged = peers >= 1 and 2 * peers >= self._ranks - 1
            self._keep(step, _median(ordered) if is_judged else None)
            if not is_judged:
                continue
            # A rank below this is not slow: the median of its peers is at least the lower of the two middle times.
            least = self._factor * ordered[(len(ordered) - 2) // 2]
            for rank, seconds in times.items():
                if seconds > least or rank in self._rows:
                    events += self._judge(rank, step, seconds, _median_without(ordered, seconds), now_s)
        return events

    def _keep(self, step: int, median: float | None) -> None:
        self._medians[step] = median
        if len(self._medians) > KEPT_MEDIANS:
            del self._medians[next(iter(self._medians))]

    def _judge(self, rank: int, step: int, seconds: float, median: float | None, now_s: float) -> list[RuleEvent]:
        """Count one step time of *rank* against its peers' *median*."""
        if median is None:
            return []
        row = self._rows.setdefault(rank, Row())
        has_turned = row.add(seconds > self._factor * median, self._steps)
        if row.is_new:
            del self._rows[rank]
        return [self._event(row.state, rank, step, seconds, median, now_s)] if has_turned else []

    def _event(self, is_slow: bool, rank: int, step: int, seconds: float, median: float, now_s: float) -> RuleEvent:
        kind: Kind = "straggler" if is_slow else "recovered"
        text = (
            f"{self._name(rank)} took {seconds:.3g} s for step {step}, "
            f"{seconds / median:.2f} times its peers' {median:.3g} s"
            f"; {self._steps} in a row {'above' if is_slow else 'not above'} {self._factor:g} times"
        )
        return RuleEvent(rule=RULE, kind=kind, action=self._action, text=text, time_s=now_s, rank=rank, value=seconds)


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _median_without(ordered: list[float], removed: float) -> float:
    """Return the median of *ordered* without *removed*, which is in it."""
    place = bisect_left(ordered, removed)
    rest, middle = len(ordered) - 1, (len(ordered) - 1) // 2

    def value_at(index: int) -> float:
        return ordered[index + (index >= place)]

    return value_at(middle) if rest % 2 else (value_at(middle - 1) + value_at(middle)) / 2
