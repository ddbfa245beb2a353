"""Data that comes too late: Dataloader (workers against cores) and DataWait (share of the steps, by what it waits)."""

from collections.abc import Iterator

from toolkit.diagnosis import cores as core_use
from toolkit.diagnosis import loader_use
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.first_steps import FirstSteps, first_steps
from toolkit.diagnosis.numbers import mean, measured
from toolkit.diagnosis.phases import phases
from toolkit.diagnosis.rule import Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.shared_machine import OTHERS, others_percent
from toolkit.diagnosis.span import scaled_steps
from toolkit.diagnosis.step_seconds import DATA_SHARE, WARM_UP
from toolkit.diagnosis.units import format_seconds
from toolkit.records import Record
from toolkit.series.finding import Finding, Number

# Steps that wait less than this share of their time do not need more workers.
WAITS = 10.0
FEWEST_STEPS = 5
OF_ONE_CORE = "in percent of one core"


class Dataloader(RuleParameters, frozen=True, kw_only=True):
    """Loader workers in percent of the cores. Defaults of smdebug-rulesconfig 1.0.1."""

    min_threshold: Positive = 70
    max_threshold: Positive = 200


class DataWait(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the steps' time; `patience` in steps."""

    threshold: Percent = DATA_SHARE
    patience: Positive = 20


class Wait(Record, frozen=True, kw_only=True):
    """The time for which a rank's steps waited for data."""

    rank: int | None  # None: of no rank.
    share: float  # Percent of the steps' time.
    data_s: float  # Mean wait of a step.
    steps: int  # The number of steps.
    start_s: float  # End of the first step, since the epoch.
    end_s: float  # End of the last step, since the epoch.
    note: str  # A patience that was scaled.
    first_steps: FirstSteps | None  # The wait is in the first steps of epochs; None if not.


def dataloader(evidence: Evidence, parameters: Dataloader, _: frozenset[str]) -> Iterator[Finding]:
    """There are more loader workers than the cores can run, or too few while the steps wait for data."""
    columns = evidence.columns("rank", "loader_workers")
    cores = evidence.machine.cores or len(evidence.cores())
    if not columns or not cores:
        return
    waits = _waits(evidence, FEWEST_STEPS, frozenset({"patience"}))
    worst = max(waits, key=lambda wait: wait.share, default=None)
    workers = sum(max(measured(values)) for values in columns.values())
    used = 100 * workers / cores
    waited = worst.share if worst is not None else 0.0
    reason = _why(evidence, worst)[1] if worst is not None else None
    # Without any worker the steps do the loading: that is DataWait's finding, as is any wait that more do not shorten.
    too_few = 0 < used < parameters.min_threshold and waited > WAITS
    too_few = too_few and reason is not None and reason.reason in loader_use.MORE_WORKERS_HELP
    if not too_few and used <= parameters.max_threshold:
        return
    start_s = waits[0].start_s if waits else evidence.start_s
    # Busy cores say nothing of the workers where other programs hold many.
    is_shared = others_percent(evidence, start_s, evidence.end_s) >= OTHERS
    busy = [] if is_shared else core_use.busy_cores(evidence, start_s, evidence.end_s)
    busy_text = f" (busy: {core_use.names_text(busy)})" if busy else ""
    few = f" while the steps wait for data for {waited:.0f} % of their time" if too_few else ""
    runs = "runs" if round(workers) == 1 else "run"
    of_cores = "1 core" if cores == 1 else f"{cores} cores"
    # Too few: the advice of DataWait, which may have found the same.
    change = (
        reason.change
        if too_few and reason is not None
        else f"Set num_workers so that all ranks together have about {cores} workers."
    )
    if reason is not None and waited > WAITS and (too_few or reason.reason == "epochs"):
        change = reason.change  # As DataWait, which may have found the same.
    yield make_finding(
        "Dataloader",
        evidence,
        None,
        f"{loader_use.worker_count_text(workers)} {runs} on {of_cores}{busy_text}{few}.",
        subject="loader-workers",
        numbers=(
            percent(
                "workers",
                used,
                "most loader workers of all ranks at one time / cores",
                limit=parameters.min_threshold if too_few else parameters.max_threshold,
            ),
            percent("waiting for data", waited, "data_s / step_s of all steps", limit=WAITS),
            *core_use.numbers(busy, "mean use from the first step on"),
        ),
        refuted_by="A run with another num_workers that has the same steps a second.",
        change=change,
        lost_s=worst.data_s * worst.steps if worst is not None and waited > WAITS else None,
    )


def data_wait(evidence: Evidence, parameters: DataWait, user_set: frozenset[str]) -> Iterator[Finding]:
    """The steps of a rank wait for the data loader for more than `threshold` percent of their time."""
    waits = _waits(evidence, parameters.patience, user_set)
    if not waits:
        return
    worst = max(waits, key=lambda wait: wait.share)
    if not worst.share > parameters.threshold:
        return
    use, reason = _why(evidence, worst)
    # Whose cores are they: where other programs hold many, busy ones say nothing about the job.
    is_shared = use.others_percent >= OTHERS
    busy = [] if is_shared else core_use.busy_cores(evidence, worst.start_s, worst.end_s)
    cores = f" Busy cores: {core_use.names_text(busy)}." if busy else ""
    of_rank = "" if worst.rank is None else f" of rank {worst.rank}"
    yield make_finding(
        "DataWait",
        evidence,
        None,
        f"The steps{of_rank} wait for the data loader for {worst.share:.0f} % of their time"
        f" ({format_seconds(worst.data_s)} a step). {reason.text}{cores}",
        subject="loader",
        start_s=worst.start_s,
        end_s=worst.end_s,
        numbers=(
            percent(
                "waiting for data",
                worst.share,
                f"data_s / step_s, sums over {worst.steps} steps of the rank that waits longest",
                limit=parameters.threshold,
            ),
            number("wait a step", worst.data_s, "mean of data_s", unit="s"),
            *_number("loader CPU", use.loader_percent, f"workers of all ranks, while there are any, {OF_ONE_CORE}"),
            *_number("ranks' CPU", use.ranks_percent, f"mean of all ranks with their children, {OF_ONE_CORE}"),
            *_number("other processes' CPU", use.others_percent, "use of all cores less that of the ranks"),
            *_number("I/O wait", use.iowait_percent, "mean over all cores"),
            *(
                [number("read from disks", use.disk_read_bytes_per_s, "mean of all ranks", unit="bytes/s")]
                if use.disk_read_bytes_per_s > 0
                else []
            ),
            *_long_waits(worst.first_steps),
            *core_use.numbers(busy, "mean use during these steps"),
        ),
        refuted_by="A run on one batch that is kept in memory and takes as long a step.",
        change=reason.change,
        note=worst.note,
        lost_s=worst.data_s * worst.steps,
    )


def _why(evidence: Evidence, wait: Wait) -> tuple[loader_use.LoaderUse, loader_use.WaitReason]:
    use = loader_use.use(evidence, wait.start_s, wait.end_s)
    return use, loader_use.explain_wait(use, wait.first_steps)


def _waits(evidence: Evidence, patience: int, user_set: frozenset[str]) -> list[Wait]:
    """Return how long each rank waited; ranks with fewer steps than *patience* asks for are left out."""
    step_phases = {phase.rank: phase for phase in phases(evidence, ("step",))}
    others = phases(evidence, ("forward", "backward"))
    waits = []
    for phase in phases(evidence, ("dataloader",)):
        data = phase.seconds[WARM_UP:]
        needed, note = scaled_steps(
            evidence, patience, len(data), is_user_set="patience" in user_set, fewest=FEWEST_STEPS
        )
        if len(data) < needed:
            continue
        if phase.rank in step_phases:
            step_s = mean(step_phases[phase.rank].seconds[WARM_UP:])
        else:
            step_s = mean(data) + sum(mean(phase_.seconds[WARM_UP:]) for phase_ in others if phase_.rank == phase.rank)
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


def _long_waits(pattern: FirstSteps | None) -> list[Number]:
    if pattern is None:
        return []
    formula = f"sum of the {pattern.count} longest data_s, {pattern.period} steps apart / sum of all data_s"
    return [percent("wait in the first steps of epochs", 100 * pattern.share, formula)]


def _number(name: str, value: float, formula: str) -> list[Number]:
    return [percent(name, value, formula)] if value == value else []
