"""Finds the busy cores, with their use, as findings name them."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.numbers import mean
from toolkit.diagnosis.rule import percent
from toolkit.series.finding import Number

BUSY = 90.0
# More cores than this are counted, not named.
NAMED = 8

Used = tuple[str, float]  # "core0" and its mean use in percent


def busy_cores(evidence: Evidence, start_s: float, end_s: float) -> list[Used]:
    """Return the cores whose mean use from *start_s* to *end_s* is above BUSY, by number."""
    part = slice(bisect_left(evidence.times_s, start_s), bisect_right(evidence.times_s, end_s))
    used = [(name, mean(evidence.column(f"cpu/{name}/used_percent")[part])) for name in evidence.cores()]
    return [core for core in used if core[1] > BUSY]


def names_text(cores: Sequence[Used]) -> str:
    """Return "core0 99 %, core1 98 %", "" of none."""
    more = f" and {len(cores) - NAMED} more" if len(cores) > NAMED else ""
    return ", ".join(f"{name} {value:.0f} %" for name, value in cores[:NAMED]) + more


def numbers(cores: Sequence[Used], formula: str) -> list[Number]:
    """Return a number for each of the first *cores*."""
    return [percent(name, value, formula) for name, value in cores[:NAMED]]
