"""CoreContention: ranks that wait for cores which their own threads hold."""

from collections.abc import Iterator

from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.numbers import mean, median
from toolkit.diagnosis.rule import Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.span import training
from toolkit.series.finding import Finding

# Threads contend where so many times as many as there are cores want to run at a time.
CROWD = 1.5


class CoreContention(RuleParameters, frozen=True, kw_only=True):
    """`threshold`: percent of the time for which a rank's main thread waits for a core; `patience` in samples."""

    threshold: Percent = 25
    patience: Positive = 120


def core_contention(evidence: Evidence, parameters: CoreContention, user_set: frozenset[str]) -> Iterator[Finding]:
    """The main thread of a rank waits for a core while more threads of the ranks than there are cores want to run.

    Other programs may hold cores, too, but not these threads: each counts that runs or is ready to.
    """
    waits = evidence.columns("rank", "core_wait_percent")
    cores = evidence.machine.cores or len(evidence.cores())
    span = training(evidence, parameters.patience, is_user_set="patience" in user_set) if waits and cores else None
    if span is None:
        return
    part = slice(span.first, span.last)
    running = {name: median(values[part]) for name, values in evidence.columns("rank", "running_threads").items()}
    running = {name: count for name, count in running.items() if count == count}
    threads = {name: median(values[part]) for name, values in evidence.columns("rank", "threads").items()}
    waited, rank = max((mean(values[part]), name) for name, values in waits.items())
    # A rank with one running thread has no fewer to run.
    if not waited > parameters.threshold or sum(running.values()) < CROWD * cores or running.get(rank, 0) < 2:
        return
    ranks = f" of {len(running)} ranks" if len(running) > 1 else ""
    of_cores = "1 core" if cores == 1 else f"{cores} cores"
    yield make_finding(
        "CoreContention",
        evidence,
        span,
        f"{sum(running.values()):.0f} threads{ranks} want to run at a time on {of_cores}: the main thread of rank"
        f" {rank} was ready but had no core for {waited:.0f} % of the time.",
        subject="threads",
        rank=int(rank),
        numbers=(
            percent("wait for a core", waited, "run delay of the main thread / time", limit=parameters.threshold),
            number(
                "running threads",
                sum(running.values()),
                "medians of the threads that run or are ready to, summed over the ranks",
                unit="threads",
                limit=CROWD * cores,
            ),
            number("threads", sum(threads.values()), "medians of all threads, summed", unit="threads"),
        ),
        refuted_by="A run with as many threads as cores (OMP_NUM_THREADS) whose steps take as long.",
        change=f"Let all ranks together compute with at most {of_cores}: OMP_NUM_THREADS, torch.set_num_threads, fewer"
        " ranks on this host.",
        lost_s=waited / 100 * (span.end_s - span.start_s),
    )
