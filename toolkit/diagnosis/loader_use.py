"""What the workers of the data loader do while the steps wait for them, and what to change."""

from bisect import bisect_left, bisect_right
from math import isfinite, nan
from typing import Literal

from toolkit.diagnosis.evidence import Evidence, Values
from toolkit.diagnosis.first_steps import FirstSteps
from toolkit.diagnosis.numbers import mean, measured
from toolkit.records import Record

# A worker that uses this much of a core is busy. Below it, it waits: for a core, or for the disk.
BUSY = 70.0
# Cores that are this busy leave nothing for another worker.
FULL = 90.0
# From this share of the cores' time on, other processes than the ranks are why there is no core.
OTHERS = 25.0
# As CPUThrottling: the quota stops the workers in this share of the kernel's periods.
THROTTLED = 10.0
# The disk is named from this I/O wait on.
IOWAIT = 5.0
# Workers start anew in each epoch: so many starts were seen for each worker that ran at a time.
RESTARTS = 2

ITS_OWN_CORES = "Give the job cores of its own, or end the other processes."

# Why the steps wait. Another worker helps where the workers are busy, or wait for something that is no core.
Reason = Literal["epochs", "none", "unknown", "full", "busy", "throttled", "crowded", "waiting"]
MORE_WORKERS_HELP = ("busy", "waiting")


class Use(Record, frozen=True, kw_only=True):
    """What ran from one step to another. NaN: not measured.

    `workers`: the most at one time, of all ranks; `starts`: how many began since the ranks' start. `loader_percent`:
    CPU of the workers while there were any, `each_percent`: of one of them, `ranks_percent`: of the ranks with their
    children, all in percent of one core; `all_percent`, `others_percent`: use of all cores, and by other processes
    than the ranks, in percent of all cores.
    """

    cores: int
    workers: float
    starts: float
    loader_percent: float
    each_percent: float
    ranks_percent: float
    all_percent: float
    others_percent: float
    iowait_percent: float
    throttled_percent: float


class Why(Record, frozen=True, kw_only=True):
    """Why the steps wait, as a sentence, and one change to try."""

    reason: Reason
    text: str
    change: str


def use(evidence: Evidence, start_s: float, end_s: float) -> Use:
    """Return what ran from *start_s* to *end_s*: the start of the job, without workers, is no part of any mean."""
    part = slice(bisect_left(evidence.times_s, start_s), bisect_right(evidence.times_s, end_s))
    cores = len(evidence.cores()) or evidence.machine.cores or 0
    counts = _sums(evidence, "loader_workers", part)
    loader = _sums(evidence, "loader_cpu_percent", part)
    running = [(used, count) for used, count in zip(loader, counts, strict=False) if used == used and count > 0]
    ranks = mean(_sums(evidence, "cpu_percent", part))
    used = mean(evidence.column("cpu/all/used_percent")[part])
    return Use(
        cores=cores,
        workers=_most(evidence, "loader_workers"),
        starts=_most(evidence, "loader_starts"),
        loader_percent=mean(used for used, _ in running),
        each_percent=sum(used for used, _ in running) / sum(count for _, count in running) if running else nan,
        ranks_percent=ranks,
        all_percent=used,
        others_percent=used - ranks / cores if cores else nan,
        iowait_percent=mean(evidence.column("cpu/all/iowait_percent")[part]),
        throttled_percent=mean(evidence.column("cpu/all/throttled_percent")[part]),
    )


def why(of: Use, at: FirstSteps | None) -> Why:
    """Return why the steps wait. *at*: the wait is in the first steps of the epochs."""
    if at is not None:
        return _at_epochs(of, at)
    if of.workers == 0:
        cpu = f" (the ranks use {of.ranks_percent:.0f} % of a core)" if isfinite(of.ranks_percent) else ""
        return Why(
            reason="none",
            text=f"No loader worker was seen: the rank loads the data itself, between the steps{cpu}.",
            change="Give the DataLoader workers (num_workers, persistent_workers=True), so that loading and steps"
            " overlap.",
        )
    if not isfinite(of.each_percent):
        return Why(
            reason="unknown",
            text="What the loader does meanwhile was not measured.",
            change="Give the DataLoader workers (num_workers, persistent_workers=True) if it has none; with the system"
            " monitor on, this says what they do.",
        )
    return _of_workers(of)


def counted(workers: float) -> str:
    """Return "1 loader worker", "2 loader workers"."""
    return f"{workers:.0f} loader worker{'' if round(workers) == 1 else 's'}"


def _of_workers(of: Use) -> Why:
    one = round(of.workers) == 1
    they, are = ("it", "is") if one else ("they", "are")
    uses, together = ("uses", "") if one else ("use", " together")
    who = counted(of.workers)
    if of.each_percent >= BUSY:
        text = f"{who} {uses} {of.loader_percent:.0f} % of a core{together}: {they} {are} busy"
        if of.all_percent >= FULL:
            change = "Decode and augment less, or ahead of the job, or take a machine with more cores: all are busy."
            if of.others_percent >= OTHERS:
                change = ITS_OWN_CORES
            return Why(reason="full", text=f"{text}, as all cores are.", change=change)
        many = f"about {of.cores} workers" if of.cores else "a worker for each core"
        change = f"Set num_workers so that all ranks together have {many}, as long as cores are idle; then decode less."
        return Why(reason="busy", text=f"{text}.", change=change)
    text = f"{who} {uses} only {of.loader_percent:.0f} % of a core{together}: "
    if of.throttled_percent >= THROTTLED:
        text += f"the container's CPU quota stops {'it' if one else 'them'} ({of.throttled_percent:.0f} % of the time)."
        return Why(reason="throttled", text=text, change="Raise the container's CPU limit, or load with less CPU time.")
    if of.all_percent >= FULL and of.others_percent >= OTHERS:
        text += (
            f"other processes hold the cores, which are busy for {of.all_percent:.0f} % of the time, with"
            f" processes that are no ranks for {of.others_percent:.0f} %."
        )
        return Why(reason="crowded", text=text, change=ITS_OWN_CORES)
    disk = ""
    if of.iowait_percent >= IOWAIT:
        disk = f", and the cores wait for the disk for {of.iowait_percent:.0f} % of the time"
    return Why(
        reason="waiting",
        text=f"{text}{they} {'waits' if one else 'wait'} for something else{disk}.",
        change="Keep the data on a local disk or in memory, in fewer and larger files; or set num_workers to more:"
        " workers that wait need no core.",
    )


def _at_epochs(of: Use, at: FirstSteps) -> Why:
    where = f"{100 * at.share:.0f} % of the wait is in one step of {at.period}, as in the first step of each epoch"
    if of.workers > 0 and not of.starts < RESTARTS * of.workers:
        seen = f" ({of.starts:.0f} starts of at most {of.workers:.0f} at a time were seen)" if of.starts > 0 else ""
        return Why(
            reason="epochs",
            text=f"{where}: the loader workers start anew in each epoch{seen}.",
            change="Set num_workers to 0 or 1, or persistent_workers=True with a DataLoader that all epochs share.",
        )
    return Why(
        reason="epochs",
        text=f"{where}: the loader starts each epoch slowly.",
        change="Make the dataset and the DataLoader once, before the first epoch; look at what its sampler does then.",
    )


def _most(evidence: Evidence, metric: str) -> float:
    """Return the sum over the ranks of the most that each had, NaN if none was measured."""
    columns = evidence.columns("rank", metric)
    return sum(max(measured(values)) for values in columns.values()) if columns else nan


def _sums(evidence: Evidence, metric: str, part: slice) -> Values:
    """Return the sum over the ranks at each time, NaN where none was measured."""
    rows = zip(*(values[part] for values in evidence.columns("rank", metric).values()), strict=True)
    return [sum(known) if (known := measured(row)) else nan for row in rows]
