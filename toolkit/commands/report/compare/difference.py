"""Pure: the one statistic of `toolkit compare`: how much less time one side takes than the other, and its interval.

A side has one run or several. Its time is the geometric mean of its runs' seconds over the steps (or epochs) that all
runs have; the estimate is the ratio of the two sides' times, and the interval is built around this same estimate, so
that the two cannot contradict each other. What the interval holds:

- From three runs a side on, how much the runs of a side differ: Student's interval of two means, with the variance of
  both sides pooled. Runs are the units, since steps of one run resemble each other more than those of two runs
  (T. Kalibera, R. Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013, section 6).
- With fewer runs, the noise within the runs, by deleting one block of neighbouring steps after the other (the block
  jackknife: H. R. Künsch, "The Jackknife and the Bootstrap for General Stationary Observations", Annals of Statistics
  17, 1989), and how much two runs of an equal job differ besides, which a single run cannot know: `deviation`. Both
  runs are cut at the same steps, so that an evaluation every 50th step is no noise. Neighbouring blocks may still
  resemble each other; of several lengths of blocks, the one with the widest interval is taken.

The two parts have their own degrees of freedom, which Welch and Satterthwaite's formula joins.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from toolkit.records import Record

BLOCKS = (20, 10, 5)  # Into so many blocks the steps are cut.
LEAST = 4  # Values of each run, below which there is no interval.
OWN_SPREAD = 3  # From so many runs a side on, their own spread is the noise.
LEAST_DEVIATION = 0.005  # Runs that happen to be alike: no machine repeats a time better.
DEVIATION_FREEDOM = 8  # Degrees of freedom of a deviation that other jobs gave.
# Student's quantiles for 95 %, by the degrees of freedom from 1 on; beyond, the normal distribution's is near enough.
# fmt: off
_STUDENT = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13,
    2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04,
)
# fmt: on


class Difference(Record, frozen=True, kw_only=True):
    """The savings of the second side, in percent of the first; negative: it takes more."""

    saved: float
    """The estimate."""
    low: float
    """The lower end of its 95 % interval."""
    high: float
    """The upper end."""

    @property
    def is_certain(self) -> bool:
        """True if the interval does not hold 0."""
        return self.low > 0 or self.high < 0


def compare_sides(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], deviation: float
) -> Difference | None:
    """Return the difference between two sides, each a sequence of runs, each run its seconds over the same steps.

    *deviation*: by how much two runs of one job differ, as the standard deviation of the logarithm of a run's time.
    None: there are too few values, or none is above 0.
    """
    runs = (*first, *second)
    count = min((len(run) for run in runs), default=0)
    if count < LEAST or min(math.fsum(run) for run in runs) <= 0:
        return None
    logarithms = [[math.log(math.fsum(run)) for run in side] for side in (first, second)]
    change = _mean(logarithms[1]) - _mean(logarithms[0])
    share = 1 / len(first) + 1 / len(second)
    if min(len(first), len(second)) >= OWN_SPREAD:
        freedom = len(runs) - 2
        squares = math.fsum((value - _mean(side)) ** 2 for side in logarithms for value in side)
        between = max(squares / freedom, LEAST_DEVIATION**2) * share
        return _make_difference(change, _get_quantile(freedom) * math.sqrt(between))
    between = deviation**2 * share
    half = max(_compute_half_width(first, second, min(blocks, count), between) for blocks in BLOCKS)
    return _make_difference(change, half)


def compute_mean_interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the mean of *values*, neighbours of which resemble each other, and its 95 % interval; None: too few."""
    if len(values) < LEAST:
        return None
    half = 0.0
    for blocks in BLOCKS:
        means = [_mean(values[start:end]) for start, end in _cut(len(values), min(blocks, len(values)))]
        variance = math.fsum((mean - _mean(means)) ** 2 for mean in means) / (len(means) - 1) / len(means)
        half = max(half, _get_quantile(len(means) - 1) * math.sqrt(variance))
    mean = _mean(values)
    return mean, mean - half, mean + half


def _compute_half_width(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], blocks: int, between: float
) -> float:
    """Return half the interval's width, of the logarithm, with the steps cut into so many *blocks*."""
    edges = _cut(min(len(run) for run in (*first, *second)), blocks)
    without = [[_log_without(run, start, end) for run in (*first, *second)] for start, end in edges]
    if any(math.isinf(value) for values in without for value in values):
        return math.inf  # All of a run's time lies in one block.
    changes = [_mean(values[len(first) :]) - _mean(values[: len(first)]) for values in without]
    within = (blocks - 1) / blocks * math.fsum((change - _mean(changes)) ** 2 for change in changes)
    total = within + between
    if not total:
        return 0.0
    freedom = total**2 / (within**2 / (blocks - 1) + between**2 / DEVIATION_FREEDOM)
    return _get_quantile(freedom) * math.sqrt(total)


def _log_without(run: Sequence[float], start: int, end: int) -> float:
    rest = math.fsum(run[:start]) + math.fsum(run[end:])
    return math.log(rest) if rest > 0 else -math.inf


def _cut(count: int, blocks: int) -> list[tuple[int, int]]:
    return list(pairwise(number * count // blocks for number in range(blocks + 1)))


def _make_difference(change: float, half: float) -> Difference:
    return Difference(saved=_percent(change), low=_percent(change + half), high=_percent(change - half))


def _percent(change: float) -> float:
    """Return the savings of which *change* is the logarithm."""
    return -math.inf if change > 700 else (1 - math.exp(change)) * 100


def _get_quantile(freedom: float) -> float:
    return _STUDENT[max(int(freedom), 1) - 1] if freedom <= len(_STUDENT) else 2.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
