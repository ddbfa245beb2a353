"""Data that comes too late: Dataloader (workers against cores) and DataWait (share of the steps, by what it waits)."""

from collections.abc import Iterator

from toolkit.diagnosis import cores as core_use
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.first_steps import FirstSteps, first_steps
from toolkit.diagnosis.numbers import mean, measured
from toolkit.diagnosis.phases import phases
from toolkit.diagnosis.rule import Parameters, Percent, Positive, found
from toolkit.diagnosis.span import scaled_steps
from toolkit.diagnosis.steps import WARM_UP
from toolkit.records import Record
from toolkit.series.finding import Finding, Number

# Steps that wait less than this share of their time do not need more workers.
WAITS = 10.0
FEWEST_STEPS = 5
# A worker that uses this much of a core is busy. Below it, and with little CPU use of the rank, the disk is slow.
BUSY = 70.0
# Workers start anew in each epoch: so many starts were seen for each worker that ran at a time.
RESTARTS = 2


class Dataloader(Parameters, frozen=True, kw_only=True):
    """Loader workers in percent of the cores. Defaults of smdebug-rulesconfig 1.0.1."""

    min_threshold: Positive = 70
    max_threshold: Positive = 200


class DataWait(Parameters, frozen=True, kw_only=True):
    """`threshold`: percent of the steps' time; `patience` in steps."""

    threshold: Percent = 25
    patience: Positive = 20


class Wait(Record, frozen=True, kw_only=True):
    """How long a rank's steps waited for data."""

    rank: int | None
    share: float
    data_s: float
    steps: int
    start_s: float
    end_s: float
    note: str
    first_steps: FirstSteps | None


def dataloader(evidence: Evidence, parameters: Dataloader, _: frozenset[str]) -> Iterator[Finding]:
    """There are more loader workers than the cores can run, or too few while the steps wait for data."""
    columns = evidence.columns("rank", "loader_workers")
    cores = evidence.machine.cores or len(evidence.cores())
    if not columns or not cores:
        return
    workers = sum(max(measured(values)) for values in columns.values())
    used = 100 * workers / cores
    waits = _waits(evidence, FEWEST_STEPS, frozenset({"patience"}))
    waited = max((wait.share for wait in waits), default=0.0)
    # Without any worker the steps do the loading: that is DataWait's finding.
    too_few = 0 < used < parameters.min_threshold and waited > WAITS
    if not too_few and used <= parameters.max_threshold:
        return
    busy = core_use.busy(evidence, waits[0].start_s if waits else evidence.start_s, evidence.end_s)
    named = f" (busy: {core_use.named(busy)})" if busy else ""
    few = f" while the steps wait for data for {waited:.0f} % of their time" if too_few else ""
    yield found(
        "Dataloader",
        evidence,
        None,
        f"{workers:.0f} loader workers run on {cores} cores{named}{few}.",
        subject="loader-workers",
        numbers=(
            Number(
                name="workers",
                value=used,
                unit="percent",
                formula="most loader workers of all ranks at one time / cores",
                limit=parameters.min_threshold if too_few else parameters.max_threshold,
            ),
            Number(
                name="waiting for data",
                value=waited,
                unit="percent",
                formula="data_s / step_s of all steps",
                limit=WAITS,
            ),
            *core_use.numbers(busy, "mean use from the first step on"),
        ),
        refuted_by="A run with another num_workers that has the same steps a second.",
        change=f"Set num_workers so that all ranks together have about {cores} workers.",
    )


def data_wait(evidence: Evidence, parameters: DataWait, given: frozenset[str]) -> Iterator[Finding]:
    """The steps of a rank wait for the data loader for more than `threshold` percent of their time."""
    waits = _waits(evidence, parameters.patience, given)
    if not waits:
        return
    worst = max(waits, key=lambda wait: wait.share)
    if not worst.share > parameters.threshold:
        return
    loader = _sum(evidence, "loader_cpu_percent")
    rank_cpu = _sum(evidence, "cpu_percent")
    workers = sum(max(measured(values)) for values in evidence.columns("rank", "loader_workers").values())
    iowait = mean(evidence.column("cpu/all/iowait_percent"))
    reason, change = _at_epochs(evidence, worst.first_steps, workers) or _reason(loader, rank_cpu, workers, iowait)
    busy = core_use.busy(evidence, worst.start_s, worst.end_s)
    cores = f" Busy cores: {core_use.named(busy)}." if busy else ""
    of_rank = "" if worst.rank is None else f" of rank {worst.rank}"
    yield found(
        "DataWait",
        evidence,
        None,
        f"The steps{of_rank} wait for the data loader for {worst.share:.0f} % of their time"
        f" ({worst.data_s:.3g} s a step). {reason}{cores}",
        subject="loader",
        start_s=worst.start_s,
        end_s=worst.end_s,
        numbers=(
            Number(
                name="waiting for data",
                value=worst.share,
                unit="percent",
                formula=f"data_s / step_s, sums over {worst.steps} steps of the rank that waits longest",
                limit=parameters.threshold,
            ),
            Number(name="wait a step", value=worst.data_s, unit="s", formula="mean of data_s"),
            *_number("loader CPU", loader, "mean use of the loader workers of all ranks, in percent of one core"),
            *_number("ranks' CPU", rank_cpu, "mean use of all ranks with their children, in percent of one core"),
            *_number("I/O wait", iowait, "mean over all cores"),
            *_long_waits(worst.first_steps),
            *core_use.numbers(busy, "mean use during these steps"),
        ),
        refuted_by="A run on one batch that is kept in memory and takes as long a step.",
        change=change,
        note=worst.note,
    )


def _waits(evidence: Evidence, patience: int, given: frozenset[str]) -> list[Wait]:
    """Return how long each rank waited; ranks with fewer steps than *patience* asks for are left out."""
    whole = {phase.rank: phase for phase in phases(evidence, ("step",))}
    others = phases(evidence, ("forward", "backward"))
    waits = []
    for phase in phases(evidence, ("dataloader",)):
        data = phase.seconds[WARM_UP:]
        needed, note = scaled_steps(evidence, patience, len(data), given="patience" in given, fewest=FEWEST_STEPS)
        if len(data) < needed:
            continue
        if phase.rank in whole:
            step_s = mean(whole[phase.rank].seconds[WARM_UP:])
        else:
            step_s = mean(data) + sum(mean(each.seconds[WARM_UP:]) for each in others if each.rank == phase.rank)
        if step_s > 0:
            waits.append(
                Wait(
                    rank=phase.rank,
                    share=min(100 * mean(data) / step_s, 100.0),
                    data_s=mean(data),
                    steps=len(data),
                    start_s=phase.times_s[0],
                    end_s=phase.times_s[-1],
                    note=note,
                    first_steps=first_steps(data),
                )
            )
    return waits


def _at_epochs(evidence: Evidence, at: FirstSteps | None, workers: float) -> tuple[str, str] | None:
    """Return why the wait is in the first step of each epoch, and what to change; None if it is not."""
    if at is None:
        return None
    where = f"{100 * at.share:.0f} % of the wait is in one step of {at.period}, as in the first step of each epoch"
    starts = sum(max(measured(values)) for values in evidence.columns("rank", "loader_starts").values())
    if workers and (starts >= RESTARTS * workers or not starts):
        seen = f" ({starts:.0f} starts of at most {workers:.0f} at a time were seen)" if starts else ""
        change = "Set num_workers to 0 or 1, or persistent_workers=True with a DataLoader that all epochs share."
        return f"{where}: the loader workers start anew in each epoch{seen}.", change
    change = "Make the dataset and the DataLoader once, before the first epoch; look at what its sampler does then."
    return f"{where}: the loader starts each epoch slowly.", change


def _long_waits(at: FirstSteps | None) -> list[Number]:
    if at is None:
        return []
    formula = f"sum of the {at.count} longest data_s, {at.period} steps apart / sum of all data_s"
    return [Number(name="wait in the first steps of epochs", value=100 * at.share, unit="percent", formula=formula)]


def _reason(loader: float, rank_cpu: float, workers: float, iowait: float) -> tuple[str, str]:
    """Return what the loader does meanwhile, and what to change."""
    disk = "Keep the data on a local disk or in memory, in fewer and larger files; raise prefetch_factor."
    if workers == 0 and not loader > 0:
        cpu = f" (the ranks use {rank_cpu:.0f} % of a core)" if rank_cpu == rank_cpu else ""
        change = (
            "Give the DataLoader workers (num_workers, persistent_workers=True), so that loading and steps overlap."
        )
        return f"No loader worker was seen: the rank loads the data itself, between the steps{cpu}.", change
    each = loader / workers if workers else loader
    count = f"{workers:.0f} loader workers use" if workers else "The loader workers use"
    if each >= BUSY:
        change = "Add workers if cores are idle; else decode and augment less, or ahead of the job."
        return f"{count} {loader:.0f} % of a core together: they are busy.", change
    waits = (
        f", and the cores wait for the disk for {iowait:.0f} % of the time" if iowait == iowait and iowait >= 5 else ""
    )
    return f"{count} only {loader:.0f} % of a core together: they wait for something else{waits}.", disk


def _sum(evidence: Evidence, metric: str) -> float:
    columns = evidence.columns("rank", metric)
    return mean(sum(measured(row)) for row in zip(*columns.values(), strict=True)) if columns else float("nan")


def _number(name: str, value: float, formula: str) -> list[Number]:
    return [Number(name=name, value=value, unit="percent", formula=formula)] if value == value else []
