"""Chooses the part of the samples that a rule judges, if there are enough of them."""

from bisect import bisect_left, bisect_right

from toolkit.diagnosis.evidence import Evidence
from toolkit.records import Record

# With fewer samples nothing is judged.
FEWEST = 10
# A live patience, in samples, where steps are measured and the job has left its start behind. The Debugger's 1000
# stand for a start-up of unknown length.
LIVE_WITH_STEPS = 120
STEPS_OF_A_START = 20
# Without steps, the first samples are left out: as many as the patience, at most this share of the job.
START_SHARE = 0.25


class EvidenceSpan(Record, frozen=True, kw_only=True):
    """The part of the samples that a rule judges: the values first:last of every column."""

    first: int  # The index of the first value.
    last: int  # The index after the last value.
    start_s: float  # Since the epoch.
    end_s: float  # Since the epoch.
    samples: int  # Samples since the training began, also before the first known value.
    note: str = ""  # A patience that was scaled.


def training(evidence: Evidence, patience: int, *, is_user_set: bool, window: int | None = None) -> EvidenceSpan | None:
    """Return the part of *evidence* in which the job trained, None if it is too early to judge.

    With measured steps that is from the end of the first one; a finished job's ends with the last one. *patience*:
    samples that must have been taken by then; *is_user_set*: the user set it, otherwise it is scaled: to a quarter of a
    finished job, or to LIVE_WITH_STEPS samples. *window*: of a running job, only so many samples, the newest.
    """
    if not evidence.times_s:
        return None
    first_step_s, last_step_s = evidence.first_step_s(), evidence.last_step_s()
    elapsed_s = evidence.end_s - evidence.start_s
    if first_step_s is None:
        start_s = evidence.start_s + min(patience * evidence.interval_s, START_SHARE * elapsed_s)
    else:
        start_s = first_step_s
    end_s = last_step_s if evidence.is_over and last_step_s is not None else evidence.end_s
    taken_since_s = evidence.start_s if first_step_s is None else start_s
    samples = int((end_s - taken_since_s) / evidence.interval_s + 1e-6)
    needed = patience if is_user_set else _scaled(evidence, patience, samples)
    if samples < needed or samples < FEWEST:
        return None
    if window is not None and not evidence.is_over:
        start_s = max(start_s, end_s - window * evidence.interval_s)
    first, last = bisect_left(evidence.times_s, start_s), bisect_right(evidence.times_s, end_s)
    if end_s < evidence.end_s:
        last -= 1  # A mean that began before the last step's end also holds what came after it: the end of the ranks.
    if last <= first:
        return None
    return EvidenceSpan(
        first=first,
        last=last,
        start_s=max(start_s, evidence.times_s[first]),
        end_s=end_s,
        samples=samples,
        note="" if needed == patience else _note(evidence, patience, needed, samples),
    )


def scaled_steps(evidence: Evidence, patience: int, steps: int, *, is_user_set: bool, fewest: int) -> tuple[int, str]:
    """Return how many steps a rule needs, and the note on it: *patience*, or less of a finished, short job."""
    if is_user_set or not evidence.is_over or steps >= patience:
        return patience, ""
    needed = min(patience, max(fewest, steps // 4))
    return needed, f"The job had {steps} steps: patience was scaled from {patience} steps to {needed}."


def _scaled(evidence: Evidence, patience: int, samples: int) -> int:
    if evidence.is_over:
        return min(patience, max(FEWEST, int(samples * START_SHARE)))
    has_left_start = any(len(steps.end_s) >= STEPS_OF_A_START for steps in evidence.steps.values())
    return min(patience, LIVE_WITH_STEPS) if has_left_start else patience


def _note(evidence: Evidence, patience: int, needed: int, samples: int) -> str:
    if evidence.is_over:
        return f"The job had {samples} samples: patience was scaled from {patience} samples to {needed}."
    return f"Steps are measured, so the start is known: patience is {needed} samples instead of {patience}."
