"""Detects waits for data in few steps at regular distances: the first ones of the epochs."""

from collections.abc import Sequence
from itertools import pairwise

from toolkit.diagnosis.numbers import median
from toolkit.records import Record

# The longest waits that hold this share of all the wait are the long ones, and those half as long as their median.
HELD = 0.7
# Long waits are few: at most this share of the steps.
MOST = 0.2
FEWEST = 4
# Distances that are a multiple of the period; by a step more or less where an epoch has this many steps.
REGULAR = 0.8
LONG_PERIOD = 10


class FirstSteps(Record, frozen=True, kw_only=True):
    """`period`: steps from one long wait to the next. `share`: of the wait, that the long ones hold, 0 to 1."""

    period: int
    share: float
    count: int


def first_steps(waits: Sequence[float]) -> FirstSteps | None:
    """Return where the *waits* of consecutive steps are long, None if they are not at regular distances."""
    total = sum(waits)
    if total <= 0:
        return None
    longest, sum_s = [], 0.0
    for wait in sorted(waits, reverse=True):
        longest.append(wait)
        sum_s += wait
        if sum_s >= HELD * total:
            break
    limit = median(longest) / 2
    places = [place for place, wait in enumerate(waits) if wait >= limit]
    if not FEWEST <= len(places) <= MOST * len(waits):
        return None
    distances = [later - earlier for earlier, later in pairwise(places)]
    period = sorted(distances)[len(distances) // 2]
    slack = 1 if period >= LONG_PERIOD else 0
    regular = sum(
        min(distance % period, period - distance % period) <= slack and distance >= period - slack
        for distance in distances
    )
    if period < 1 / MOST or regular < REGULAR * len(distances):
        return None
    return FirstSteps(period=period, share=sum(waits[place] for place in places) / total, count=len(places))
