"""Pure: decides the first words of a comparison, and refuses where two sides cannot be compared."""

from collections.abc import Iterator
from typing import Literal

from toolkit.commands.report.compare.difference import Difference
from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.compare.savings import LEAST_EPOCHS, LEAST_STEPS, Savings, describe_difference
from toolkit.commands.report.model import Tone
from toolkit.records import Record

ALIKE = 10.0  # Percent: if the whole interval lies within it, the sides are called equal.
# How a job ended that did not succeed, behind its name.
ENDS = {
    "failed": "failed",
    "stopped": "was stopped",
    "running": "still runs",
    "unfinished": "ended without a report",
}
Status = Literal["faster", "slower", "no difference", "not conclusive", "not comparable"]
TONES: dict[Status, Tone] = {
    "faster": "good",
    "slower": "warn",
    "no difference": "plain",
    "not conclusive": "warn",
    "not comparable": "warn",
}
ONE_RUN = "With one run of a side, a machine that was faster or slower for a while looks the same"
MORE_RUNS = "Three runs of each side, in turns, tell more: toolkit compare A1,A2,A3 B1,B2,B3"


class Verdict(Record, frozen=True, kw_only=True):
    """The first words on one side against the first."""

    status: Status
    """The word in the head."""
    text: str
    """The sentence below it, without a full stop."""

    @property
    def is_claim(self) -> bool:
        """True if it says that one side is the faster one."""
        return self.status in ("faster", "slower")


def decide(first: ComparedJob, other: ComparedJob, savings: Savings) -> Verdict:
    """Return the verdict on *other*."""
    if reasons := list(find_obstacles(first, other)):
        return Verdict(status="not comparable", text=f"{other.label} and {first.label}: {'; '.join(reasons)}")
    difference, unit = savings.main
    if difference is None:
        text = (
            f"{other.label} and {first.label} have neither {LEAST_STEPS} steps nor {LEAST_EPOCHS} epochs with times"
            " in common"
        )
        return Verdict(status="not conclusive", text=text)
    shared = [job for job in (*first.runs, *other.runs) if job.machine.is_shared]
    article = "An" if unit == "epoch" else "A"
    measured = f"{article} {unit} of {other.label} took, against {first.label}, {describe_difference(difference)}"
    if shared:
        most = max(job.machine.others_share or 0.0 for job in shared)
        measured += f"; other programs used up to {100 * most:.0f} % of the cores"
        cpu = "were not measured" if savings.cpu is None else describe_difference(savings.cpu)
        measured += f"; the CPU seconds of its ranks: {cpu}"
    status = classify(difference)
    if status == "not conclusive":
        return Verdict(status=status, text=f"{measured}. {MORE_RUNS}")
    if difference.is_certain and shared and not _agrees(savings.cpu, difference):
        return Verdict(status="not conclusive", text=measured)
    return Verdict(status=status, text=measured)


def classify(difference: Difference) -> Status:
    """Return the word on *difference* alone."""
    if difference.is_certain:
        return "faster" if difference.saved > 0 else "slower"
    return "no difference" if max(abs(difference.low), abs(difference.high)) <= ALIKE else "not conclusive"


def find_obstacles(first: ComparedJob, other: ComparedJob) -> Iterator[str]:
    """Yield why the two sides cannot be compared."""
    runs = (*first.runs, *other.runs)
    for job in runs:
        if job.job.status in ENDS:
            yield f"{job.label} {ENDS[job.job.status]}"
    counts = {len(job.job.hosts) for job in runs}
    if len(counts) > 1:
        yield f"they ran on {len(first.job.hosts)} and {len(other.job.hosts)} hosts"
    for job in runs[1:]:
        machines, base = sorted(job.machine.hosts), sorted(first.machine.hosts)
        if machines and base and machines != base and len(counts) == 1:
            yield f"their hosts differ ({_name_hosts(first)}; {job.label}: {_name_hosts(job)})"
            break
    for name in ("steps", "epochs"):
        yield from _find_cut_off(runs, name)


def _name_hosts(job: ComparedJob) -> str:
    return " and ".join(sorted(set(job.machine.hosts)))


def _find_cut_off(runs: tuple[ComparedJob, ...], name: str) -> Iterator[str]:
    """Yield which of *runs* made fewer steps or epochs than were requested, while another made more."""
    made = [_count_made(job, name) for job in runs]
    most = max((count for count in made if count is not None), default=0.0)
    for job, count in zip(runs, made, strict=True):
        requested = job.requested_steps if name == "steps" else job.requested_epochs
        # The end of a fractional epoch is printed as 2.99; a loop may count from 0.
        if requested is not None and count is not None and count + 1 < min(requested, most):
            yield f"{job.label} made {count:,.0f} of {requested:,.0f} {name}"


def _count_made(job: ComparedJob, name: str) -> float | None:
    if name == "epochs":
        return job.epoch_count
    return float(len(job.step_s)) if job.step_s else None


def _agrees(cpu: Difference | None, wall: Difference) -> bool:
    return cpu is not None and cpu.is_certain and (cpu.saved > 0) == (wall.saved > 0)
