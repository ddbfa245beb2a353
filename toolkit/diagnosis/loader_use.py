"""Explains what the workers of the data loader do while the steps wait for them, and what to change."""

from bisect import bisect_left, bisect_right
from math import isfinite, nan
from typing import Literal

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.first_steps import FirstSteps
from toolkit.diagnosis.numbers import mean, measured
from toolkit.diagnosis.shared_machine import ITS_OWN_CORES, OTHERS, others_percent, sum_ranks
from toolkit.diagnosis.units import format_value
from toolkit.records import Record

# A worker that uses this much of a core is busy. Below it, it waits: for a core, or for the disk.
BUSY = 70.0
# Cores that are this busy leave nothing for another worker.
FULL = 90.0
# As CPUThrottling: the quota stops the workers in this share of the kernel's periods.
THROTTLED = 10.0
# The disk is named from this I/O wait on, or from these waits of any task for it (pressure), where the ranks read so
# much of it that it is theirs; or where they read a lot of it and hardly compute.
IOWAIT, IO_PRESSURE, READS_PER_S = 5.0, 15.0, 1e6
MANY_READS_PER_S = 1e7
# Workers start anew in each epoch: so many starts were seen for each worker that ran at a time.
RESTARTS = 2

# Why the steps wait. Another worker helps where the workers are busy, or wait for something that is no core.
Reason = Literal["epochs", "disk", "none", "unknown", "full", "busy", "throttled", "crowded", "waiting"]
MORE_WORKERS_HELP = ("busy", "waiting")


class LoaderUse(Record, frozen=True, kw_only=True):
    """The processes that ran from one step to another. NaN: not measured. Percentages are of one core unless noted."""

    cores: int  # The number of cores, 0 if not known.
    workers: float  # The most loader workers at one time, of all ranks.
    starts: float  # The workers that began since the ranks' start.
    loader_percent: float  # CPU of all workers while there were any.
    each_percent: float  # CPU of one worker.
    ranks_percent: float  # CPU of the ranks with their children.
    all_percent: float  # Use of all cores, in percent of all.
    others_percent: float  # Use by other processes than the ranks, in percent of all cores.
    iowait_percent: float  # Wait for the disk, in percent of all cores' time.
    io_pressure_percent: float  # Time in which any task waited for I/O.
    disk_read_bytes_per_s: float  # What the ranks and their children had read from disks.
    throttled_percent: float  # Share of the kernel's periods in which the CPU quota stopped the container.


class WaitReason(Record, frozen=True, kw_only=True):
    """The reason for which the steps wait, as a sentence, and one change to try."""

    reason: Reason
    text: str
    change: str


def use(evidence: Evidence, start_s: float, end_s: float) -> LoaderUse:
    """Return what ran from *start_s* to *end_s*: the start of the job, without workers, is no part of any mean."""
    part = slice(bisect_left(evidence.times_s, start_s), bisect_right(evidence.times_s, end_s))
    cores = len(evidence.cores()) or evidence.machine.cores or 0
    counts = sum_ranks(evidence, "loader_workers")[part]
    loader = sum_ranks(evidence, "loader_cpu_percent")[part]
    running = [(used, count) for used, count in zip(loader, counts, strict=False) if used == used and count > 0]
    ranks = mean(sum_ranks(evidence, "cpu_percent")[part])
    used = mean(evidence.column("cpu/all/used_percent")[part])
    return LoaderUse(
        cores=cores,
        workers=_most(evidence, "loader_workers"),
        starts=_most(evidence, "loader_starts"),
        loader_percent=mean(used for used, _ in running),
        each_percent=sum(used for used, _ in running) / sum(count for _, count in running) if running else nan,
        ranks_percent=ranks,
        all_percent=used,
        others_percent=others_percent(evidence, start_s, end_s),
        iowait_percent=mean(evidence.column("cpu/all/iowait_percent")[part]),
        io_pressure_percent=mean(evidence.column("pressure/io/some_percent")[part]),
        disk_read_bytes_per_s=mean(sum_ranks(evidence, "disk_read_bytes_per_s")[part]),
        throttled_percent=mean(evidence.column("cpu/all/throttled_percent")[part]),
    )


def explain_wait(use: LoaderUse, pattern: FirstSteps | None) -> WaitReason:
    """Return why the steps wait. *pattern*: the wait is in the first steps of the epochs."""
    if pattern is not None:
        return _at_epochs(use, pattern)
    if waits_for_disk(use):
        return _at_disk(use)
    if use.workers == 0:
        cpu = f" (the ranks use {use.ranks_percent:.0f} % of a core)" if isfinite(use.ranks_percent) else ""
        return WaitReason(
            reason="none",
            text=f"No loader worker was seen: the rank loads the data itself, between the steps{cpu}.",
            change="Give the DataLoader workers (num_workers, persistent_workers=True), so that loading and steps"
            " overlap.",
        )
    if not isfinite(use.each_percent):
        return WaitReason(
            reason="unknown",
            text="What the loader does meanwhile was not measured.",
            change="Give the DataLoader workers (num_workers, persistent_workers=True) if it has none; with the system"
            " monitor on, this says what they do.",
        )
    return _of_workers(use)


def waits_for_disk(use: LoaderUse) -> bool:
    """Return whether the disk is what the ranks' loading waits for."""
    if use.each_percent >= BUSY:
        return False
    waits = use.iowait_percent >= IOWAIT or use.io_pressure_percent >= IO_PRESSURE
    reads_alone = use.disk_read_bytes_per_s >= MANY_READS_PER_S and use.ranks_percent < BUSY
    return reads_alone or (waits and use.disk_read_bytes_per_s >= READS_PER_S)


def _at_disk(use: LoaderUse) -> WaitReason:
    signs = [
        f"the cores waited for it for {use.iowait_percent:.0f} % of the time" if use.iowait_percent >= IOWAIT else "",
        f"some task did for {use.io_pressure_percent:.0f} %" if use.io_pressure_percent >= IO_PRESSURE else "",
        f"the ranks used {use.ranks_percent:.0f} % of a core meanwhile" if use.ranks_percent < BUSY else "",
    ]
    rate = format_value(use.disk_read_bytes_per_s, "bytes/s")
    return WaitReason(
        reason="disk",
        text=f"The data is read from a disk that is too slow, at {rate}: {', '.join(filter(None, signs))}.",
        change="Keep the data on a faster disk or in memory (/dev/shm, the page cache), in fewer and larger files, or"
        " read ahead with loader workers.",
    )


def worker_count_text(workers: float) -> str:
    """Return "1 loader worker", "2 loader workers"."""
    return f"{workers:.0f} loader worker{'' if round(workers) == 1 else 's'}"


def _of_workers(use: LoaderUse) -> WaitReason:
    is_single = round(use.workers) == 1
    they, are = ("it", "is") if is_single else ("they", "are")
    uses, together = ("uses", "") if is_single else ("use", " together")
    who = worker_count_text(use.workers)
    if use.each_percent >= BUSY:
        text = f"{who} {uses} {use.loader_percent:.0f} % of a core{together}: {they} {are} busy"
        if use.all_percent >= FULL:
            change = "Decode and augment less, or ahead of the job, or take a machine with more cores: all are busy."
            if use.others_percent >= OTHERS:
                change = ITS_OWN_CORES
            return WaitReason(reason="full", text=f"{text}, as all cores are.", change=change)
        many = f"about {use.cores} workers" if use.cores else "a worker for each core"
        change = f"Set num_workers so that all ranks together have {many}, as long as cores are idle; then decode less."
        return WaitReason(reason="busy", text=f"{text}.", change=change)
    text = f"{who} {uses} only {use.loader_percent:.0f} % of a core{together}: "
    if use.throttled_percent >= THROTTLED:
        workers = "it" if is_single else "them"
        text += f"the container's CPU quota stops {workers} ({use.throttled_percent:.0f} % of the time)."
        return WaitReason(
            reason="throttled", text=text, change="Raise the container's CPU limit, or load with less CPU time."
        )
    if use.all_percent >= FULL and use.others_percent >= OTHERS:
        text += (
            f"other processes hold the cores, which are busy for {use.all_percent:.0f} % of the time, with"
            f" processes that are no ranks for {use.others_percent:.0f} %."
        )
        return WaitReason(reason="crowded", text=text, change=ITS_OWN_CORES)
    disk = ""
    if use.iowait_percent >= IOWAIT:
        disk = f", and the cores wait for the disk for {use.iowait_percent:.0f} % of the time"
    return WaitReason(
        reason="waiting",
        text=f"{text}{they} {'waits' if is_single else 'wait'} for something else{disk}.",
        change="Keep the data on a local disk or in memory, in fewer and larger files; or set num_workers to more:"
        " workers that wait need no core.",
    )


def _at_epochs(use: LoaderUse, pattern: FirstSteps) -> WaitReason:
    wait_text = (
        f"{100 * pattern.share:.0f} % of the wait is in one step of {pattern.period}, as in the first step of each"
        " epoch"
    )
    if use.workers > 0 and not use.starts < RESTARTS * use.workers:
        starts_text = (
            f" ({use.starts:.0f} starts of at most {use.workers:.0f} at a time were seen)" if use.starts > 0 else ""
        )
        return WaitReason(
            reason="epochs",
            text=f"{wait_text}: the loader workers start anew in each epoch{starts_text}.",
            change="Set num_workers to 0 or 1, or persistent_workers=True with a DataLoader that all epochs share.",
        )
    return WaitReason(
        reason="epochs",
        text=f"{wait_text}: the loader starts each epoch slowly.",
        change="Make the dataset and the DataLoader once, before the first epoch; look at what its sampler does then.",
    )


def _most(evidence: Evidence, metric: str) -> float:
    """Return the sum over the ranks of the most that each had, NaN if none was measured."""
    columns = evidence.columns("rank", metric)
    return sum(max(measured(values)) for values in columns.values()) if columns else nan
