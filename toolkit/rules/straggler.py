"""Pure: step times of ranks in, findings out: who is slower than its peers, step after step.

A rank's time for a step is held against the median of the other ranks' times for the same step: a step that is slow for
all (a checkpoint, a long batch) makes nobody a straggler. A step is judged when all ranks have reported it, or when a
later one is complete, or when too many wait; who reports it only then is held against the median that was found.

Ranks that wait for each other within what they measure take equally long, the fast ones by waiting. Such a script
should print the time of its own work: the step less the wait for the others.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable

from toolkit.metrics.sample import Sample
from toolkit.rules.finding import Action, Finding, Kind
from toolkit.rules.row import Row

STEP_TIME = "step_time"
RULE = "straggler"
# Steps that wait for ranks to report, and medians that are kept for ranks that lag: 64 steps of 1,000 ranks are about
# 6 MB, 4,096 medians half a MB. Of very many ranks fewer steps wait, so that memory stays below some 30 MB.
OPEN_STEPS = 64
OPEN_TIMES = 256_000
LEAST_OPEN_STEPS = 8
KEPT_MEDIANS = 4096
# What one host tells of its ranks at once: of 8 ranks the times of 8 steps, some 2 KB.
TOLD_AT_ONCE = 64
# A step of 30 years is none: the link refuses it.
LONGEST_S = 1e9


class Counts:
    """Which step a sample named step_time is of: what the log says, else its number among its rank's."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def step_of(self, sample: Sample) -> Iterable[tuple[int, int]]:
        """Yield (rank, step) of a step time, nothing for other samples and those of no rank."""
        if sample.name != STEP_TIME or sample.rank is None:
            return
        step = sample.step
        if step is None:
            step = self._counts[sample.rank] = self._counts.get(sample.rank, -1) + 1
        yield sample.rank, step


class Beats:
    """Makes step times of heartbeats that are looked at now and then.

    Of the steps between two looks the mean is known. It is told for four to seven of them (or all, if they are fewer),
    those whose number is a multiple of a power of two: ranks that differ in speed are so told of for the same steps.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    def look(self, rank: int, step: int, time_ns: int) -> list[tuple[int, int, float]]:
        """Return (rank, step, seconds) of what a rank did since the last look; it came to *step* at *time_ns*."""
        before, self._last[rank] = self._last.get(rank), (step, time_ns)
        if before is None or step <= before[0]:
            return []
        steps = step - before[0]
        seconds = (time_ns - before[1]) / 1e9 / steps
        every = 1 << max(steps.bit_length() - 3, 0)
        return [(rank, each, seconds) for each in range((before[0] // every + 1) * every, step + 1, every)]


class Thinned:
    """Of one host's step times as many as a small message holds, to be compared with other hosts'.

    Where there are too many, those of every second step are kept, then of every fourth, and so on, by the step's
    number: so hosts whose steps take about as long keep the same ones.
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
        """Take that *rank* took *seconds* for *step*."""
        if step % self._every == 0 and 0 < seconds < LONGEST_S:
            self._times[rank, step] = seconds
        while len(self._times) > TOLD_AT_ONCE and len({step for _, step in self._times}) > 1:
            self._every *= 2
            self._times = {key: each for key, each in self._times.items() if key[1] % self._every == 0}

    def take(self) -> tuple[tuple[int, int, float], ...]:
        """Return (rank, step, seconds) of what was kept since the last time."""
        told = tuple((rank, step, seconds) for (rank, step), seconds in self._times.items())
        self._times = {}
        if self._every > 1 and len(told) < TOLD_AT_ONCE // 4:
            self._every //= 2
        return told


class Stragglers:
    """Names a rank whose step times are more than *factor* times its peers' median, *steps* of them in a row; and once
    more when as many in a row were not.

    *ranks*: how many report. A step for which less than half of a rank's peers have reported is not judged. *name*
    gives a rank's name for people.
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
        # By rank: those that were slow for the last step or were told.
        self._rows: dict[int, Row] = {}
        self._counts = Counts()

    def samples(self, samples: Iterable[Sample]) -> list[Finding]:
        """Return what the samples named step_time bring about; others, and those of no rank, are passed over.

        Seconds each. Where the log says no step, a rank's samples are counted.
        """
        findings = []
        for sample in samples:
            for rank, step in self._counts.step_of(sample):
                findings += self.step(rank, step, sample.value, now_s=sample.time_s)
        return findings

    def step(self, rank: int, step: int, seconds: float, *, now_s: float) -> list[Finding]:
        """Return what it brings about that *rank* took *seconds* for *step*, told at *now_s*."""
        if not 0 < seconds < float("inf"):
            return []
        if step in self._medians:
            return self._judge(rank, step, seconds, self._medians[step], now_s)
        times = self._open.setdefault(step, {})
        times[rank] = seconds
        if len(times) >= self._ranks:
            return self._settle(sorted(each for each in self._open if each <= step), now_s)
        if len(self._open) > self._open_steps:
            return self._settle([min(self._open)], now_s)
        return []

    def _settle(self, steps: list[int], now_s: float) -> list[Finding]:
        """Judge *steps*, for which no rank is waited any longer."""
        findings = []
        for step in steps:
            times = self._open.pop(step)
            ordered = sorted(times.values())
            peers = len(ordered) - 1
            is_judged = peers >= 1 and 2 * peers >= self._ranks - 1
            self._keep(step, _median(ordered) if is_judged else None)
            if not is_judged:
                continue
            # No rank is slow that is below this: its peers' median is not under the lower of the middle two.
            least = self._factor * ordered[(len(ordered) - 2) // 2]
            for rank, seconds in times.items():
                if seconds > least or rank in self._rows:
                    findings += self._judge(rank, step, seconds, _median_without(ordered, seconds), now_s)
        return findings

    def _keep(self, step: int, median: float | None) -> None:
        self._medians[step] = median
        if len(self._medians) > KEPT_MEDIANS:
            del self._medians[next(iter(self._medians))]

    def _judge(self, rank: int, step: int, seconds: float, median: float | None, now_s: float) -> list[Finding]:
        """Count one step time of *rank* against its peers' *median*."""
        if median is None:
            return []
        row = self._rows.setdefault(rank, Row())
        has_turned = row.add(seconds > self._factor * median, self._steps)
        if row.is_new:
            del self._rows[rank]
        return [self._finding(row.told, rank, step, seconds, median, now_s)] if has_turned else []

    def _finding(self, is_slow: bool, rank: int, step: int, seconds: float, median: float, now_s: float) -> Finding:
        kind: Kind = "straggler" if is_slow else "recovered"
        text = (
            f"{self._name(rank)} took {seconds:.3g} s for step {step}, "
            f"{seconds / median:.2f} times its peers' {median:.3g} s"
            f"; {self._steps} in a row {'above' if is_slow else 'not above'} {self._factor:g} times"
        )
        return Finding(rule=RULE, kind=kind, action=self._action, text=text, time_s=now_s, rank=rank, value=seconds)


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _median_without(ordered: list[float], one: float) -> float:
    """Return the median of *ordered* but for *one*, which is in it."""
    place = bisect_left(ordered, one)
    rest, middle = len(ordered) - 1, (len(ordered) - 1) // 2

    def at(index: int) -> float:
        return ordered[index + (index >= place)]

    return at(middle) if rest % 2 else (at(middle - 1) + at(middle)) / 2
