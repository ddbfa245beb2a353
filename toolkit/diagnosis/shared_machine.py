"""Whose is it: what the ranks used of the cores and the disks, what other programs did, and the findings that this
qualifies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.numbers import mean, measured
from toolkit.series.finding import Finding

# From this share of the cores' time on, times may be those of other programs.
OTHERS = 25.0
# What the ranks use less than this share of is not theirs.
OWN_SHARE = 0.5
# The subject of a finding whose text says that other programs are the cause.
OTHER_PROGRAMS = "other programs"
ITS_OWN_CORES = "Give the job cores of its own, or end the other processes."


def others_percent(evidence: Evidence, start_s: float, end_s: float) -> float:
    """Return what processes that are no ranks of the job (nor their children) used from *start_s* to *end_s*, in
    percent of all cores; NaN: not measured."""
    cores = len(evidence.cores()) or evidence.machine.cores or 0
    if not cores or (evidence.machine.has_neighbours and not evidence.neighbours):
        return float("nan")
    used = _ranks_percent(evidence, start_s, end_s)
    # A neighbour's ranks may not have been measured then: they used nothing that is known.
    used += sum(measured(_ranks_percent(neighbour, start_s, end_s) for neighbour in evidence.neighbours))
    part = _part(evidence, start_s, end_s)
    return max(mean(evidence.column("cpu/all/used_percent")[part]) - used / cores, 0.0)


def own_cpu(evidence: Evidence, part: slice) -> Values:
    """Return what the ranks, with those of the job's other hosts on this machine, used at each sample of *part*, in
    percent of all cores; empty: not measured."""
    cores = len(evidence.cores()) or evidence.machine.cores or 0
    if not cores or (evidence.machine.has_neighbours and not evidence.neighbours):
        return ()
    used = sum_ranks(evidence, "cpu_percent")[part]
    for neighbour in evidence.neighbours:
        theirs = sum_ranks(neighbour, "cpu_percent")
        if theirs and used:
            times_s = evidence.times_s[part]
            nearest = [theirs[min(bisect_left(neighbour.times_s, at_s), len(theirs) - 1)] for at_s in times_s]
            used = [own + other if other == other else own for own, other in zip(used, nearest, strict=True)]
    return [value / cores for value in used]


def sum_ranks(evidence: Evidence, metric: str) -> Values:
    """Return the sum of *metric* over the ranks at each sample, NaN where none was measured; empty: none ever was."""
    rows = zip(*evidence.columns("rank", metric).values(), strict=True)
    return [sum(values) if (values := measured(row)) else float("nan") for row in rows]


def is_crowded(evidence: Evidence) -> bool:
    """Return whether other programs held a large part of the cores while the job trained."""
    return _held(evidence) >= OTHERS if evidence.is_crowded is None else evidence.is_crowded


def qualify(evidence: Evidence, findings: Sequence[Finding]) -> list[Finding]:
    """Return *findings*, those about time with a word on other programs if they held a large part of the cores: the
    one that cost most says so in its text, the others in their notes."""
    timed = [finding for finding in findings if finding.lost_s is not None]
    held = _held(evidence) if timed else 0.0
    if not held >= OTHERS:
        return list(findings)
    costliest = max(timed, key=lambda finding: finding.lost_s or 0.0)
    first = None if costliest.subject == OTHER_PROGRAMS else costliest  # Else its text says so.
    words = f"Other programs held {held:.0f} % of the cores meanwhile: part of any time on this host may be theirs."
    return [
        msgspec.structs.replace(finding, text=f"{finding.text} {words}")
        if finding is first
        else msgspec.structs.replace(finding, note=f"{finding.note} {words}".lstrip())
        if finding.lost_s is not None and finding.subject != OTHER_PROGRAMS
        else finding
        for finding in findings
    ]


def _held(evidence: Evidence) -> float:
    first_s, last_s = evidence.first_step_s(), evidence.last_step_s()
    return others_percent(
        evidence, evidence.start_s if first_s is None else first_s, evidence.end_s if last_s is None else last_s
    )


def _ranks_percent(evidence: Evidence, start_s: float, end_s: float) -> float:
    """Return what the ranks used, in percent of one core."""
    return mean(sum_ranks(evidence, "cpu_percent")[_part(evidence, start_s, end_s)])


def _part(evidence: Evidence, start_s: float, end_s: float) -> slice:
    return slice(bisect_left(evidence.times_s, start_s), bisect_right(evidence.times_s, end_s))
