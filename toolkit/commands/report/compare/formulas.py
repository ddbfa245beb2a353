"""Pure: the formulas of `toolkit compare`, each as AWS's notebooks for the Training Compiler have it where they do.

Savings and speed-ups are in percent of the first job; a negative one is a loss.
"""

import math
from collections.abc import Sequence

from toolkit.records import Record


class BreakEven(Record, frozen=True, kw_only=True):
    """The epoch or step from which on the second job has taken less time in all.

    `number`: counted from 1; None: never, at these latencies. `measured` False: both jobs ended before it, and `number`
    assumes that their steady latencies go on.
    """

    number: int | None
    measured: bool


def savings_percent(first: float, second: float) -> float:
    """Return (first - second) / first x 100."""
    return (first - second) / first * 100


def speedup_percent(first: float, second: float) -> float:
    """Return (second / first - 1) x 100, of throughputs."""
    return (second / first - 1) * 100


def hours_per_epoch(hours: float, epochs: float) -> float:
    """Return *hours* / *epochs*."""
    return hours / epochs


def reduction_ratio(first: float, second: float) -> float:
    """Return first / second, of two times: how many times faster."""
    return first / second


def overhead_s(latencies_s: Sequence[float]) -> float:
    """Return what the first epoch took longer than the later ones in the mean: what compiling, tracing and filling
    caches cost."""
    return latencies_s[0] - _mean(latencies_s[1:])


def find_break_even(first_s: Sequence[float], second_s: Sequence[float]) -> BreakEven:
    """Return the first epoch (counted from 1) at whose end the second job is ahead, and stays so.

    Both jobs are taken to go on with the mean latency of their epochs but the first.
    """
    behind, last = 0, min(len(first_s), len(second_s))
    lead_s = 0.0
    for index in range(last):
        lead_s += first_s[index] - second_s[index]
        if lead_s <= 0:
            behind = index + 1
    if behind < last:
        return BreakEven(number=behind + 1, measured=True)
    gain_s = _mean(first_s[1:]) - _mean(second_s[1:])
    if gain_s <= 0:
        return BreakEven(number=None, measured=False)
    return BreakEven(number=last + math.floor(-lead_s / gain_s) + 1, measured=False)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
