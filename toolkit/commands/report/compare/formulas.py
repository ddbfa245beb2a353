"""Pure: the formulas of `toolkit compare`, each as AWS's notebooks for the Training Compiler have it where they do.

Savings and speed-ups are in percent of the native job; a negative one is a loss.
"""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

from toolkit.records import Record

RESAMPLES = 2000
BLOCKS = 40  # Neighbouring steps resemble each other, so blocks of them are resampled, not single steps.
LEAST = 4  # Values on each side, below which an interval says nothing.


class Interval(Record, frozen=True, kw_only=True):
    """The middle 95 % of a bootstrap, in the unit of the value."""

    low: float
    high: float

    @property
    def within_noise(self) -> bool:
        """True if no change at all (0) is as likely as the one that was measured."""
        return self.low <= 0 <= self.high


class BreakEven(Record, frozen=True, kw_only=True):
    """The epoch or step from which on the optimised job has taken less time in all.

    `number`: counted from 1; None: never, at these latencies. `measured` False: both jobs ended before it, and `number`
    assumes that their steady latencies go on.
    """

    number: int | None
    measured: bool


def savings_percent(native: float, optimised: float) -> float:
    """Return (native - optimised) / native x 100."""
    return (native - optimised) / native * 100


def speedup_percent(native: float, optimised: float) -> float:
    """Return (optimised / native - 1) x 100, of throughputs."""
    return (optimised / native - 1) * 100


def hours_per_epoch(hours: float, epochs: float) -> float:
    """Return *hours* / *epochs*."""
    return hours / epochs


def reduction_ratio(native: float, optimised: float) -> float:
    """Return native / optimised, of two times: how many times faster."""
    return native / optimised


def overhead_s(latencies_s: Sequence[float]) -> float:
    """Return what the first epoch took longer than the last: what compiling, tracing and filling caches cost."""
    return latencies_s[0] - latencies_s[-1]


def find_break_even(native_s: Sequence[float], optimised_s: Sequence[float]) -> BreakEven:
    """Return the first epoch (counted from 1) at whose end the optimised job is ahead, and stays so.

    Both jobs are taken to go on with the latency of their last epoch.
    """
    behind, last = 0, min(len(native_s), len(optimised_s))
    lead_s = 0.0
    for index in range(last):
        lead_s += native_s[index] - optimised_s[index]
        if lead_s <= 0:
            behind = index + 1
    if behind < last:
        return BreakEven(number=behind + 1, measured=True)
    gain_s = native_s[-1] - optimised_s[-1]
    if gain_s <= 0:
        return BreakEven(number=None, measured=False)
    return BreakEven(number=last + math.floor(-lead_s / gain_s) + 1, measured=False)


def bootstrap_savings(native: Sequence[float], optimised: Sequence[float]) -> Interval | None:
    """Return the interval of the savings in percent between the means of two lists of times; None: too few values.

    A block bootstrap with a fixed seed: the same values give the same interval.
    """
    if min(len(native), len(optimised)) < LEAST:
        return None
    native_means, optimised_means = _average_neighbours(native), _average_neighbours(optimised)
    generator = random.Random(0)
    resampled = sorted(
        savings_percent(
            _mean(generator.choices(native_means, k=len(native_means))),
            _mean(generator.choices(optimised_means, k=len(optimised_means))),
        )
        for _ in range(RESAMPLES)
    )
    return Interval(low=resampled[int(RESAMPLES * 0.025)], high=resampled[int(RESAMPLES * 0.975)])


def bootstrap_mean(differences: Sequence[float]) -> Interval | None:
    """Return the interval of the mean of *differences*, of pairs at the same steps; None: too few."""
    if len(differences) < LEAST:
        return None
    means = _average_neighbours(differences)
    generator = random.Random(0)
    resampled = sorted(_mean(generator.choices(means, k=len(means))) for _ in range(RESAMPLES))
    return Interval(low=resampled[int(RESAMPLES * 0.025)], high=resampled[int(RESAMPLES * 0.975)])


def _average_neighbours(values: Sequence[float]) -> list[float]:
    """Return the means of at most BLOCKS runs of neighbours, all about as long."""
    count = min(BLOCKS, len(values))
    edges = [number * len(values) // count for number in range(count + 1)]
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
